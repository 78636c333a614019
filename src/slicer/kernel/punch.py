"""fallocate(2) with its flags, which the standard library does not have: to free the beginning of a file."""

from __future__ import annotations

import ctypes
import os

_KEEP_SIZE, _PUNCH_HOLE = 0x1, 0x2


def free_beginning(fd: int, end: int) -> None:
    """Give the file's blocks before the offset ``end`` back. Its size stays. Raises OSError."""
    call = ctypes.CDLL(None, use_errno=True).fallocate64
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, _PUNCH_HOLE | _KEEP_SIZE, 0, end):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def beginning(fd: int, offset: int = 0) -> int:
    """Where the file's data begins, from ``offset`` on; its end if there is none left."""
    size = os.fstat(fd).st_size
    if offset >= size:
        return size
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:  # nothing but a hole, or a file system that knows none
        return size if os.fstat(fd).st_blocks == 0 else offset
