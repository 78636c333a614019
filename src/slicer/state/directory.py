"""A directory that is opened once. Everything in it is reached through its descriptor, not by its path.

A process that may write to a directory above can rename ours, and put another one or a link in its place, at
any moment. So no path is used twice. :class:`Rules` define what is safe for one purpose.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer.errors import StateError
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.errors import SlicerError

_WAY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# Root's on every Linux, so also where a user namespace does not show it.
_SYSTEMS = (
    "/", "/dev", "/dev/shm", "/home", "/run", "/run/lock", "/run/slicer.users", "/run/user", "/tmp", "/var",
    "/var/tmp",
)  # fmt: skip
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40  # the kernel's limit


@record
class Rules:
    """The allowed owners of a directory and its files, and others' allowed access; with the error texts."""

    may_be_roots: bool  # root may own it as well
    is_sticky_safe: bool  # others may write there if it is sticky: they cannot remove or replace ours
    is_probed: bool  # we must be able to write there
    is_closed: bool  # others must not even read it: such access is removed
    # The error texts, with names in braces to fill in.
    foreign: str  # {uid}
    writable: str  # {others}, {mode}
    no_directory: str
    no_file: str
    second_name: str
    hint: str
    writable_hint: str  # {path}
    full_hint: str  # if the disk is full
    file_hint: str


HINT = "set SLICER_STATE_DIR to a directory of your own"
LEDGER = Rules(
    may_be_roots=False,
    is_sticky_safe=False,
    is_probed=True,
    is_closed=True,  # whoever can open a file can lock it
    foreign="belongs to uid {uid}, not to you",
    writable="is writable by {others}",
    no_directory="is not a directory",
    no_file="is not a plain file with a single name",
    second_name="is not a plain file with a single name",
    hint=HINT,
    writable_hint=HINT,
    full_hint=HINT,
    file_hint="remove it",
)
_ABOVE_LEDGER = replace(
    LEDGER,
    may_be_roots=True,
    is_sticky_safe=True,
    is_probed=False,
    is_closed=False,
    foreign="belongs to uid {uid}, neither root nor you",
)


