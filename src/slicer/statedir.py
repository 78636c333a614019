"""Where the ledger lives, and opening files there without trusting anybody else's.

``/run/slicer`` (made by tmpfiles.d, or by root here) is shared by the group ``slicer``; a user who is not
in it gets a private one under ``$XDG_RUNTIME_DIR``. All of these are RAM-backed and empty after a reboot.

Simulated GPUs (``SLICER_SIM``) have a directory of their own in there, of the same form and for the same
users: who asks for them never meets who asks for real ones.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from slicer.errors import StateError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    _T = TypeVar("_T")

SYSTEM_DIR = "/run/slicer"
GROUP = "slicer"
VERSION = 2  # of what is in the directory; a slicer touches none of another version
FOLDERS = ("leases", "tickets", "bells")
USAGE_FOLDER = "usage"  # of simulated GPUs, see slicer.simulation
_SHARED_MODE = 0o2770
_HINT = "set SLICER_STATE_DIR to a directory of your own"
_MAKING_S = 1.0  # how long another user may take from making a file to opening it to the group


@record
class StateDir:
    """``shared``: whether all users' jobs meet here, or only this user's."""

    path: str
    shared: bool


def locate(environ: Mapping[str, str], uid: int) -> StateDir:
    """The state directory for this user, created when missing.

    Raises StateError when none can be had, or when a slicer of another version uses it.
    """
    return _once_open(lambda: _locate(environ, uid))


def _locate(environ: Mapping[str, str], uid: int) -> StateDir:
    base, folder = _base(environ, uid), _simulated(environ)
    if not folder:
        return StateDir(_prepare(base, FOLDERS), base == SYSTEM_DIR)
    _make(base, base, None)
    folders = (*FOLDERS, USAGE_FOLDER)
    return StateDir(_prepare(f"{base}/{folder}", folders, _group_of(base)), base == SYSTEM_DIR)


def where(environ: Mapping[str, str], uid: int) -> str:
    """The path of this user's state directory, whether it is there or not.

    Raises StateError, and UsageError where SLICER_SIM makes no sense.
    """
    base, folder = _base(environ, uid), _simulated(environ)
    return f"{base}/{folder}" if folder else base


def _simulated(environ: Mapping[str, str]) -> str:
    """The name of the directory of simulated GPUs; "" where they are real. Raises UsageError."""
    text = environ.get("SLICER_SIM")
    if not text:
        return ""
    from slicer.simulation import canonical, parse_spec

    return f"sim-{canonical(parse_spec(text))}"


def _base(environ: Mapping[str, str], uid: int) -> str:
    chosen = environ.get("SLICER_STATE_DIR")
    if chosen:
        if not os.path.isabs(chosen):
            raise StateError("must be an absolute path", where=f"SLICER_STATE_DIR={chosen}", hint=_HINT)
        return chosen
    if uid == 0 or os.access(SYSTEM_DIR, os.W_OK | os.X_OK):
        return SYSTEM_DIR
    return _private(environ, uid)


def _private(environ: Mapping[str, str], uid: int) -> str:
    for base in (environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}"):
        if base and os.path.isdir(base):
            return f"{base}/slicer"
    # No login session (a container, cron): RAM-backed too, and checked for its owner like all others.
    return f"/dev/shm/slicer-{uid}"


def _prepare(path: str, folders: tuple[str, ...], group: int | None = None) -> str:
    for directory in (path, *(f"{path}/{folder}" for folder in folders)):
        _make(directory, path, group)
    if read_version(path) != version_line():
        from slicer import statedir_version

        statedir_version.settle(path)
    return path


def _make(directory: str, path: str, group: int | None) -> None:
    """Make a directory of the state directory ``path``, if it is missing, and check it.

    ``group``: whose members all may make and use it; None where none may.
    """
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise _unusable(directory, error) from error
    else:
        if path == SYSTEM_DIR and os.geteuid() == 0:
            _share(directory)
    if group is not None:
        _open_to(directory, group)
    _check_directory(directory, group)


def _group_of(base: str) -> int | None:
    """The group that shares a directory; None where it is one user's."""
    info = os.stat(base)
    return info.st_gid if info.st_mode & stat.S_IWGRP else None


