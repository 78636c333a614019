"""The three calls of inotify(7), which the standard library lacks."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from slicer.errors import StateError
from slicer.record import record

MODIFY = 0x2
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOWED = 0x4000  # sent without being requested: events were lost
IGNORED = 0x8000  # sent without being requested: the watch was removed with its target

_EVENT = struct.Struct("iIII")


@record
class Change:
    """One event: the watch, the change (the bits above), and the file in a watched directory."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance. Raises StateError, which names ``where``, if there are too many."""

    def __init__(self, where: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _failure(where)

    def add(self, path: str, mask: int) -> int | None:
        """Watch a path. Returns the watch's number, or None if the path does not exist. Raises StateError."""
        watch = int(self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask))
        if watch >= 0:
            return watch
        if ctypes.get_errno() in (errno.ENOENT, errno.ENODEV):  # a cgroup that went away gives the latter
            return None
        raise _failure(path)

    def take(self) -> list[Change]:
        """The events since the last call. Never waits.

        It reads at most 64 KiB, so that a process which changes files faster than we read cannot keep us
        here.
        """
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        found, offset = [], 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = data[offset : offset + length].rstrip(b"\0")
            found.append(Change(watch, mask, os.fsdecode(name)))
            offset += length
        return found

    def close(self) -> None:
        os.close(self.fd)


def _failure(path: str) -> StateError:
    reason = os.strerror(ctypes.get_errno())
    hint = "raise fs.inotify.max_user_instances or max_user_watches"
    return StateError(f"cannot be watched: {reason}", where=path, hint=hint)
