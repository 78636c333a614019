"""Examines a program and its surroundings. Changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator

from slicer.kernel.users import is_private_group
from slicer.state.directory import LEDGER, Directory
from slicer.state.named_file import hops
from slicer.wrap import dpkg, shim
from slicer.wrap.terms import (
    ABSENT,
    NOBODY,
    STORES,
    SUFFIX,
    Ancestor,
    FileState,
    SeenKind,
    Site,
    Tool,
    WrapError,
    WrapRefused,
)

_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # needs no permission to list it
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HEAD_BYTES = 256
_LAUNCHED = "slicer-python"  # the script that slicer executes if slicer itself is a C program


def canonical(path: str) -> str:
    """The path without links, except that its last name may be one. Raises WrapRefused."""
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        raise WrapRefused("names a directory, not a program", where=path)
    return os.path.join(os.path.realpath(folder or "."), name)


def named(text: str) -> str:
    """The program that a person names: by a path, or by a name on PATH. Raises WrapRefused."""
    found = text if "/" in text else shutil.which(text)
    if found is None:
        raise WrapRefused("no program on PATH has this name", where=text, hint="give its path")
    return canonical(found)


def open_folder(path: str, *, lists: bool = True) -> tuple[Directory, tuple[Ancestor, ...]]:
    """Open a directory step by step from "/", and report each step. Raises WrapRefused.

    Without ``lists``, not even permission to list it is needed, but its names cannot be synced.
    """
    walked, way = "/", []
    fd = os.open("/", _WAY)
    try:
        way.append(_ancestor(fd, "/"))
        for part in filter(None, path.split("/")):
            walked = f"{walked.rstrip('/')}/{part}"
            below = os.open(part, _WAY, dir_fd=fd)
            os.close(fd)
            fd = below
            way.append(_ancestor(fd, walked))
        opened = os.open(".", _OPEN, dir_fd=fd) if lists else os.dup(fd)
        os.close(fd)
    except OSError as error:
        os.close(fd)
        raise WrapRefused(f"cannot be opened: {error.strerror}", where=walked) from error
    return Directory(opened, path, LEDGER), tuple(way)


def _ancestor(fd: int, path: str) -> Ancestor:
    info = os.fstat(fd)
    return Ancestor(path, info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode), is_private_group(info.st_gid))


def site(folder: Directory, way: tuple[Ancestor, ...], path: str, *, asks_dpkg: bool) -> Site:
    """Everything about a program in an open directory. Raises WrapError."""
    name = os.path.basename(path)
    bin = seen(folder, name)
    end_path = os.path.realpath(path) if bin.kind == "link" else path
    stem = name.removesuffix(SUFFIX)
    is_behind = stem and stem != name and seen(folder, stem).kind == "shim"
    return Site(
        path=path, real_path=f"{path}{SUFFIX}", way=way,
        is_writable=os.access(folder.handle, os.W_OK | os.X_OK),
        is_read_only=bool(os.fstatvfs(folder.fd).f_flag & os.ST_RDONLY),
        bin=bin, real=seen(folder, f"{name}{SUFFIX}"),
        end=_end(end_path) if bin.kind == "link" else bin, end_path=end_path,
        shimmed=os.path.join(os.path.dirname(path), stem) if is_behind else "",
        owner=dpkg.owner(path) if asks_dpkg and bin.kind != "absent" else NOBODY,
        diversions=dpkg.diversions(dpkg.aliases(path)) if asks_dpkg else (),
    )  # fmt: skip


def seen(folder: Directory, name: str) -> FileState:
    """What has this name in the directory. Raises WrapError."""
    try:
        info = folder.lstat(name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return ABSENT
        where = os.path.join(folder.path, name)
        raise WrapError(f"cannot be examined: {error.strerror}", where=where) from error
    if stat.S_ISLNK(info.st_mode):
        target = os.fsencode(os.readlink(name, dir_fd=folder.fd))
        return _seen("link", info, target)
    if not stat.S_ISREG(info.st_mode):
        return _seen("directory" if stat.S_ISDIR(info.st_mode) else "other", info, b"")
    return _of_file(folder, name, info)


def _of_file(folder: Directory, name: str, info: os.stat_result) -> FileState:
    """Read a file only as far as needed to recognise a shim or a script."""
    try:
        fd = folder.open(name, os.O_RDONLY)
    except OSError:  # it may be executable but not readable
        return _seen("file", info, b"")
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return _seen("other", info, b"")
        head = os.read(fd, _HEAD_BYTES)
        if shim.is_shim(head):
            return _seen("shim", info, head + os.read(fd, shim.MOST_BYTES))
        return _seen("file", info, head, _attributes(fd))
    finally:
        os.close(fd)


def _seen(kind: SeenKind, info: os.stat_result, head: bytes, attributes: tuple[str, ...] = ()) -> FileState:
    return FileState(
        kind=kind, dev=info.st_dev, ino=info.st_ino, size=info.st_size, mtime_ns=info.st_mtime_ns,
        uid=info.st_uid, gid=info.st_gid, mode=stat.S_IMODE(info.st_mode), head=head,
        has_capabilities="security.capability" in attributes,
        has_acl="system.posix_acl_access" in attributes,
    )  # fmt: skip


def _attributes(fd: int) -> tuple[str, ...]:
    try:
        return tuple(os.listxattr(fd))
    except OSError:  # the file system has no attributes
        return ()


def _end(path: str) -> FileState:
    """The file to which a link leads in the end."""
    try:
        folder = Directory(os.open(os.path.dirname(path), _WAY), os.path.dirname(path))
    except OSError:
        return ABSENT
    try:
        return seen(folder, os.path.basename(path))
    finally:
        folder.close()


def own_path(argv0: str) -> str:
    """The running slicer's path, as it was called (a link stays one). Raises WrapRefused.

    An upgrade removes a path in the store of Nix or Guix, and then no shim could call it. A link to it in
    PATH leads to the next version.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "slicer")
    for path in (argv0 if os.path.basename(argv0) == "slicer" else "", beside, shutil.which("slicer") or ""):
        if path and os.access(path, os.X_OK):
            path = os.path.abspath(path)
            return path if not path.startswith(STORES) else _lasting(path)
    hint = "add --slicer PATH"
    raise WrapRefused("the path of this slicer is unknown", where=argv0, hint=hint)


