"""Reads a job's log: whether a GPU ran out of memory (E9), and its last line for display."""

from __future__ import annotations

import errno
import os
import re
import stat

from slicer.errors import StateError
from slicer.gpu import oom
from slicer.gpu.oom import HEAD_BYTES, TAIL_BYTES
from slicer.state.directory import Directory
from slicer.text import one_line

_LAST_BYTES = 8 << 10  # searched for the last line
_CHARACTERS = 200  # of the last line
_TERMINAL = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n\x90\x98\x9c-\x9f]*(?:\x07|\x9c|\x1b\\)"  # titles
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]"  # others
)


def tells_of_oom(name: str, directory: int | None = None) -> bool:
    """Whether the log of that name, of one attempt, shows that a GPU ran out of memory.

    ``directory`` is a descriptor of the log directory. Only the first 64 and the last 256 KiB are read. False
    for a missing log and for other than a regular file. Raises StateError if it cannot be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(name, flags, dir_fd=directory)
        try:
            return _tells_of_oom(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # ELOOP: a link
            return False
        raise StateError(f"cannot be read: {error.strerror}", where=name) from error


def _tells_of_oom(fd: int) -> bool:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return False
    size = info.st_size
    if size <= HEAD_BYTES + TAIL_BYTES:
        return oom.tells_of_oom(_read(fd, size, 0))
    end = _read(fd, TAIL_BYTES, size - TAIL_BYTES)
    return oom.tells_of_oom(end) or oom.tells_of_oom(_read(fd, HEAD_BYTES, 0))


def _read(fd: int, length: int, offset: int) -> bytes:
    found = b""
    while len(found) < length:
        part = os.pread(fd, length - len(found), offset + len(found))
        if not part:
            break  # somebody truncated it
        found += part
    return found


def last_line(directory: Directory, name: str) -> str:
    """The last non-blank line of the log ``name``; "" if there is no such line or log."""
    try:
        fd = directory.open_file(name, os.O_RDONLY)
    except (OSError, StateError):
        return ""  # somebody removed or replaced it
    try:
        size = os.fstat(fd).st_size
        return line_of(os.pread(fd, _LAST_BYTES, max(0, size - _LAST_BYTES)))
    except OSError:
        return ""
    finally:
        os.close(fd)


def line_of(data: bytes) -> str:
    """The last non-blank line of ``data``, without terminal control sequences."""
    text = _TERMINAL.sub("", data.decode("utf-8", "surrogateescape"))
    lines = (line.strip() for line in re.split("[\r\n]", text))
    return one_line(next((line for line in reversed(list(lines)) if line), ""), _CHARACTERS)
