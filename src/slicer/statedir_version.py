"""A state directory whose version is not ours: made just now, left by an older slicer, or a newer one's.

Apart from :mod:`slicer.statedir`, because it happens once a boot. Everything here happens under the lock
that every version of slicer takes to change the ledger.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer import cgroup, proc
from slicer.errors import StateError
from slicer.model import LEASE_VARIABLE
from slicer.signals import let_go, signal
from slicer.statedir import FOLDERS, VERSION, open_lock, read_version, version_line

_MAX_BYTES = 1 << 20
_OWN = "set SLICER_STATE_DIR to a directory of your own"


def settle(path: str) -> None:
    """Make the directory one of this version, or raise StateError where jobs of another version are in it."""
    fd = open_lock(f"{path}/lock")
    try:
        _lock(fd)
        found = read_version(path)
        if found != version_line():
            _refuse_newer(path, found)
            _take_over(path)
            _write_version(path)
    finally:
        os.close(fd)  # and the lock with it


def _lock(fd: int) -> None:
    """Take the ledger's lock; whoever holds signals back can still be interrupted while waiting."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            let_go()
            fcntl.flock(fd, fcntl.LOCK_EX)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _refuse_newer(path: str, found: bytes) -> None:
    text = found.strip()
    if not text:
        return  # older than versions, or its maker was killed before the first byte
    name = f"{path}/version"
    if not text.isdigit():
        raise StateError(f"is no version number: {text[:20]!r}", where=name, hint="remove it, or " + _OWN)
    if int(text) > VERSION:
        message = f"made by a newer slicer: version {int(text)}, this one knows {VERSION}"
        raise StateError(message, where=name, hint="update this slicer, or " + _OWN)


def _take_over(path: str) -> None:
    """Remove what an older slicer left behind. Raises StateError while any of it still counts."""
    entries = []
    for folder in FOLDERS:
        base = f"{path}/{folder}"
        try:
            entries += [f"{base}/{name}" for name in sorted(os.listdir(base))]
        except OSError as error:
            raise _failed(base, "read", error) from error
    for entry in entries:
        if _counts(entry):
            hint = f"wait until they have ended, or {_OWN}"
            raise StateError("used by an older slicer whose jobs still run", where=entry, hint=hint)
    for entry in entries:
        try:
            if not stat.S_ISDIR(os.lstat(entry).st_mode):
                os.unlink(entry)
        except FileNotFoundError:
            continue  # its owner has just given it up
        except OSError as error:
            raise _failed(entry, "removed", error) from error


def _counts(entry: str) -> bool:
    """Whether the owner of a lease or a ticket lives, or the job of a lease."""
    try:
        fd = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return False  # gone, or never an entry: a symbolic link, a socket
        raise _failed(entry, "read", error) from error
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
    if any(cgroup.populated(cgroup.path_of(scope)) for scope in scopes):
        return True
    is_lease = any(line.startswith(b"SLICER_LEASE=") for line in lines)
    return is_lease and bool(proc.in_lease(LEASE_VARIABLE, os.path.basename(entry)))


def _write_version(path: str) -> None:
    name = f"{path}/version"
    try:
        if os.path.lexists(name):
            os.unlink(name)  # another user's perhaps, which we may replace but not write
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)  # whatever the umask: who may come here must be able to read it
            os.write(fd, version_line())
        finally:
            os.close(fd)
    except OSError as error:
        raise _failed(name, "written", error) from error


def _failed(path: str, what: str, error: OSError) -> StateError:
    return StateError(f"cannot be {what}: {error.strerror}", where=path, hint=_OWN)
