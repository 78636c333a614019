"""Parsed configuration kept between starts: importing tomllib costs a dozen milliseconds, this under one.

The cache is one file, ``~/.cache/slicer/config``. It counts only if it and its directory belong to the caller
and nobody else may write them, because a hostile ``marshal`` stream can crash the interpreter. The same
version of slicer and of Python must have written it, and the device, inode, size and both times of every
configuration file must be unchanged. Otherwise there is no cache. A cache that cannot be written is no error.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
import time
import zlib

from slicer.errors import StateError
from slicer.state.directory import Directory
from slicer.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    # Path, device, inode, size, and the times of the last change of content and of anything (ns).
    FileId = tuple[str, int, int, int, int, int]
    Content = tuple[str, dict[str, Any], dict[tuple[str, ...], int]]

_NAME = "config"
_HEADER = f"slicer configuration cache 1, {__version__}, Python {sys.hexversion:x}\n".encode()
_MAX_BYTES = 8 * 2**20
# A file that changes twice within one tick of the clock shows the same time twice. So a file that has just
# changed is not cached yet. Two seconds cover the coarsest file systems.
_SETTLED_NS = 2 * 10**9


def load(path: str, ids: tuple[FileId, ...]) -> list[Content] | None:
    """The content stored in this directory for exactly these files, or None."""
    try:
        blob = _read(path)
    except (OSError, StateError):
        return None
    start = len(_HEADER) + 4
    payload = blob[start:]
    if blob[:start] != _HEADER + _checksum(payload):
        return None
    try:
        stored_ids, content = marshal.loads(payload)
    except (ValueError, EOFError, TypeError):
        return None
    return list(content) if stored_ids == ids else None


def store(path: str, ids: tuple[FileId, ...], content: Sequence[Content]) -> None:
    """Keep the content of these files in this directory, if possible."""
    newest = max(max(mtime, ctime) for _, _, _, _, mtime, ctime in ids)
    if not path or newest > time.time_ns() - _SETTLED_NS:
        return
    try:
        payload = marshal.dumps((ids, list(content)))
    except ValueError:  # a TOML date, which no key of slicer accepts
        return
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if not os.path.isdir(path):
            os.mkdir(path, 0o700)
        _write(path, _HEADER + _checksum(payload) + payload)
    except OSError:  # probably a full disk
        return


def _checksum(payload: bytes) -> bytes:
    return zlib.crc32(payload).to_bytes(4, "little")


def _read(path: str) -> bytes:
    """The cache file; empty if anybody else may read or write it. Raises OSError, StateError."""
    folder = _open_folder(path)
    try:
        is_private = not folder.lstat(_NAME).st_mode & 0o077
        return folder.read(_NAME, _MAX_BYTES) if is_private else b""
    finally:
        folder.close()


def _open_folder(path: str) -> Directory:
    """The directory of the cache. Raises OSError, also if anybody else may write there."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    st = os.fstat(fd)
    if st.st_uid == os.geteuid() and not st.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Directory(fd, path)
    os.close(fd)
    raise PermissionError


def _write(path: str, blob: bytes) -> None:
    """Replace the cache file, as a whole or not at all. Raises OSError."""
    folder = _open_folder(path)
    try:
        folder.replace_shared(_NAME, blob, 0o600)
    finally:
        folder.close()
