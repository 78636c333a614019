"""One file of the ledger: a lease or a ticket, flocked by its owner for as long as it counts.

The kernel is the garbage collector: an unlocked file belongs to a dead owner. Probe a file's flock only under
the ledger's lock, because a probe takes the flock for an instant.

An owner has its file open twice. One descriptor is flocked and read-only: the job inherits it, and must not
be able to change its lease. The other is writable and stays with the owner, so that the owner's death closes
a writer. Readers of the ledger cause no such event.

Who runs inside a job joins its lease: a lock on the open file description, of which there may be many beside
the owner's flock. The lease counts while anybody has joined it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys

from slicer import faults
from slicer.errors import StateError
from slicer.record import record
from slicer.state.directory import Directory, check_file, failing, try_lock, write_all
from slicer.state.statefile import MOST_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV)  # a link, a socket
_FLOCK_BYTES = 32  # struct flock of fcntl(2), which begins with the type; zeros mean the whole file


@record
class FlockedFile:
    """A file's content, and whether its owner still holds the flock."""

    data: bytes
    is_locked: bool
    problem: str = ""  # why its content is not trusted
    is_joined: bool = False  # nested jobs hold it


def create(folder: Directory, name: str, data: bytes) -> tuple[int, int]:
    """Create the file and keep it flocked. Raises StateError.

    Returns two descriptors: a flocked one for reading, and one for writing.
    """
    path = f"{folder.path}/{name}"
    with failing(path, "cannot be created"):
        writer = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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


def unlisted(folder: Directory) -> tuple[int, int]:
    """A file like :func:`create`'s, but empty and without a name. Another process can inherit it already."""
    try:
        writer = folder.open(".", os.O_WRONLY | os.O_TMPFILE)
    except OSError:  # the folder is full, or cannot have such files
        writer = os.memfd_create("slicer-lease", os.MFD_CLOEXEC)
    fd = os.open(f"/proc/self/fd/{writer}", os.O_RDONLY | os.O_CLOEXEC)
    try_lock(fd)
    return fd, writer


def list_as(folder: Directory, name: str, writer: int, data: bytes) -> None:
    """Write an unlisted file, and give it its name. Raises StateError."""
    with failing(f"{folder.path}/{name}", "cannot be written"):
        write_all(writer, data)
        os.link(f"/proc/self/fd/{writer}", name, dst_dir_fd=folder.fd)


def write(spare: SpareCopy, writer: int, data: bytes) -> None:
    """Replace a file's content. Raises StateError.

    The file must remain the same, because it is flocked. So the new content is first written elsewhere. A
    reader takes it from there if it finds the file half written.
    """
    with failing(spare.path, "cannot be written"):
        spare.lay(data)
        faults.point("ledger-laid-aside")
        write_all(writer, data)
        faults.point("ledger-half-written")
        os.ftruncate(writer, len(data))
    spare.remove()


class SpareCopy:
    """The new text of a job's lease while it is written. Outside the leases' folder, to wake no leaders."""

    def __init__(self, base: Directory, job: str) -> None:
        self._base = base
        self._name = f"{job}.new"
        self.path = f"{base.path}/{self._name}"

    def lay(self, data: bytes) -> None:
        """Raises OSError."""
        self.remove()  # left by a killed writer
        fd = self._base.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def read(self) -> bytes:
        """The text; empty if there is none. Raises StateError if that cannot be determined."""
        fd = opened(self._base, self._name)
        if fd is None:
            return b""
        try:
            check_file(fd, self.path)
            return os.read(fd, MOST_BYTES)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the copy, if there is one."""
        remove(self._base, self._name)


def read(folder: Directory, name: str, warn: Callable[[str], None]) -> FlockedFile | None:
    """The file's present content; None if it does not count (with a warning, unless it was just removed).

    Raises StateError if that cannot be determined.
    """
    path, fd = f"{folder.path}/{name}", opened(folder, name, warn)
    if fd is None:
        return None
    try:
        entry = _entry(fd, path)
    finally:
        os.close(fd)
    if entry.problem and not entry.is_locked:
        warn(f"{path}: ignored: {entry.problem}")
        return None
    if not entry.data and not entry.is_locked:
        remove(folder, name)  # the owner was killed before it wrote the first byte
        return None
    return entry


def _entry(fd: int, path: str) -> FlockedFile:
    info = os.fstat(fd)
    try:
        check_file(fd, path)
    except StateError as error:
        is_own_file = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
        return FlockedFile(b"", is_own_file and not try_lock(fd, shared=True), error.message)
    data, is_locked = os.read(fd, min(info.st_size, MOST_BYTES)), not try_lock(fd, shared=True)
    return FlockedFile(data, is_locked, is_joined=not is_locked and is_joined(fd))


def join(fd: int) -> None:
    """Hold an open file beside its owner. Call it under the ledger's lock. Raises OSError.

    The hold ends with :func:`part`, or when the last process that inherited the descriptor has closed it.
    """
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_RDLCK))


def part(fd: int) -> None:
    """Undo :func:`join`, also for the processes that inherited the descriptor."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK))


def is_joined(fd: int) -> bool:
    """Whether anybody has joined the file through another open file description."""
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without these locks: nobody can have joined
            raise
        return False
    return found[:2] != _flock(fcntl.F_UNLCK)[:2]


def _flock(kind: int) -> bytes:
    return kind.to_bytes(2, sys.byteorder).ljust(_FLOCK_BYTES, b"\0")


def is_held(folder: Directory, name: str) -> bool:
    """Whether the file exists and its owner is alive. Raises StateError if that cannot be determined."""
    fd = opened(folder, name)
    if fd is None:
        return False
    try:
        return not try_lock(fd, shared=True)
    finally:
        os.close(fd)


def opened(folder: Directory, name: str, warn: Callable[[str], None] = lambda _: None) -> int | None:
    """A descriptor to read a file; None if there is none (with a warning, if there is something else).

    Raises StateError if that cannot be determined.
    """
    path = f"{folder.path}/{name}"
    try:
        return folder.open(name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise StateError(f"cannot be read: {error.strerror}", where=path) from error
        warn(f"{path}: ignored: {error.strerror}")
        return None


def remove(folder: Directory, name: str) -> bool:
    """Unlink the file, if it exists; False if it cannot be removed."""
    try:
        folder.remove(name)  # it may not exist: another process has found the owner dead, too
    except OSError:
        return False  # it is not a file
    return True
