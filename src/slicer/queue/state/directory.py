"""A directory that is checked once, when it is opened, and from then on used through its descriptor.

Whoever may write to a directory above can rename ours and put another one, or a link, in its place at any
moment. So no path is used twice. A link on the way is only followed if it is ours or root's. The directory
itself must be ours or root's, and nobody else may write to it; what lies above it may be anybody's.
"""

from __future__ import annotations

import errno
import os
import stat

from slicer.errors import StateError
from slicer.state.directory import Directory, write_all

HINT = "choose another one with --log-dir"
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ITSELF = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # as the kernel follows


class OwnDirectory(Directory):
    """``fd`` stays the same directory, whatever has its name by now."""

    @classmethod
    def at(cls, path: str) -> OwnDirectory:
        """The directory at ``path``, made where it is missing. Raises StateError."""
        shown = os.path.abspath(path)
        try:
            above, name = _way(os.path.normpath(path))
            try:
                return cls(_opened(name, above, shown, 0o755), shown)
            finally:
                os.close(above)
        except OSError as error:
            raise failed("cannot be used", shown, error) from error

    def below(self, name: str) -> OwnDirectory:
        """A directory in this one, made where it is missing, for us alone. Raises StateError."""
        path = f"{self.path}/{name}"
        try:
            return OwnDirectory(_opened(name, self.fd, path, 0o700), path)
        except OSError as error:
            raise failed("cannot be used", path, error) from error

    def is_there(self) -> bool:
        """Whether the directory still exists, under whatever name."""
        return os.fstat(self.fd).st_nlink > 0

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A regular file in it, and no link. Raises OSError, and StateError where something else is there."""
        fd = self.open(name, flags, mode)
        info = os.fstat(fd)
        what = ""
        if not stat.S_ISREG(info.st_mode):
            what = "is not a regular file"
        elif info.st_uid not in (0, os.geteuid()):
            what = f"belongs to uid {info.st_uid}"
        elif info.st_nlink > 1:
            what = "has a second name (a hard link)"
        if not what:
            return fd
        os.close(fd)
        raise StateError(what, where=f"{self.path}/{name}", hint=f"remove it, or {HINT}")

    def lstat(self, name: str) -> os.stat_result:
        """Raises OSError."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def replace(self, name: str, data: bytes, *, mode: int = 0o644, sync: bool = False) -> int:
        """Put a file with ``data`` there, whole or not at all; its descriptor. Raises OSError.

        Only one process at a time may do so. With ``sync`` the data is on the disk before it has its name.
        """
        temporary = f"{name}.tmp"  # one that is there is a dead queue's
        self.remove(temporary)
        fd = self.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            write_all(fd, data)
            if sync:
                os.fsync(fd)
            self.rename(temporary, self, name)
        except BaseException:
            os.close(fd)
            self.remove(temporary)
            raise
        return fd

    def sync(self) -> None:
        """Have the names in it on the disk. Raises OSError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that knows no such thing
                raise

    def close(self) -> None:
        """Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def failed(what: str, path: str, error: OSError) -> StateError:
    """What to tell people of an error of the system."""
    if error.errno == errno.ELOOP:
        return StateError("is a symbolic link; not followed", where=path, hint=f"remove it, or {HINT}")
    hint = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else HINT
    return StateError(f"{what}: {error.strerror}", where=path, hint=hint)


def _way(path: str) -> tuple[int, str]:
    """The directory above the path's last name (an O_PATH descriptor), and that name. Raises OSError."""
    *parts, last = path.strip("/").split("/")
    left = parts[::-1]
    links = 0
    fd = os.open("/" if path.startswith("/") else ".", _WAY)
    try:
        while left:
            name = left.pop() or "."
            found = _open_or_make(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, fd, 0o777)
            info = os.fstat(found)
            if stat.S_ISLNK(info.st_mode):
                links += 1
                target = os.readlink("", dir_fd=found)
                os.close(found)
                if info.st_uid not in (0, os.geteuid()) or links > _MOST_LINKS:
                    raise StateError(
                        f"leads through {name}, a symbolic link of uid {info.st_uid}; not followed",
                        where=path, hint=HINT,
                    )  # fmt: skip
                left += target.split("/")[::-1]
                found = os.open("/", _WAY) if target.startswith("/") else os.dup(fd)
            os.close(fd)
            fd = found
        return fd, last or "."
    except BaseException:
        os.close(fd)
        raise


def _open_or_make(name: str, flags: int, above: int, mode: int) -> int:
    """Raises OSError."""
    try:
        return os.open(name, flags, dir_fd=above)
    except FileNotFoundError:
        os.mkdir(name, mode, dir_fd=above)
        return os.open(name, flags, dir_fd=above)


def _opened(name: str, above: int, path: str, mode: int) -> int:
    """The directory of that name, made where it is missing, and checked. Raises OSError, StateError."""
    try:
        fd = _open_or_make(name, _ITSELF, above, mode)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    info = os.fstat(fd)
    if info.st_uid not in (0, os.geteuid()):
        what, hint = f"belongs to uid {info.st_uid}", HINT
    elif info.st_mode & _OTHERS:
        what = f"can be written to by others (mode {stat.S_IMODE(info.st_mode):04o})"
        hint = f"chmod go-w {path}, or {HINT}"
    else:
        return fd
    os.close(fd)
    raise StateError(what, where=path, hint=hint)