def _open_to(directory: str, group: int) -> None:
    """Open it to the group. Not only when it is made: its maker may have been killed before this."""
    info = os.lstat(directory)
    is_mine = info.st_uid == os.geteuid() and stat.S_ISDIR(info.st_mode)
    if not is_mine or (info.st_gid, stat.S_IMODE(info.st_mode)) == (group, _SHARED_MODE):
        return
    try:
        os.chown(directory, -1, group)
        os.chmod(directory, _SHARED_MODE)
    except OSError as error:
        raise _unusable(directory, error) from error


def version_line() -> bytes:
    """What the file ``version`` in a state directory of this slicer says."""
    return b"%d\n" % VERSION


def read_version(path: str) -> bytes:
    """The beginning of the file ``version``; empty where there is none. Raises StateError."""
    name = f"{path}/version"
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _not_opened(name, error) from error
    try:
        check_file(fd, name)
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _share(directory: str) -> None:
    """Make it as tmpfiles.d would have, if the group is there. Others stay out: who can read can flock."""
    import grp

    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return  # root's alone, until `slicer install-units`
    os.chown(directory, 0, group)
    os.chmod(directory, _SHARED_MODE)


def _check_directory(directory: str, group: int | None) -> None:
    info = os.lstat(directory)
    if not stat.S_ISDIR(info.st_mode):
        raise StateError("is not a directory (a symbolic link is not followed)", where=directory, hint=_HINT)
    # Whoever shares what is around it can put anything there anyway.
    is_of_group = group is not None and info.st_gid == group
    if info.st_uid not in (0, os.geteuid()) and not is_of_group:
        raise StateError(f"belongs to uid {info.st_uid}, neither root nor you", where=directory, hint=_HINT)
    if info.st_mode & stat.S_IWOTH:
        raise StateError("is writable by everybody", where=directory, hint=_HINT)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StateError("is not writable for you", where=directory, hint=_HINT)


def _once_open(action: Callable[[], _T]) -> _T:
    """Do it, again for as long as another user is just making what it needs, and has yet to let us in."""
    deadline = time.monotonic() + _MAKING_S
    while True:
        try:
            return action()
        except StateError as error:
            if time.monotonic() >= deadline or not _is_being_made(error.where):
                raise
        time.sleep(0.01)


def _is_being_made(path: str) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    age_s = time.time() - info.st_ctime
    return info.st_uid != os.geteuid() and abs(age_s) < _MAKING_S


def _unusable(path: str, error: OSError) -> StateError:
    return StateError(f"cannot be used: {error.strerror}", where=path, hint=_HINT)


def _not_opened(path: str, error: OSError) -> StateError:
    if error.errno == errno.ELOOP:
        return StateError("is a symbolic link; not followed", where=path, hint="remove it")
    return _unusable(path, error)


def first_time(directory: StateDir, what: str) -> bool:
    """Whether this is the first call for ``what`` since the directory was made (a boot, mostly)."""
    try:
        os.close(os.open(f"{directory.path}/{what}", os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except OSError:
        return False
    return True


def check_file(fd: int, path: str) -> os.stat_result:
    """Refuse what is not an ordinary file with one name: a FIFO, a device, a hard link to elsewhere."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        raise StateError("is not a plain file with a single name", where=path, hint="remove it")
    return info


def open_lock(path: str) -> int:
    """Open (create once) a file that exists only to be flocked. Raises StateError."""
    return _once_open(lambda: _open_lock(path))


def _open_lock(path: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            # Not O_CREAT in one go: in a sticky directory that is refused for others' files, even for root.
            fd = os.open(path, flags | os.O_CREAT, 0o660)
    except OSError as error:
        raise _not_opened(path, error) from error
    try:
        info = check_file(fd, path)
    except StateError:
        os.close(fd)
        raise
    if info.st_uid == os.geteuid() and info.st_mode & 0o660 != 0o660:
        os.fchmod(fd, 0o660)  # whatever the umask: the directory decides who gets this far
    return fd
