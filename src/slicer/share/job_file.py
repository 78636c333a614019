"""A job's file in the state directory, through which slicer and the preloaded library exchange data.

It is created before the job's command starts, and removed after the outcome is written. Files left by killed
processes are swept when the next job's file is created.

A file is swept only if nobody can need it any more: its lease is gone, and no keeper holds it (a shared
flock). The library locks bytes of the file (open file description locks), which do not conflict with a flock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from slicer import faults
from slicer.errors import StateError
from slicer.share import layout
from slicer.share.environment import FOLDER, ShareOrder
from slicer.state.directory import Directory, failed, failing, try_lock, write_all
from slicer.state.statefile import is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.share.layout import JobFileText
    from slicer.state.statedir import StateDir

_MIB = 1 << 20
_FLOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, pid


def make(
    directory: StateDir, job: str, order: ShareOrder, gpus: tuple[str, ...], *,
    is_kept_by_driver: bool = False,
) -> None:  # fmt: skip
    """Create the job's file, and sweep those of dead jobs. ``gpus``: the lease's. Raises StateError."""
    folder = directory.base.own_folder(FOLDER)
    path = f"{folder.path}/{job}"
    try:
        sweep(folder, directory.leases)
        limit = order.limit_mib * _MIB
        noted = layout.NOTED_DRIVER_CAP if is_kept_by_driver else 0
        noted |= layout.NOTED_END if order.over_cap == "end" else 0
        both = tuple(dict.fromkeys((*order.outer_gpus, *gpus)))
        data = layout.new(job, order.wants, order.priority, both, limit, noted)
        _create(folder, job, data)
    except OSError as error:
        raise failed(path, error, what="cannot be created") from error
    except ValueError as error:
        raise StateError(f"cannot be created: {error}", where=path) from error
    finally:
        folder.close()
    faults.point("share-made")


def _create(folder: Directory, job: str, data: bytes) -> None:
    fd = folder.open(job, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.fchmod(fd, 0o600)  # whatever the umask
        _reserve(fd)
        write_all(fd, data)
    except BaseException:
        folder.remove(job)
        raise
    finally:
        os.close(fd)


def _reserve(fd: int) -> None:
    """Reserve its space. If a mapped page has none on a full disk, accessing it would kill the process."""
    try:
        os.posix_fallocate(fd, 0, layout.SIZE)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some file systems cannot reserve
            raise


def sweep(folder: Directory, leases: Directory) -> None:
    """Remove the files of jobs that are over. Raises OSError if the folder cannot be read."""
    for name in folder.names():
        if is_job_id(name) and not leases.has(name):
            _sweep_one(folder, name)


def _sweep_one(folder: Directory, name: str) -> None:
    """Remove a file that nobody holds. One that is not ours, or cannot be removed, does no harm."""
    try:
        fd = folder.open(name, os.O_RDONLY)
    except OSError:
        return
    try:
        if try_lock(fd):
            folder.remove(name)
    except OSError:
        return
    finally:
        os.close(fd)


def remove(directory: StateDir, job: str) -> None:
    """Remove the job's file, if there is one. Raises StateError."""
    try:
        folder = directory.base.open_folder(FOLDER)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(f"{directory.base.path}/{FOLDER}", error) from error
    try:
        folder.remove(job)
    except OSError as error:
        raise failed(f"{folder.path}/{job}", error, what="cannot be removed") from error
    finally:
        folder.close()


def jobs(directory: StateDir) -> tuple[str, ...]:
    """The jobs that have a file, perhaps including dead ones."""
    try:
        folder = directory.base.open_folder(FOLDER)
    except OSError:
        return ()
    try:
        return tuple(sorted(name for name in folder.names() if is_job_id(name)))
    except OSError:
        return ()
    finally:
        folder.close()


def is_locked(fd: int, at: int) -> bool:
    """Whether somebody holds the lock on this byte of the file. Raises OSError."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)


class JobFile:
    """One job's file, open. Raises StateError if it is missing or invalid."""

    def __init__(self, directory: StateDir, job: str) -> None:
        self._path = f"{directory.base.path}/{FOLDER}/{job}"
        self._job = job
        with failing(self._path):
            folder = directory.base.open_folder(FOLDER)
            try:
                self._fd = folder.open_file(job, os.O_RDWR)
            finally:
                folder.close()

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def hold(self) -> None:
        """Keep the file from being swept until it is closed here."""
        try:
            try_lock(self._fd, shared=True)
        except OSError:
            return  # the file system has no locks: then only the lease keeps it

    def read(self) -> JobFileText:
        return self._decoded(self._data())

    def charges(self) -> tuple[tuple[int, ...], int]:
        """The bytes charged to living processes on each GPU, and the number of these processes."""
        data = self._data()
        said = self._decoded(data)
        count = len(said.gpus)
        with failing(self._path):  # a living process holds a lock on the byte with its row's number
            rows = [row for row in range(said.rows) if is_locked(self._fd, row)]
        sums = [0] * count
        for row in rows:
            sums = [a + b for a, b in zip(sums, layout.charges(data, row, count), strict=True)]
        return tuple(sums), len(rows)

    def set_overhead(self, place: int, used: int) -> None:
        """Record how many bytes of a GPU are in use but charged to nobody."""
        self._write(layout.OFFSET_OVERHEAD + 8 * place, layout.number(used))

    def set_got_past(self) -> None:
        """Record that the job was seen to use more than its cap."""
        said = self.read()
        noted = layout.NOTED_GOT_PAST | (layout.NOTED_DRIVER_CAP if said.driver_cap else 0)
        noted |= layout.NOTED_END if said.over_cap == "end" else 0
        self._write(layout.OFFSET_NOTED, struct.pack("@I", noted))

    def _data(self) -> bytes:
        with failing(self._path, "cannot be read"):
            return os.pread(self._fd, layout.SIZE + 1, 0)

    def _decoded(self, data: bytes) -> JobFileText:
        try:
            found = layout.decode(data)
        except layout.DamagedFile as error:
            raise StateError(f"is damaged: {error}", where=self._path) from error
        if found.job != self._job:
            raise StateError("is damaged: it belongs to another job", where=self._path)
        return found

    def _write(self, offset: int, data: bytes) -> None:
        try:
            if os.fstat(self._fd).st_size == layout.SIZE:  # otherwise it was truncated, and would get a hole
                os.pwrite(self._fd, data, offset)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise failed(self._path, error, what="cannot be written") from error
