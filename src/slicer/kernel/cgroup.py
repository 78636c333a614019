"""Reading cgroups (v2). Writing is left to systemd, but for :func:`thaw` and :func:`move`."""

from __future__ import annotations

import errno
import os

from slicer.kernel.proc import read_text, send, text_of
from slicer.model import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Where the v2 hierarchy is mounted in "unified" and in "hybrid" set-ups.
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ELOOP)  # ENODEV: removed after the open
_PATH_MAX = 4096
_MAX_BYTES = 4096


def root() -> str | None:
    """The mount point of the v2 hierarchy, or None."""
    for path in _ROOTS:
        if os.path.exists(f"{path}/cgroup.procs"):
            return path
    return None


def of(pid: int | str) -> str:
    """The v2 cgroup of a process as /proc names it ("/gpu.slice/slicer-x.scope"). "": unknown."""
    try:
        lines = read_text(f"/proc/{pid}/cgroup").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def path_of(cgroup: str) -> str:
    """The directory of a cgroup named as in /proc/PID/cgroup."""
    return (root() or _ROOTS[0]) + cgroup


def is_canonical(cgroup: str) -> bool:
    """Whether the text names a cgroup in the form of /proc/PID/cgroup: absolute, and within the hierarchy."""
    parts = cgroup.split("/")
    is_plain = cgroup.isprintable() and all(part not in ("", ".", "..") for part in parts[1:])
    return is_plain and not parts[0] and len(parts) > 1 and len(cgroup) < _PATH_MAX


def lives(cgroup: str) -> bool:
    """:func:`populated` for a cgroup that comes from a file. Opens nothing outside the hierarchy."""
    return is_canonical(cgroup) and populated(path_of(cgroup), os.stat(root() or _ROOTS[0]).st_dev)


def populated(directory: str, device: int | None = None) -> bool:
    """Whether any live process is in the cgroup or below it. A cgroup that does not exist is empty.

    ``device``: the file system on which it must be. Raises OSError if that cannot be read, for example
    without free descriptors.
    """
    try:
        fd = os.open(f"{directory}/cgroup.events", _READ)
        try:
            if device is not None and os.fstat(fd).st_dev != device:
                return False
            return b"populated 1" in os.read(fd, _MAX_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def processes(directory: str) -> Iterator[int]:
    """The pids in the cgroup and below it. Raises OSError if the cgroup exists but cannot be read."""
    try:
        with open(f"{directory}/cgroup.procs", encoding="utf-8") as file:
            text = file.read()
        children = [entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in _GONE:
            return  # it was removed in the meantime, so it is empty
        raise
    # 0 stands for a process outside our pid namespace.
    yield from (pid for pid in map(int, text.split()) if pid)
    for child in children:
        yield from processes(child)


def signal_all(cgroup: str, signo: int) -> None:
    """Signal the processes in a cgroup and below it, except other users'."""
    for pid in processes(path_of(cgroup)):
        send(pid, signo)


def move(pid: int, cgroup: str) -> None:
    """Move a process that systemd was never asked to move. Raises OSError."""
    with open(f"{path_of(cgroup)}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(pid))


def controllers(directory: str) -> frozenset[str]:
    """The controllers that act on this cgroup ("cpu", "memory", "io", …)."""
    return frozenset(text_of(f"{directory}/cgroup.controllers").split())


def _flat(directory: str, name: str) -> dict[str, int]:
    """A flat-keyed file such as cpu.stat. Empty if the controller is off or the cgroup does not exist."""
    lines = text_of(f"{directory}/{name}").splitlines()
    return {key: int(value) for key, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def number(directory: str, name: str) -> int | None:
    """The number in a file of the cgroup; None: it does not exist, or has no number."""
    try:
        return int(read_text(f"{directory}/{name}"))
    except (OSError, ValueError):
        return None


def _io_bytes(directory: str) -> tuple[int | None, int | None]:
    try:
        lines = read_text(f"{directory}/io.stat").splitlines()
    except OSError:
        return None, None
    totals = {"rbytes": 0, "wbytes": 0}
    for line in lines:
        for item in line.split()[1:]:
            key, _, value = item.partition("=")
            if key in totals and value.isdigit():
                totals[key] += int(value)
    return totals["rbytes"], totals["wbytes"]


def _stalled_s(directory: str, resource: str) -> float | None:
    """How long some task of the cgroup has waited for the resource so far, in seconds (PSI "some" total)."""
    first = text_of(f"{directory}/{resource}.pressure").partition("\n")[0]  # "": PSI is off in this kernel
    _, _, total = first.partition("total=")
    return int(total) / 1e6 if total.isdigit() else None


def is_frozen(directory: str) -> bool:
    """Whether the cgroup is frozen, by itself or with an ancestor. One that does not exist is not frozen."""
    return _flat(directory, "cgroup.events").get("frozen") == 1


def is_to_freeze(directory: str) -> bool:
    """Whether the cgroup itself was told to freeze. It may thaw for an instant when a process in it ends."""
    return number(directory, "cgroup.freeze") == 1


def frozen_s(directory: str) -> float | None:
    """Seconds for which the cgroup has been frozen so far. None: the kernel (before 6.18) does not count."""
    found = _flat(directory, "cgroup.stat.local").get("frozen_usec")
    return None if found is None else found / 1e6


def thaw(directory: str) -> bool:
    """Thaw a cgroup without systemd; whether that was permitted. One that does not exist counts as thawed.

    Only for a unit that is being stopped: systemd neither thaws it nor ends it before its stop timeout.
    """
    try:
        fd = os.open(f"{directory}/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno in _GONE
    return True


def oom_kills(directory: str) -> int | None:
    """How many processes the kernel has killed so far for memory, in the cgroup and below it."""
    return _flat(directory, "memory.events").get("oom_kill")


def memory(directory: str) -> int | None:
    """The bytes that the cgroup uses now, its page cache among them."""
    return number(directory, "memory.current")


def usage(directory: str) -> Usage:
    """The cgroup's usage so far. A figure is None if its file does not exist."""
    cpu = _flat(directory, "cpu.stat")

    def seconds(key: str) -> float | None:
        return cpu[key] / 1e6 if key in cpu else None

    read, written = _io_bytes(directory)
    return Usage(
        cpu_s=seconds("usage_usec"), cpu_user_s=seconds("user_usec"), cpu_system_s=seconds("system_usec"),
        throttled_s=seconds("throttled_usec"), memory_peak_bytes=number(directory, "memory.peak"),
        io_read_bytes=read, io_write_bytes=written, oom_kills=oom_kills(directory),
        pressure_cpu_s=_stalled_s(directory, "cpu"), pressure_memory_s=_stalled_s(directory, "memory"),
        pressure_io_s=_stalled_s(directory, "io"),
    )  # fmt: skip
