"""A state directory that is not of this version: it is new, or an older or a newer slicer has made it.

This happens once a boot, so it is apart from :mod:`slicer.state.statedir`. All of it is done under the lock
that every version of slicer takes to change the ledger.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer.errors import StateError
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import signal, unblock_interrupts
from slicer.state.directory import HINT, Directory, failed, try_lock

_MAX_BYTES = 1 << 20
_VERSION_BYTES = 64


def claim(base: Directory, folders: tuple[Directory, ...], ours: int) -> None:
    """Make the directory one of version ``ours``.

    Raises StateError where jobs of another version are in it, or where a newer slicer has used it.
    """
    fd = base.open_lock()
    try:
        _lock(fd)
        found = base.read("version", _VERSION_BYTES)
        if found != b"%d\n" % ours:
            _refuse_newer(base, found.strip(), ours)
            _remove_older(folders)
            _write_version(base, ours)
    finally:
        os.close(fd)  # and the lock with it


def _lock(fd: int) -> None:
    """Take the ledger's lock. A caller who holds signals back can still be interrupted while waiting."""
    if try_lock(fd):
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        unblock_interrupts()
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _refuse_newer(base: Directory, text: bytes, ours: int) -> None:
    if not text:
        return  # from before there were versions, or its maker was killed before it wrote the first byte
    name = f"{base.path}/version"
    if not text.isdigit():
        raise StateError(f"is no version number: {text[:20]!r}", where=name, hint="remove it, or " + HINT)
    if int(text) > ours:
        message = f"made by a newer slicer: version {int(text)}, this one knows {ours}"
        raise StateError(message, where=name, hint="update this slicer, or " + HINT)


def _remove_older(folders: tuple[Directory, ...]) -> None:
    """Remove what an older slicer left behind. Raises StateError while any of it still counts."""
    entries = []
    for folder in folders:
        try:
            entries += [(folder, name) for name in sorted(folder.names())]
        except OSError as error:
            raise failed(folder.path, error, what="cannot be read") from error
    for folder, name in entries:
        if _counts(folder, name):
            hint = f"wait until they have ended, or {HINT}"
            where = f"{folder.path}/{name}"
            raise StateError("used by an older slicer whose jobs still run", where=where, hint=hint)
    for folder, name in entries:
        try:
            folder.unlink(name)
        except (FileNotFoundError, IsADirectoryError):
            continue  # its owner has just given it up, or it is not slicer's
        except OSError as error:
            raise failed(f"{folder.path}/{name}", error, what="cannot be removed") from error


def _counts(folder: Directory, name: str) -> bool:
    """Whether the owner of a lease or ticket is alive, or the job of a lease."""
    try:
        fd = folder.open(name, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return False  # gone, or no entry at all: a symbolic link, a socket
        raise failed(f"{folder.path}/{name}", error, what="cannot be read") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        if not try_lock(fd, shared=True):
            return True
        lines = os.read(fd, _MAX_BYTES).split(b"\n")
    finally:
        os.close(fd)
    # In every version so far a lease has its scope in this form, and its file name is its job.
    scopes = [os.fsdecode(line[7:]) for line in lines if line.startswith(b"CGROUP=/")]
    try:
        if any(map(cgroup.lives, scopes)):
            return True
    except OSError:
        return True  # nobody can tell: then it counts
    is_lease = any(line.startswith(b"SLICER_LEASE=") for line in lines)
    return is_lease and bool(proc.in_lease(name))


def _write_version(base: Directory, ours: int) -> None:
    try:
        os.close(base.replace("version", b"%d\n" % ours, mode=0o600))
    except OSError as error:
        raise failed(f"{base.path}/version", error, what="cannot be written") from error
