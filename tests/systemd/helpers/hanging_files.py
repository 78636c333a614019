"""A file system (FUSE) of one file, whose close is never answered: whoever closes it hangs until it ends.

Or, with ``writes``, it never takes what is written to it. Then whoever gives up the last copy of any
descriptor of it hangs, also of one that is still in flight between two processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEVICE = Path("/dev/fuse")
_HEADER = struct.Struct("=IIQQ")  # of a request: length, opcode, unique, node
_LOOKUP, _FORGET, _GETATTR, _OPEN, _WRITE, _FLUSH = 1, 2, 3, 14, 16, 25
_INIT, _INTERRUPT, _BATCH_FORGET = 26, 36, 42
_WRITEBACK_CACHE = 1 << 16
_ROOT_NODE = 1
_ENOSYS = 38


@contextmanager
def hanging_file(place: Path, *, writes: bool = False) -> Iterator[bool]:
    """``place`` has a file "file" that everybody may open, until the end of the ``with``.

    False: there is no FUSE in this machine.
    """
    try:
        if not _DEVICE.exists():
            os.mknod(_DEVICE, stat.S_IFCHR | 0o666, os.makedev(10, 229))
        fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    place.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hangs", os.fsencode(place), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    server = os.fork()
    if not server:
        try:
            _serve(fd, writes=writes)
        finally:
            os._exit(1)
    os.close(fd)
    try:
        yield True
    finally:
        os.kill(server, signal.SIGKILL)  # whoever hangs in it goes on
        os.waitpid(server, 0)
        libc.umount2(os.fsencode(place), 2)
        place.rmdir()


def _serve(fd: int, *, writes: bool) -> None:
    unheard = (_FORGET, _BATCH_FORGET, _INTERRUPT, _WRITE if writes else _FLUSH)
    while True:
        _, opcode, unique, node = _HEADER.unpack_from(os.read(fd, 1 << 20))
        if opcode in unheard:
            continue
        body = _answer(opcode, node, _WRITEBACK_CACHE if writes else 0)
        error = 0 if body is not None else -_ENOSYS
        body = body or b""
        os.write(fd, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


def _answer(opcode: int, node: int, flags: int) -> bytes | None:
    if opcode == _INIT:
        return struct.pack("=IIIIHHIIHHI7I", 7, 31, 4096, flags, 12, 9, 4096, 1, 1, 0, 0, *[0] * 7)
    if opcode == _GETATTR:
        return struct.pack("=QII", 60, 0, 0) + _attributes(node)
    if opcode == _LOOKUP:
        return struct.pack("=QQQQII", 2, 0, 60, 60, 0, 0) + _attributes(2)
    return bytes(16) if opcode == _OPEN else None


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == _ROOT_NODE else stat.S_IFREG | 0o666
    return struct.pack("=6Q3I7I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
