"""One file of the ledger: a lease or a ticket, flocked by its owner for as long as it counts.

The kernel is the garbage collector: an unlocked file is a dead owner's. Whether a file is locked can only be
told under the ledger's lock, for looking takes the lock for an instant.
"""

from __future__ import annotations

import fcntl
import os
import stat

from slicer import faults
from slicer.errors import StateError
from slicer.record import record
from slicer.statedir import check_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_BYTES = 1 << 20  # a name may be as long as an argument (128 KiB), and is escaped
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@record
class Entry:
    """What a file holds, whom it belongs to, and whether its owner still holds it."""

    data: bytes
    uid: int
    is_locked: bool


def create(path: str, data: bytes) -> int:
    """Make the file and keep it flocked; returns the descriptor that does. Raises StateError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StateError(f"cannot be created: {error.strerror}", where=path) from error
    faults.point("ledger-created")
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        os.fchmod(fd, 0o644)  # whatever the umask: what others cannot read, they cannot respect
        faults.point("ledger-locked")
        write(fd, data, path)
        faults.point("ledger-written")
    except StateError:
        remove(path)
        os.close(fd)
        raise
    return fd


def write(fd: int, data: bytes, path: str) -> None:
    """Replace the file's content. Raises StateError."""
    try:
        os.pwrite(fd, data, 0)
        faults.point("ledger-half-written")
        os.ftruncate(fd, len(data))
    except OSError as error:
        raise StateError(f"cannot be written: {error.strerror}", where=path) from error


def read(path: str, warn: Callable[[str], None]) -> Entry | None:
    """The file as it is; None when it is not to be considered (and, unless it is just gone, a warning)."""
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        warn(f"{path}: ignored: {error.strerror}")
        return None
    try:
        info = check_file(fd, path)
        entry = Entry(os.read(fd, min(info.st_size, _MAX_BYTES)), info.st_uid, is_locked(fd))
    except StateError as error:
        warn(f"{path}: ignored: {error.message}")
        return None
    finally:
        os.close(fd)
    if not entry.data and not entry.is_locked:
        remove(path)  # its owner was killed before the first byte
        return None
    return entry


def peek(path: str) -> bytes:
    """The file's content, as far as it is written; nothing where it cannot be had. Takes no lock."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def is_held(path: str) -> bool:
    """Whether the file is there and its owner alive."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def is_locked(fd: int) -> bool:
    """Whether another open file description holds the flock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def remove(path: str) -> bool:
    """Unlink the file, if it is there; False when it cannot be removed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # somebody else found the owner dead first
    except OSError:
        return False  # another user's leftover in a sticky directory, or no file at all
    return True
