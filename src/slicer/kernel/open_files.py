"""Finds the processes that have a file open, the holder of its lock, and whether a file has changed."""

from __future__ import annotations

import os
import stat

from slicer.kernel.proc import names_in, pids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    FileId = tuple[int, int, int, int, int]


def flock_holder(info: os.stat_result, *, exclusively: bool = False) -> int:
    """The process that holds a flock on the file; 0 if none is visible. Raises OSError.

    Costly: the kernel stops all flocks while it makes the list.
    """
    file = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    with open("/proc/locks", encoding="ascii") as lines:
        for line in lines:
            words = line.split()  # 1: FLOCK ADVISORY WRITE 1234 00:2d:5678 0 EOF
            if words[1] == "FLOCK" and words[5] == file and (words[3] == "WRITE" or not exclusively):
                return max(0, int(words[4]))
    return 0


def with_open(file: os.stat_result) -> list[int]:
    """The processes that have a file open, as far as we may inspect them."""
    return [pid for pid in pids() if has_open(pid, file)]


def has_open(pid: int, file: os.stat_result) -> bool:
    """Whether a process has a file open. False if the process has ended or we may not inspect it."""
    return any(descriptors_of(pid, file))


def descriptors_of(pid: int, file: os.stat_result) -> Iterator[str]:
    """The descriptors by which a process has a file open."""
    for name in names_in(f"/proc/{pid}/fd"):
        try:
            info = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if os.path.samestat(info, file):
            yield name


def links(pid: int) -> Iterator[str]:
    """What a process has open, as in "/dev/nvidia0" and "socket:[4711]"; nothing if we may not inspect it."""
    for name in names_in(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile


def deleted(pid: int) -> Iterator[str]:
    """The last paths of our own plain files without a name that a process has open."""
    for name in names_in(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{name}"
        try:
            path = os.readlink(link)
            info = os.stat(link) if path.endswith(" (deleted)") else None
        except OSError:
            continue  # closed meanwhile
        if info and stat.S_ISREG(info.st_mode) and not info.st_nlink and info.st_uid == os.geteuid():
            yield path.removesuffix(" (deleted)")


def close_all_but(kept: Collection[int], *, lowest: int = 3) -> None:
    """Close the descriptors from ``lowest`` on, but not ``kept``."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd >= lowest and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                continue  # the one used for the listing


def file_id(path: str) -> FileId | None:
    """Values that change when the file does; None if they cannot be read."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
