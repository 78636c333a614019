"""Parsed configuration kept between starts: importing tomllib costs a dozen milliseconds, this under one.

The cache is one file, ``~/.cache/slicer/config``. It is believed only if it and its directory belong to
the caller and nobody else may write them (reading a hostile ``marshal`` stream can crash the interpreter),
if it was written by this very slicer and Python, and if device, inode, size and both times of every
configuration file are what they were. Anything odd means no cache, and failing to write it is no error:
the files themselves are always the truth.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
import time
import zlib

from slicer.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from slicer.config.files import FileId

    Content = tuple[str, dict[str, Any], dict[tuple[str, ...], int]]

_NAME = "config"
_HEADER = f"slicer configuration cache 1, {__version__}, Python {sys.hexversion:x}\n".encode()
_MAX_BYTES = 8 * 2**20
# A file that changes twice within one tick of the clock shows the same time twice: what was changed just
# now is not remembered yet. Two seconds cover the coarsest file systems.
_SETTLED_NS = 2 * 10**9


def load(directory: str, ids: tuple[FileId, ...]) -> list[Content] | None:
    """What was stored for exactly these files, or None."""
    payload = _payload(directory) if directory else None
    if payload is None:
        return None
    try:
        stored_ids, content = marshal.loads(payload)
    except (ValueError, EOFError, TypeError):
        return None
    return list(content) if stored_ids == ids else None


def store(directory: str, ids: tuple[FileId, ...], content: Sequence[Content]) -> None:
    """Remember the content of these files. Silent when it cannot."""
    newest = max(max(mtime, ctime) for _, _, _, _, mtime, ctime in ids)
    if not directory or newest > time.time_ns() - _SETTLED_NS:
        return
    try:
        payload = marshal.dumps((ids, list(content)))
    except ValueError:  # a TOML date, which no key of slicer takes
        return
    try:
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        if not os.path.isdir(directory):
            os.mkdir(directory, 0o700)
        folder = _open_folder(directory)
    except OSError:
        return
    if folder >= 0:
        try:
            _write(folder, _HEADER + zlib.crc32(payload).to_bytes(4, "little") + payload)
        finally:
            os.close(folder)


def _payload(directory: str) -> bytes | None:
    try:
        folder = _open_folder(directory)
        if folder < 0:
            return None
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(_NAME, flags, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            if not _private_file(os.fstat(fd)):
                return None
            blob = os.read(fd, _MAX_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None
    start = len(_HEADER) + 4
    payload = blob[start:]
    checksum = zlib.crc32(payload).to_bytes(4, "little")
    return payload if blob[:start] == _HEADER + checksum else None


def _open_folder(directory: str) -> int:
    """A descriptor of the directory; -1 if somebody else may have put something into it."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    st = os.fstat(folder)
    if st.st_uid == os.geteuid() and not st.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return folder
    os.close(folder)
    return -1


def _private_file(st: os.stat_result) -> bool:
    return (
        stat.S_ISREG(st.st_mode)
        and st.st_uid == os.geteuid()
        and not st.st_mode & 0o077
        and st.st_nlink == 1
        and st.st_size < _MAX_BYTES
    )


def _write(folder: int, blob: bytes) -> None:
    temporary = f"{_NAME}.{os.getpid()}"
    try:
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=folder,
        )
    except OSError:
        return
    try:
        try:
            whole = os.write(fd, blob) == len(blob)
        finally:
            os.close(fd)
        if whole:
            os.replace(temporary, _NAME, src_dir_fd=folder, dst_dir_fd=folder)
            return
    except OSError:
        pass  # a full disk, most likely
    try:
        os.unlink(temporary, dir_fd=folder)
    except OSError:
        return