def _lasting(path: str) -> str:
    """The entry in PATH that leads to a program in a store. Raises WrapRefused."""
    for folder in os.environ.get("PATH", "").split(":"):
        found = os.path.join(folder, os.path.basename(path))
        is_lasting = folder.startswith("/") and not found.startswith(STORES)
        if is_lasting and os.path.realpath(found) == os.path.realpath(path):
            return found
    message = "the next version will have another path, and nothing in PATH leads to this one"
    hint = "install slicer into a profile, or add --slicer PATH"
    raise WrapRefused(message, where=path, hint=hint)


def tool(path: str) -> Tool:
    """The slicer for a shim to call, and the files that its start involves."""
    names = [(hop, "slicer itself") for hop in hops(path)]
    script = os.path.realpath(path)
    launched = os.path.join(os.path.dirname(script), _LAUNCHED)
    if not _first_line(script).startswith(b"#!") and os.path.isfile(launched):
        names += [(hop, "slicer itself") for hop in hops(launched)]
        script = launched
    for program in _interpreter(script):
        names += [(hop, "what slicer runs on") for hop in hops(program)]
    way: dict[str, Ancestor] = {}
    for folder in dict.fromkeys(os.path.dirname(hop) for hop, _ in names):
        way |= {each.path: each for each in _way(folder)}
    way |= {each.path: each for each in _files([hop for hop, _ in names])}
    names += [(hop, "the shell of shims") for hop in hops(shim.INTERPRETER)]
    return Tool(
        path=path, is_executable=os.access(path, os.X_OK) and os.path.isfile(path), names=tuple(names),
        way=tuple(way.values()), is_for_all=all(each.mode & 0o001 for each in way.values()),
    )  # fmt: skip


def _interpreter(path: str) -> tuple[str, ...]:
    """The programs in the first line of a script: the interpreter, and the one that env(1) finds."""
    line = _first_line(path)
    words = os.fsdecode(line[2:]).split()
    if not line.startswith(b"#!") or not words:
        return ()
    found = [words[0]]
    if os.path.basename(words[0]) == "env":
        program = next((word for word in words[1:] if not word.startswith("-")), "")
        found += filter(None, [shutil.which(program)])
    return tuple(found)


def _first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.readline(_HEAD_BYTES)
    except OSError:
        return b""


def _way(path: str) -> tuple[Ancestor, ...]:
    try:
        folder, way = open_folder(path, lists=False)
    except WrapRefused:
        return ()
    folder.close()
    return way


def _files(paths: list[str]) -> Iterator[Ancestor]:
    """The files themselves, which others may be able to write, too. (A link has no mode of its own.)"""
    for path in paths:
        try:
            info = os.lstat(path)
        except OSError:
            continue
        mode = 0o755 if stat.S_ISLNK(info.st_mode) else stat.S_IMODE(info.st_mode)
        yield Ancestor(path, info.st_uid, info.st_gid, mode, is_private_group(info.st_gid))
