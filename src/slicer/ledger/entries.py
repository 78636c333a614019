"""One file of the ledger: a lease or a ticket, flocked by its owner for as long as it counts.

The kernel is the garbage collector: an unlocked file is a dead owner's. Whether a file is locked can only be
told under the ledger's lock, for looking takes the lock for an instant.

An owner has its file open twice. One descriptor is flocked and can only read: the job inherits it, and must
not be able to change what its lease says. The other can write and stays with the owner, whose death is then
seen as the close of a writer: reading the ledger causes no such event.
"""

from __future__ import annotations

import errno
import os

from slicer import faults
from slicer.errors import StateError
from slicer.record import record
from slicer.state.directory import Directory, check_file, try_lock, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_BYTES = 1 << 20  # a name may be as long as an argument (128 KiB), and is escaped
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV)  # gone, a link, a socket


@record
class Entry:
    """What a file holds, and whether its owner still holds it."""

    data: bytes
    is_locked: bool


def create(folder: Directory, name: str, data: bytes) -> tuple[int, int]:
    """Make the file and keep it flocked. Raises StateError.

    Returns two descriptors: the one that is flocked, only to be read, and one to write.
    """
    path = f"{folder.path}/{name}"
    try:
        writer = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError as error:
        raise StateError(f"cannot be created: {error.strerror}", where=path) from error
    faults.point("ledger-created")
    try:
        fd = folder.open(name, os.O_RDONLY)
    except OSError as error:
        remove(folder, name)
        os.close(writer)
        raise StateError(f"cannot be read: {error.strerror}", where=path) from error
    try_lock(fd)
    faults.point("ledger-locked")
    try:
        write_all(writer, data)
    except OSError as error:
        remove(folder, name)
        os.close(fd)
        os.close(writer)
        raise StateError(f"cannot be written: {error.strerror}", where=path) from error
    faults.point("ledger-written")
    return fd, writer


def open_writer(folder: Directory, name: str) -> int:
    """A descriptor to write a file that is there. Raises StateError."""
    path = f"{folder.path}/{name}"
    try:
        fd = folder.open(name, os.O_WRONLY)
    except OSError as error:
        raise StateError(f"cannot be opened: {error.strerror}", where=path) from error
    try:
        check_file(fd, path)
    except StateError:
        os.close(fd)
        raise
    return fd


def write(spare: Spare, writer: int, data: bytes) -> None:
    """Replace a file's content. Raises StateError.

    The file has to stay the same one, for it is flocked. So the new content is first laid elsewhere: whoever
    finds the file half written takes that.
    """
    try:
        spare.lay(data)
        faults.point("ledger-laid-aside")
        write_all(writer, data)
        faults.point("ledger-half-written")
        os.ftruncate(writer, len(data))
    except OSError as error:
        raise StateError(f"cannot be written: {error.strerror}", where=spare.path) from error
    spare.remove()


class Spare:
    """What is being written of a job's lease, while it is. Not beside it: there it would wake who waits."""

    def __init__(self, base: Directory, job: str) -> None:
        self._base = base
        self._name = f"{job}.new"
        self.path = f"{base.path}/{self._name}"

    def lay(self, data: bytes) -> None:
        """Raises OSError."""
        self.remove()  # a killed writer's
        fd = self._base.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def read(self) -> bytes:
        """Nothing where there is none. Raises StateError where that cannot be told."""
        fd = _open(self._base, self._name)
        if fd is None:
            return b""
        try:
            check_file(fd, self.path)
            return os.read(fd, _MAX_BYTES)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Safe to repeat."""
        remove(self._base, self._name)


def read(folder: Directory, name: str, warn: Callable[[str], None]) -> Entry | None:
    """The file as it is; None when it is not to be considered (and, unless it is just gone, a warning).

    Raises StateError where it cannot be told whether it is to be considered.
    """
    path = f"{folder.path}/{name}"
    try:
        fd = folder.open(name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise StateError(f"cannot be read: {error.strerror}", where=path) from error
        warn(f"{path}: ignored: {error.strerror}")
        return None
    try:
        info = check_file(fd, path)
        entry = Entry(os.read(fd, min(info.st_size, _MAX_BYTES)), not try_lock(fd, shared=True))
    except StateError as error:
        warn(f"{path}: ignored: {error.message}")
        return None
    finally:
        os.close(fd)
    if not entry.data and not entry.is_locked:
        remove(folder, name)  # its owner was killed before the first byte
        return None
    return entry


def peek(folder: Directory, name: str) -> bytes:
    """The file's content, as far as it is written; nothing where it cannot be had. Takes no lock."""
    try:
        fd = folder.open(name, os.O_RDONLY)
    except OSError:
        return b""
    try:
        check_file(fd, name)
        return os.read(fd, _MAX_BYTES)
    except StateError:
        return b""
    finally:
        os.close(fd)


def is_held(folder: Directory, name: str) -> bool:
    """Whether the file is there and its owner alive. Raises StateError where that cannot be told."""
    fd = _open(folder, name)
    if fd is None:
        return False
    try:
        return not try_lock(fd, shared=True)
    finally:
        os.close(fd)


def _open(folder: Directory, name: str) -> int | None:
    """A descriptor to read a file; None where there is none. Raises StateError where that cannot be told."""
    try:
        return folder.open(name, os.O_RDONLY)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise StateError(f"cannot be read: {error.strerror}", where=f"{folder.path}/{name}") from error


def remove(folder: Directory, name: str) -> bool:
    """Unlink the file, if it is there; False when it cannot be removed."""
    try:
        folder.remove(name)  # gone already where somebody else found the owner dead first
    except OSError:
        return False  # no file at all
    return True
