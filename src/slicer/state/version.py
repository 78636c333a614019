"""A state directory whose version is not ours: made just now, left by an older slicer, or a newer one's.

Apart from :mod:`slicer.state.statedir`, because it happens once a boot. Everything here happens under the
lock that every version of slicer takes to change the ledger.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer.errors import StateError
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import signal, unblock_interrupts
from slicer.model import LEASE_VARIABLE
from slicer.state.directory import Directory
from slicer.state.statedir import VERSION, StateDir, open_lock, read_version, version_line

_MAX_BYTES = 1 << 20
_OWN = "set SLICER_STATE_DIR to a directory of your own"


def settle(directory: StateDir) -> None:
    """Make the directory one of this version, or raise StateError where jobs of another version are in it."""
    fd = open_lock(directory.base)
    try:
        _lock(fd)
        found = read_version(directory.base)
        if found != version_line():
            _refuse_newer(directory.base, found)
            _take_over(directory)
            _write_version(directory.base)
    finally:
        os.close(fd)  # and the lock with it


def _lock(fd: int) -> None:
    """Take the ledger's lock; whoever holds signals back can still be interrupted while waiting."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            unblock_interrupts()
            fcntl.flock(fd, fcntl.LOCK_EX)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _refuse_newer(base: Directory, found: bytes) -> None:
    text = found.strip()
    if not text:
        return  # older than versions, or its maker was killed before the first byte
    name = f"{base.path}/version"
    if not text.isdigit():
        raise StateError(f"is no version number: {text[:20]!r}", where=name, hint="remove it, or " + _OWN)
    if int(text) > VERSION:
        message = f"made by a newer slicer: version {int(text)}, this one knows {VERSION}"
        raise StateError(message, where=name, hint="update this slicer, or " + _OWN)


def _take_over(directory: StateDir) -> None:
    """Remove what an older slicer left behind. Raises StateError while any of it still counts."""
    entries = []
    for folder in (directory.leases, directory.tickets, directory.bells):
        try:
            entries += [(folder, name) for name in sorted(folder.names())]
        except OSError as error:
            raise _failed(folder.path, "read", error) from error
    for folder, name in entries:
        if _counts(folder, name):
            hint = f"wait until they have ended, or {_OWN}"
            where = f"{folder.path}/{name}"
            raise StateError("used by an older slicer whose jobs still run", where=where, hint=hint)
    for folder, name in entries:
        try:
            folder.unlink(name)
        except (FileNotFoundError, IsADirectoryError):
            continue  # its owner has just given it up; or nothing of ours
        except OSError as error:
            raise _failed(f"{folder.path}/{name}", "removed", error) from error


def _counts(folder: Directory, name: str) -> bool:
    """Whether the owner of a lease or a ticket lives, or the job of a lease."""
    try:
        fd = folder.open(name, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return False  # gone, or never an entry: a symbolic link, a socket
        raise _failed(f"{folder.path}/{name}", "read", error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        lines = os.read(fd, _MAX_BYTES).split(b"\n")
    finally:
        os.close(fd)
    # In every version so far a lease names its scope in this form, and its job in its own name.
    scopes = [os.fsdecode(line[7:]) for line in lines if line.startswith(b"CGROUP=/")]
    try:
        if any(map(cgroup.lives, scopes)):
            return True
    except OSError:
        return True  # it cannot be told: then it counts
    is_lease = any(line.startswith(b"SLICER_LEASE=") for line in lines)
    return is_lease and bool(proc.in_lease(LEASE_VARIABLE, name))


def _write_version(base: Directory) -> None:
    try:
        base.remove("version")
        fd = base.open("version", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, version_line())
        finally:
            os.close(fd)
    except OSError as error:
        raise _failed(f"{base.path}/version", "written", error) from error


def _failed(path: str, what: str, error: OSError) -> StateError:
    return StateError(f"cannot be {what}: {error.strerror}", where=path, hint=_OWN)
