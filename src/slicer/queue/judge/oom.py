"""Whether a job's log tells that a GPU ran out of memory (E9)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from slicer.errors import StateError
from slicer.gpu import oom
from slicer.gpu.oom import HEAD_BYTES, TAIL_BYTES


def tells_of_oom(name: str, directory: int | None = None) -> bool:
    """Whether the log of that name, of one attempt, tells of a GPU out of memory.

    ``directory`` is a descriptor of the log directory. Only the first 64 and the last 256 KiB are read. A log
    that is not there, or no regular file, tells nothing. Raises StateError if it cannot be read.
    """
    try:
        return any(map(oom.tells_of_oom, _parts(name, directory)))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False  # a link
        raise StateError(f"cannot be read: {error.strerror}", where=name) from error


def _parts(name: str, directory: int | None) -> Iterator[bytes]:
    """The beginning and the end of the log, or all of it if they meet."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(name, flags, dir_fd=directory)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return
        size = info.st_size
        if size <= HEAD_BYTES + TAIL_BYTES:
            yield _read(fd, size, 0)
        else:
            yield _read(fd, TAIL_BYTES, size - TAIL_BYTES)
            yield _read(fd, HEAD_BYTES, 0)
    finally:
        os.close(fd)


def _read(fd: int, length: int, offset: int) -> bytes:
    parts = []
    while length > 0:
        part = os.pread(fd, length, offset)
        if not part:
            break  # somebody cut it short
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return b"".join(parts)
