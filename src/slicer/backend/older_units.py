"""What only older versions installed: files that made a group, and directories that it shared."""

from __future__ import annotations

import errno
import os
import stat

from slicer.backend.unit_files import Action, failed, is_ours, read
from slicer.record import record
from slicer.state.directory import Directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES = (
    ("lib/sysusers.d/slicer.conf", "group slicer, of an older version"),
    ("lib/tmpfiles.d/slicer.conf", "shared directories, of an older version"),
)
_GROUP = "slicer"
_SHARED = ("run/slicer", "var/lib/slicer")
_DEPTH = 2  # how deep older versions made directories in there: sim-4x24G/leases
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@record
class Outdated:
    """What only older versions had: files to take away, commands for the rest, and directories to close."""

    files: tuple[Action, ...]
    commands: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...]


def retired(top: str) -> tuple[Action, ...]:
    """The files that only older versions installed below a prefix."""
    return tuple(Action("", os.path.join(top, name), what) for name, what in _FILES)


def shared(root: str) -> tuple[str, ...]:
    """The directories that older versions shared with a group."""
    return tuple(os.path.join(root, path) for path in _SHARED)


def outdated(files: tuple[Action, ...], shared: tuple[str, ...], *, live: bool, force: bool) -> Outdated:
    """Which of these are there and are to go. Touches nothing.

    The group goes with the last of its files: one that somebody edited may still name it.
    """
    there = [(each, found) for each in files if (found := read(each.destination)) is not None]
    going = tuple(each for each, found in there if force or is_ours(found))
    has_group = not live or _has_group(_GROUP)
    commands = (("groupdel", _GROUP),) if going and len(going) == len(there) and has_group else ()
    return Outdated(going, commands, tuple(path for path in shared if live and _is_shared(path)))


def _has_group(name: str) -> bool:
    import grp

    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _is_shared(path: str) -> bool:
    """Whether it is a directory that a group may enter."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and not _is_roots_alone(info)


def _is_roots_alone(info: os.stat_result) -> bool:
    return info.st_uid == info.st_gid == 0 and not info.st_mode & _OTHERS_WRITE


def close(path: str) -> bool:
    """Make a directory root's alone, and those in it. Returns whether one of them was not.

    Each is opened before it is changed, and listed only then. So members of the group can neither exchange
    nor add anything meanwhile. Raises SlicerError.
    """
    parent, name = os.path.split(path)
    try:
        above = Directory(os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), parent)
    except FileNotFoundError:
        return False
    try:
        return any([_take_back(each) for each in _directories(above, name, _DEPTH)])
    except OSError as error:
        raise failed("closed", Action("", path, "a directory of older versions"), error) from error
    finally:
        above.close()


def _take_back(directory: Directory) -> bool:
    if _is_roots_alone(os.fstat(directory.fd)):
        return False
    os.fchown(directory.fd, 0, 0)
    os.fchmod(directory.fd, 0o700)
    return True


def _directories(above: Directory, name: str, depth: int) -> Iterator[Directory]:
    """The directory of that name and those in it, each open until the next one is asked for.

    What is no directory is left out, links too.
    """
    try:
        found = above.open_folder(name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return
        raise
    try:
        yield found
        for below in found.names() if depth else ():
            yield from _directories(found, below, depth - 1)
    finally:
        found.close()
