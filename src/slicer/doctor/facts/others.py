"""Programs that hand out GPUs or limit jobs beside slicer."""

from __future__ import annotations

import json
import os
import stat

from slicer.config import profiles
from slicer.doctor.facts.files import kernel_text, lstat, names_in, trusted_text
from slicer.errors import SlicerError
from slicer.kernel import cgroup
from slicer.ledger.plain_lock import PlainLock
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# By the first 15 characters of their names, which is all that the kernel keeps.
_SCHEDULERS = {
    "slurmd": "Slurm", "gflowd": "gflow", "nvshare-schedul": "nvshare", "pbs_mom": "PBS",
    "condor_startd": "HTCondor", "kubelet": "Kubernetes", "nomad": "Nomad", "raylet": "Ray",
}  # fmt: skip


@record
class Other:
    """A program that was seen to run, of root or of this user."""

    what: str
    pid: int


@record
class OthersFacts:
    """``docker``: its cgroup driver, "systemd" or "cgroupfs"; "" where there is no docker."""

    docker: str
    schedulers: tuple[Other, ...]
    task_spooler: str  # this user's socket; "" for none
    lock: str  # the lock file of scripts; "" for none
    lock_problem: str  # why the lock file of scripts cannot be used; "" where it can, or none is set
    lock_holder: int  # the process that excludes slicer's GPU jobs by it; 0: none
    lock_holder_name: str


def gather(environ: Mapping[str, str], uid: int) -> OthersFacts:
    """Looks at /proc, at docker's files, and at the lock file that the configuration names."""
    lock = _lock(environ)
    running = _running(uid)
    spooler = environ.get("TS_SOCKET") or f"{environ.get('TMPDIR', '/tmp')}/socket-ts.{uid}"
    holder = PlainLock(lock).holder() if lock else 0
    return OthersFacts(
        docker=_docker(),
        schedulers=tuple(Other(what, running[name]) for name, what in _SCHEDULERS.items() if name in running),
        task_spooler=spooler if _is_own_socket(spooler, uid) else "",
        lock=lock,
        lock_problem=_lock_problem(lock) if lock else "",
        lock_holder=holder,
        lock_holder_name=kernel_text(f"/proc/{holder}/comm") if holder else "",
    )


def _lock(environ: Mapping[str, str]) -> str:
    try:
        return profiles.load(environ, profiles.host(), remembers=False).compat_gpu_lock
    except SlicerError:
        return ""  # the look at the configuration reports it


def _running(uid: int) -> dict[str, int]:
    """The names of the processes of root and of this user; what others call theirs is not believed."""
    found: dict[str, int] = {}
    for name in names_in("/proc"):
        if name.isdigit():
            info = lstat(f"/proc/{name}")
            if info is not None and info.st_uid in (0, uid):
                found.setdefault(kernel_text(f"/proc/{name}/comm"), int(name))
    return found


def _is_own_socket(path: str, uid: int) -> bool:
    info = lstat(path)
    return info is not None and stat.S_ISSOCK(info.st_mode) and info.st_uid == uid


def _docker() -> str:
    """By its configuration, else by where its containers are, else its default (systemd, on cgroup v2)."""
    text = trusted_text("/etc/docker/daemon.json")
    if text is None and not os.path.exists("/run/docker.sock"):
        return ""
    try:
        read = json.loads(text or "{}")
    except ValueError:
        read = {}
    options = read.get("exec-opts", []) if isinstance(read, dict) else []
    for option in options if isinstance(options, list) else []:
        if isinstance(option, str) and option.startswith("native.cgroupdriver="):
            return option.partition("=")[2]
    if os.path.isdir(cgroup.path_of("/docker")):
        return "cgroupfs"
    return "systemd" if cgroup.root() == "/sys/fs/cgroup" else "cgroupfs"


def _lock_problem(path: str) -> str:
    """Why the file cannot be the lock. It is opened by nobody here: it may be a FIFO."""
    parent = lstat(os.path.dirname(path))
    info = lstat(path)
    if parent is None:
        return "its directory does not exist"
    if info is None:
        return "" if os.access(os.path.dirname(path), os.W_OK | os.X_OK) else "it cannot be made there"
    if stat.S_ISLNK(info.st_mode) and parent.st_mode & stat.S_IWOTH:
        return "is a symbolic link in a directory that everybody may write to"
    if not os.path.isfile(path):
        return "is not a plain file"
    return "" if os.access(path, os.R_OK) else "cannot be read"
