"""The host: the kernel, mounts, disks, the session and the journal."""

from __future__ import annotations

import os

from slicer.backend import scopes
from slicer.doctor.facts.reading import setting
from slicer.errors import StateError
from slicer.kernel import cgroup
from slicer.kernel.proc import names_in, text_of
from slicer.kernel.users import lingers, user_name
from slicer.outcome.journal import SOCKET
from slicer.record import record


@record
class KernelFacts:
    release: str
    pidfd_error: str  # why there are no pidfds; "" if there are
    inotify_error: str  # why no instance is available; "" if one is
    inotify_instances: str  # fs.inotify.max_user_instances


def gather_kernel() -> KernelFacts:
    """Asks for a pidfd and an inotify instance."""
    instances = text_of("/proc/sys/fs/inotify/max_user_instances")
    return KernelFacts(os.uname().release, _pidfd_error(), _inotify_error(), instances)


def _pidfd_error() -> str:
    """Why the kernel (or a container's seccomp filter) provides no pidfd; "" if it does."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _inotify_error() -> str:
    try:
        from slicer.kernel.inotify import Inotify

        Inotify("inotify").close()
    except StateError as error:
        return error.message
    return ""


_MOUNTS_BYTES = 4 << 20


@record
class Mount:
    point: str
    kind: str  # "tmpfs", "ext4", …


def mounts(path: str = "/proc/self/mountinfo") -> tuple[Mount, ...]:
    """All mounts; empty if /proc cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse(file.read(_MOUNTS_BYTES))
    except OSError:
        return ()


def parse(text: str) -> tuple[Mount, ...]:
    """The content of mountinfo (proc(5))."""
    import re  # a detached job asks only for its session

    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, last = before.split(" "), after.split(" ")
        if len(fields) > 5 and len(last) > 2:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            found.append(Mount(point, last[0]))
    return tuple(found)


def holding(path: str, among: tuple[Mount, ...]) -> Mount | None:
    """The mount that a path is on, whether the path exists or not."""
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in among:
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


@record
class Disk:
    """A block device with its own queue."""

    name: str
    number: str  # major:minor, as io.cost.qos expects it
    scheduler: str  # the active one
    offered: tuple[str, ...]


@record
class DiskFacts:
    """``weighs``: some disk honours weights."""

    disks: tuple[Disk, ...]
    weighs: bool
    has_io_cost: bool  # the kernel has io.cost at the root of the hierarchy
    oomd_runs: bool


def gather_disks() -> DiskFacts:
    """Reads /sys."""
    found = (_disk(name) for name in names_in("/sys/block"))
    return DiskFacts(
        disks=tuple(disk for disk in found if disk is not None),
        weighs=scopes.io_is_weighed(),
        has_io_cost="io.cost.qos" in names_in(cgroup.path_of("")),
        oomd_runs=scopes.oomd_runs(),
    )


def _disk(name: str) -> Disk | None:
    words = text_of(f"/sys/block/{name}/queue/scheduler").split()
    if name.startswith(("loop", "ram", "zram")) or not words:
        return None
    active = next((word.strip("[]") for word in words if word.startswith("[")), "none")
    offered = tuple(word.strip("[]") for word in words)
    return Disk(name, text_of(f"/sys/block/{name}/dev"), active, offered)


@record
class SessionFacts:
    lingers: bool
    has_runtime: bool  # /run/user/UID exists: the user is logged in or lingers
    kills_processes: bool  # logind kills this user's processes at the end of a session (KillUserProcesses)


def gather_session(uid: int) -> SessionFacts:
    """Reads logind's files."""
    user = user_name(uid)
    kills = setting("logind.conf", "KillUserProcesses").lower() in ("yes", "true", "1", "on")
    only = setting("logind.conf", "KillOnlyUsers").split()
    spared = setting("logind.conf", "KillExcludeUsers").split() or ["root"]
    return SessionFacts(
        lingers=lingers(uid),
        has_runtime=os.path.isdir(f"/run/user/{uid}"),
        kills_processes=kills and user not in spared and (not only or user in only),
    )


_PERSISTENT = "/var/log/journal"
_VOLATILE = "/run/log/journal"


@record
class JournalFacts:
    """``socket_error`` is "" if journald listens."""

    socket_error: str
    storage: str  # Storage= of journald.conf; "" if not set
    is_persistent: bool  # entries survive a reboot
    may_read_own: bool  # the user may read the entries about their own jobs


def gather_journal(uid: int) -> JournalFacts:
    """Sends nothing."""
    is_persistent = bool(_files(_PERSISTENT))
    directory = _PERSISTENT if is_persistent else _VOLATILE
    files = _files(directory)
    return JournalFacts(
        socket_error=_socket_error(),
        storage=setting("journald.conf", "Storage").lower(),
        is_persistent=is_persistent,
        may_read_own=_may_read(files, f"user-{uid}.journal") or _may_read(files, "system.journal"),
    )


def _files(directory: str) -> list[str]:
    machines = (f"{directory}/{name}" for name in names_in(directory))
    return [f"{machine}/{name}" for machine in machines for name in names_in(machine)]


def _may_read(files: list[str], name: str) -> bool:
    if os.geteuid() == 0:
        return True
    return any(os.path.basename(path) == name and os.access(path, os.R_OK) for path in files)


def _socket_error() -> str:
    """Why journald cannot be reached. To connect a datagram socket sends nothing."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(SOCKET)
        except OSError as error:
            return error.strerror or str(error)
    return ""
