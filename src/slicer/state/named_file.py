"""A file that a user names by a path: its place, and whether anybody else may change it.

A process that may write to a directory of the path can put another file or a link there at any moment. So the
path is walked once, by descriptors, and every operation on the file happens in the directory that was found.
"""

from __future__ import annotations

import os
import stat

from slicer.errors import StateError
from slicer.record import replace
from slicer.state.directory import LEDGER, MOST_LINKS, Directory, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_STREAMS = ("/dev/fd/", "/dev/std", "/proc/")  # files that are already open
RULES = replace(
    LEDGER, may_be_roots=True, is_sticky_safe=True, is_probed=False, is_closed=False,
    hint="name another one", writable_hint="", foreign="belongs to uid {uid}",
)  # fmt: skip


def names_open_file(path: str) -> bool:
    """Whether the path is one of the process's own descriptors, such as /dev/stdin."""
    return path.startswith(_STREAMS)


def hops(path: str) -> Iterator[str]:
    """Each name on the kernel's way to a file, with its directory free of links."""
    for _ in range(MOST_LINKS):
        folder, name = os.path.split(path)
        path = os.path.join(os.path.realpath(folder), name)
        yield path
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return


def open_named(path: str, flags: int, *, is_checked: bool) -> tuple[Directory, str, int]:
    """The directory of an existing file, its name there, and the file. Raises OSError, StateError.

    ``is_checked``: only a file that nobody but its reader and root can change or replace.
    """
    folder, name = find(path, RULES, is_checked=is_checked)
    try:
        fd = folder.open(name, flags)
    except BaseException:
        folder.close()
        raise
    try:
        if is_checked:
            _check_own(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        folder.close()
        raise
    return folder, name, fd


def open_own(path: str, flags: int) -> int:
    """A file that nobody but its reader and root can change or replace. Raises OSError, StateError."""
    if not names_open_file(path):
        folder, _, fd = open_named(path, flags, is_checked=True)
        folder.close()
        return fd
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):  # a pipe came from the process that started us
            _check_own(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_own(info: os.stat_result, path: str) -> None:
    if info.st_uid not in (0, os.geteuid()):
        raise StateError(RULES.foreign.format(uid=info.st_uid), where=path)
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        others = "everybody" if info.st_mode & stat.S_IWOTH else f"its group (gid {info.st_gid})"
        raise StateError(RULES.writable.format(others=others), where=path)
