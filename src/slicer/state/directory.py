"""A directory that is opened once. Everything in it is reached through its descriptor, not by its path.

So nobody can exchange what lies behind the path between a check and its use. A directory counts as safe when
nobody but root and its owner can put something there or take something away, and neither can anybody in the
directories above it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer.errors import StateError

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
HINT = "set SLICER_STATE_DIR to a directory of your own"


class Directory:
    """An open directory. ``path`` is how messages call it."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    @property
    def handle(self) -> str:
        """A path that leads to this very directory, for system calls that know no descriptor of one."""
        return f"/proc/self/fd/{self.fd}"

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a file in it. Links are not followed, and nothing is waited for. Raises OSError."""
        return os.open(name, flags | _FILE, mode, dir_fd=self.fd)

    def read(self, name: str, most_bytes: int) -> bytes:
        """The beginning of a plain file of ours; empty where there is none. Raises StateError."""
        path = f"{self.path}/{name}"
        try:
            fd = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failed(path, error) from error
        try:
            check_file(fd, path)
            return os.read(fd, most_bytes)
        finally:
            os.close(fd)

    def open_lock(self) -> int:
        """Open (create once) the file "lock", which exists only to be flocked. Raises StateError."""
        path = f"{self.path}/lock"
        try:
            fd = self.open("lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise failed(path, error) from error
        try:
            if check_file(fd, path).st_mode & 0o077:
                os.fchmod(fd, 0o600)  # who can open it can hold it
        except StateError:
            os.close(fd)
            raise
        return fd

    def names(self) -> list[str]:
        """What lies in it. Raises OSError, also where the directory itself was removed."""
        # By the handle: a listing of the descriptor itself would move an offset that forked processes share.
        found = os.listdir(self.handle)
        if not found and not os.fstat(self.fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def has(self, name: str) -> bool:
        """Whether there is something of that name, if only a link to nowhere."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a name. Raises OSError."""
        os.unlink(name, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """As :meth:`unlink`, but it need not be there. Raises OSError."""
        try:
            self.unlink(name)
        except FileNotFoundError:
            pass

    def rename(self, name: str, to: Directory, new: str) -> None:
        """Move a name, in place of what is there. Raises OSError."""
        os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def make_fifo(self, name: str) -> None:
        """Make a FIFO that is its owner's alone. Raises OSError."""
        os.mkfifo(name, 0o600, dir_fd=self.fd)

    def folder(self, name: str) -> Directory:
        """The directory of that name in it, made for us alone where it is missing. Raises StateError."""
        try:
            try:
                return self.open_folder(name)
            except FileNotFoundError:
                return self._make(name)
        except OSError as error:
            raise failed(f"{self.path}/{name}", error) from error

    def open_folder(self, name: str) -> Directory:
        """The directory of that name in it, if it is one. Raises OSError."""
        return Directory(os.open(name, _OPEN, dir_fd=self.fd), f"{self.path.rstrip('/')}/{name}")

    def _make(self, name: str) -> Directory:
        try:
            os.mkdir(name, 0o700, dir_fd=self.fd)
        except FileExistsError:
            pass  # made meanwhile
        made = self.open_folder(name)
        info = os.fstat(made.fd)
        if info.st_uid == os.geteuid() and info.st_mode & 0o700 != 0o700:
            os.fchmod(made.fd, 0o700)  # whatever the umask
        return made

    def close(self) -> None:
        """Give up the descriptor."""
        os.close(self.fd)


def check_own(directory: Directory, *, closed: bool) -> None:
    """Refuse a directory that is not ours alone to write. Raises StateError.

    ``closed``: nor may anybody else look into it, for whoever can open a file can lock it. What can only be
    read so far is closed here; what somebody could write may hold anything.
    """
    info = os.fstat(directory.fd)
    if info.st_uid != os.geteuid():
        raise StateError(f"belongs to uid {info.st_uid}, not to you", where=directory.path, hint=HINT)
    if info.st_mode & _OTHERS_WRITE:
        raise StateError(f"is writable by {_others(info)}", where=directory.path, hint=HINT)
    if not os.access(directory.handle, os.W_OK | os.X_OK):
        raise StateError("is not writable for you", where=directory.path, hint=HINT)
    if closed and info.st_mode & 0o077:
        os.fchmod(directory.fd, 0o700)


def open_trusted(path: str) -> Directory:
    """Open a directory that is there, each step of the way checked. Raises StateError.

    Every directory from "/" on has to belong to root or to us, and nobody else may write there, except in a
    sticky one (as /tmp), where nobody else can take away or exchange what is ours.
    """
    real = os.path.realpath(path)
    fd = os.open("/", _OPEN)
    walked = ""
    try:
        _check_above(fd, "/")
        for part in real.split("/")[1:]:
            if not part:
                continue
            walked += f"/{part}"
            try:
                below = os.open(part, _OPEN, dir_fd=fd)
            except OSError as error:
                raise failed(walked, error) from error
            os.close(fd)
            fd = below
            _check_above(fd, walked)
    except BaseException:
        os.close(fd)
        raise
    return Directory(fd, path)


def _check_above(fd: int, path: str) -> None:
    info = os.fstat(fd)
    if info.st_uid not in (0, os.geteuid()):
        raise StateError(f"belongs to uid {info.st_uid}, neither root nor you", where=path, hint=HINT)
    if info.st_mode & _OTHERS_WRITE and not info.st_mode & stat.S_ISVTX:
        raise StateError(f"is writable by {_others(info)}", where=path, hint=HINT)


def _others(info: os.stat_result) -> str:
    return "everybody" if info.st_mode & stat.S_IWOTH else f"its group (gid {info.st_gid})"


def check_file(fd: int, path: str) -> os.stat_result:
    """Refuse what is not an ordinary file of ours with one name: a FIFO, a device, a hard link to elsewhere.

    Raises StateError.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        raise StateError("is not a plain file with a single name", where=path, hint="remove it")
    if info.st_uid != os.geteuid():
        raise StateError(f"belongs to uid {info.st_uid}, not to you", where=path, hint="remove it")
    return info


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Flock an open file until it is closed; False where another open file description is in the way.

    Raises OSError.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_all(fd: int, data: bytes, offset: int = 0) -> None:
    """Write all of it from that place in the file on. Raises OSError."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)


def failed(path: str, error: OSError) -> StateError:
    """What to raise where a path cannot be opened."""
    if error.errno == errno.ELOOP:
        return StateError("is a symbolic link; not followed", where=path, hint="remove it")
    if error.errno == errno.ENOTDIR:
        if os.path.islink(path):
            return StateError("is a symbolic link; not followed", where=path, hint="remove it")
        return StateError("is not a directory", where=path, hint=HINT)
    return StateError(f"cannot be used: {error.strerror}", where=path, hint=HINT)