class Directory:
    """An open directory. ``path`` is its name in messages, ``rules`` apply to its contents."""

    def __init__(self, fd: int, path: str, rules: Rules = LEDGER) -> None:
        self.fd = fd
        self.path = path
        self.rules = rules

    @property
    def handle(self) -> str:
        """A path to this very directory, for system calls that accept no descriptor."""
        return f"/proc/self/fd/{self.fd}"

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a file in it. Follows no link and waits for nothing. Raises OSError."""
        return os.open(name, flags | _FILE, mode, dir_fd=self.fd)

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """As :meth:`open`, but only a file that obeys the rules. Raises OSError, StateError."""
        fd = self.open(name, flags, mode)
        try:
            check_file(fd, self._path_of(name), self.rules)
        except StateError:
            os.close(fd)
            raise
        return fd

    def read(self, name: str, most_bytes: int) -> bytes:
        """The beginning of a file; empty if there is none. Raises StateError."""
        try:
            fd = self.open_file(name, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise failed(self._path_of(name), error, self.rules) from error
        try:
            return os.read(fd, most_bytes)
        finally:
            os.close(fd)

    def open_lock(self) -> int:
        """Open the file "lock", which exists only to be flocked. It is made once. Raises StateError."""
        with failing(self._path_of("lock"), rules=self.rules):
            fd = self.open_file("lock", os.O_RDWR | os.O_CREAT)
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, 0o600)  # whoever can open it can hold it
        return fd

    def names(self) -> list[str]:
        """The names in it. Raises OSError, also if the directory itself was removed."""
        # Through the handle: listing the descriptor itself would move an offset that forked processes share.
        found = os.listdir(self.handle)
        if not found and not self.is_there():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def is_there(self) -> bool:
        """Whether the directory still exists, under any name."""
        return os.fstat(self.fd).st_nlink > 0

    def lstat(self, name: str) -> os.stat_result:
        """Raises OSError."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether the name exists, even as a broken link. Raises OSError."""
        try:
            self.lstat(name)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a name. Raises OSError."""
        os.unlink(name, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """As :meth:`unlink`, but the name need not exist. Raises OSError."""
        try:
            self.unlink(name)
        except FileNotFoundError:
            pass

    def rename(self, name: str, to: Directory, new: str) -> None:
        """Move a name, replacing any existing file. Raises OSError."""
        os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def replace(self, name: str, data: bytes, *, mode: int = 0o644, sync: bool = False) -> int:
        """Write a file with ``data``, whole or not at all; returns its descriptor. Raises OSError.

        Only one process at a time may do so; else use :meth:`replace_shared`. With ``sync`` the data is on
        the disk before it gets its name.
        """
        temporary = f"{name}.tmp"  # an existing one is a dead process's
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

    def replace_shared(
        self, name: str, data: bytes, mode: int = 0o666, settle: Callable[[int], None] = lambda fd: None
    ) -> None:
        """As :meth:`replace`, for several writers at once. Raises OSError, and whatever ``settle`` raises.

        ``settle`` gets the file's descriptor before the file gets its name.
        """
        temporary = f"{name}.{os.urandom(4).hex()}.tmp"
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                settle(fd)
            self.rename(temporary, self, name)
        except BaseException:
            self.unlink(temporary)
            raise

    def sync(self) -> None:
        """Write its names to the disk. Raises OSError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without support for it
                raise

    def make_fifo(self, name: str) -> None:
        """Create a FIFO that only its owner may use. Raises OSError."""
        os.mkfifo(name, 0o600, dir_fd=self.fd)

    def folder(self, name: str) -> Directory:
        """The directory of that name in it, created for us alone if it is missing. Raises StateError."""
        with failing(self._path_of(name), rules=self.rules):
            return Directory(_open_or_make(name, _OPEN, self.fd, 0o700), self._path_of(name), self.rules)

    def own_folder(self, name: str) -> Directory:
        """As :meth:`folder`, but only a directory that obeys the rules."""
        return _checked(self.folder(name))

    def open_folder(self, name: str) -> Directory:
        """The directory of that name in it, if it is one. Raises OSError."""
        return Directory(os.open(name, _OPEN, dir_fd=self.fd), self._path_of(name), self.rules)

    def check(self, rules: Rules | None = None) -> None:
        """Refuse a directory that breaks the rules (None: its own). Raises StateError."""
        rules = rules or self.rules
        info = os.fstat(self.fd)
        if not _is_owner_fine(info, rules):
            self._check_hidden_owner(info.st_uid, rules)
        if info.st_mode & _OTHERS_WRITE and not (rules.is_sticky_safe and info.st_mode & stat.S_ISVTX):
            others = "everybody" if info.st_mode & stat.S_IWOTH else f"its group (gid {info.st_gid})"
            said = rules.writable.format(others=others, mode=f"{stat.S_IMODE(info.st_mode):04o}")
            raise StateError(said, where=self.path, hint=rules.writable_hint.format(path=self.path))
        if rules.is_probed and not os.access(self.handle, os.W_OK | os.X_OK):
            raise StateError("is not writable for you", where=self.path, hint=rules.hint)
        if rules.is_closed and info.st_mode & 0o077:
            os.fchmod(self.fd, 0o700)

    def _check_hidden_owner(self, uid: int, rules: Rules) -> None:
        """Refuse it, unless it must be root's and a user namespace does not show that. Raises StateError."""
        from slicer.kernel.users import hidden_root

        why = ""
        if uid == hidden_root():
            if rules.may_be_roots and self.path in _SYSTEMS:
                return
            why = " (this user namespace does not show whose it is)"
        raise StateError(rules.foreign.format(uid=uid) + why, where=self.path, hint=rules.hint)

    def _path_of(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def close(self) -> None:
        """Close the descriptor. Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def check_file(fd: int, path: str, rules: Rules = LEDGER) -> os.stat_result:
    """Refuse anything but an ordinary file with one name (so no FIFO or hard link), and files of others.

    Raises StateError.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        problem = rules.no_file
    elif info.st_nlink > 1:
        problem = rules.second_name
    elif not _is_owner_fine(info, rules):
        problem = rules.foreign.format(uid=info.st_uid)
    else:
        return info
    raise StateError(problem, where=path, hint=rules.file_hint)


def _is_owner_fine(info: os.stat_result, rules: Rules) -> bool:
    return info.st_uid == os.geteuid() or (rules.may_be_roots and not info.st_uid)


def _checked(directory: Directory) -> Directory:
    try:
        directory.check()
    except BaseException:
        directory.close()
        raise
    return directory


def open_trusted(path: str) -> Directory:
    """Open an existing directory, checking each step of the way. Raises StateError.

    Every directory from "/" on has to belong to root or to us. Nobody else may write there, unless it is
    sticky.
    """
    walked, here = "/", Directory(os.open("/", _OPEN), "/", _ABOVE_LEDGER)
    try:
        here.check()
        for part in filter(None, os.path.realpath(path).split("/")):
            walked = f"{walked.rstrip('/')}/{part}"
            below = here.open_folder(part)
            here.close()
            here = below
            here.check()
    except OSError as error:
        here.close()
        raise failed(walked, error) from error
    except BaseException:
        here.close()
        raise
    return Directory(here.fd, path)


def open_or_make(path: str, rules: Rules) -> Directory:
    """The directory at ``path``, created if it is missing, and checked. Raises StateError.

    Directories above it may belong to anybody. A link on the way is followed only if it is ours or root's.
    """
    shown = os.path.abspath(path)
    with failing(shown, rules=rules):
        above, name = find(os.path.normpath(path), rules, makes=True, follows=False)
        try:
            return _checked(Directory(_open_or_make(name, _OPEN, above.fd, 0o755), shown, rules))
        finally:
            above.close()


def find(
    path: str, rules: Rules, *, makes: bool = False, is_checked: bool = False, follows: bool = True
) -> tuple[Directory, str]:
    """The directory (an O_PATH descriptor) of the file at a path, existing or not, and its name there.

    A link is followed if it is ours or root's; one at the end only with ``follows``. ``makes``: create
    missing directories. ``is_checked``: each directory from "/" on has to obey the rules. Raises OSError,
    StateError.
    """
    if is_checked and not path.startswith("/"):
        path = f"{os.getcwd()}/{path}"
    left = _steps(path)
    start = "/" if path.startswith("/") else "."
    here = Directory(os.open(start, _WAY | os.O_DIRECTORY), start, rules)
    links = 0
    try:
        while True:
            if is_checked:
                here.check()
            name = left.pop() if left else "."
            if not left and not follows:
                return here, name
            try:
                found = _open_or_make(name, _WAY, here.fd, 0o777) if makes else here.open(name, os.O_PATH)
            except FileNotFoundError:
                if left:
                    raise
                return here, name
            below, shown, info = found, here._path_of(name), os.fstat(found)
            if stat.S_ISLNK(info.st_mode):
                links += 1
                target = os.readlink("", dir_fd=found)
                os.close(found)
                if not _is_owner_fine(info, rules) or links > MOST_LINKS:
                    said = f"leads through {name}, a symbolic link of uid {info.st_uid}; not followed"
                    raise StateError(said, where=path, hint=rules.hint)
                left += _steps(target)
                if not target.startswith("/"):
                    continue
                below, shown = os.open("/", _WAY | os.O_DIRECTORY), "/"
            elif not left:
                os.close(found)
                return here, name
            here.close()
            here = Directory(below, shown, rules)
    except BaseException:
        here.close()
        raise


def _steps(path: str) -> list[str]:
    """The names of a path, the last first."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]


def _open_or_make(name: str, flags: int, above: int, mode: int) -> int:
    """Open a directory, created if it is missing. Raises OSError."""
    try:
        return os.open(name, flags, dir_fd=above)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, mode, dir_fd=above)
    except FileExistsError:
        pass  # created in the meantime
    fd = os.open(name, flags, dir_fd=above)
    info = os.fstat(fd)
    if info.st_uid == os.geteuid() and info.st_mode & 0o700 != 0o700 and not flags & os.O_PATH:
        os.fchmod(fd, mode)  # regardless of the umask
    return fd


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Flock an open file until it is closed; False if another open file description is in the way.

    Raises OSError.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_all(fd: int, data: bytes, offset: int = 0) -> None:
    """Write all of the data, from that place in the file on. Raises OSError."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)


class Failing:
    """Raises an OSError of the block as the error that ``error_of`` makes of it."""

    def __init__(self, error_of: Callable[[OSError], SlicerError]) -> None:
        self._error_of = error_of

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise self._error_of(error) from error


def failing(path: str, what: str = "cannot be used", rules: Rules = LEDGER) -> Failing:
    """Raise an OSError of the block as StateError."""
    return Failing(lambda error: failed(path, error, rules, what))


def failed(path: str, error: OSError, rules: Rules = LEDGER, what: str = "cannot be used") -> StateError:
    """The error to raise for a failed system call."""
    if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and os.path.islink(path)):
        return StateError("is a symbolic link; not followed", where=path, hint=rules.file_hint)
    if error.errno == errno.ENOTDIR:
        return StateError(rules.no_directory, where=path, hint=rules.hint)
    hint = rules.full_hint if error.errno in (errno.ENOSPC, errno.EDQUOT) else rules.hint
    if error.errno == errno.EROFS and rules is LEDGER:  # ProtectSystem=strict, as with DynamicUser=yes
        hint = f"in a unit, ReadWritePaths={os.path.dirname(path)} makes it writable; in a container, bind it"
    return StateError(f"{what}: {error.strerror}", where=path, hint=hint)
