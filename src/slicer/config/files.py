"""Finds and reads slicer's configuration files. :mod:`slicer.config.profiles` interprets them.

The files, later ones winning key by key: ``/etc/slicer/config.toml``, ``/etc/slicer/conf.d/*.toml`` in the
order of their names, ``$XDG_CONFIG_HOME/slicer/config.toml`` (``~/.config``), ``$SLICER_CONFIG``.

A profile sets variables of a job's environment, so a file that root reads can make root run any code. So root
reads only files that root alone can write. A file in another user's ``$HOME`` (``sudo -E``) is ignored with a
warning; any other such file is an error.
"""

from __future__ import annotations

import os
import stat

from slicer.errors import ConfigError
from slicer.kernel import home, on_host
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from slicer.config.cache import FileId
    from slicer.config.values import Entry

SYSTEM_DIR = "/etc/slicer"
MAX_BYTES = 2**20
KINDS = ("system", "user", "explicit")  # of files: below /etc, the user's own, the one of SLICER_CONFIG


@record
class Layer:
    """One file's content (or a built-in profile's), and the line of each key."""

    path: str
    data: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def where(self, *keys: str) -> str:
        """``path:line`` of a key, or of the innermost table around it whose line is known."""
        for depth in range(len(keys), 0, -1):
            line = self.lines.get(keys[:depth])
            if line:
                return f"{printable(self.path)}:{line}"
        return printable(self.path)

    def entries(self, *path: str) -> dict[str, Entry]:
        """The entries of the table at that path, by key (see :mod:`slicer.config.values`)."""
        table = self.data
        for key in path:
            table = table.get(key, {})
        return {key: (value, self.where(*path, key), ConfigError) for key, value in table.items()}


@record
class Files:
    """The files that were read. ``fresh``: parsed just now and not validated yet (not from the cache)."""

    layers: tuple[Layer, ...]
    warnings: tuple[str, ...]
    fresh: bool
    ids: tuple[FileId, ...]


def printable(path: str) -> str:
    """A path as one line: quoted if it contains a newline or bytes that are not text."""
    return path if path.isprintable() else repr(path)


def read_files(
    environ: Mapping[str, str], system_dir: str = "", *, only: tuple[str, ...] = KINDS
) -> Files:
    """All existing configuration files, lowest precedence first; with ``only``, those of some kinds.

    ``system_dir`` stands in for ``/etc/slicer``. Raises ConfigError for a file that exists but cannot be
    read, is not TOML or must not be trusted.
    """
    warnings: list[str] = []
    opened: list[tuple[str, int, os.stat_result]] = []
    try:
        for path, kind in _candidates(environ, system_dir or on_host(SYSTEM_DIR), warnings):
            if kind not in only:
                continue
            try:
                fd = _open(path, required=kind == "explicit")
            except ConfigError as error:
                if kind != "user" or not _is_anothers(_base(environ, "XDG_CONFIG_HOME", ".config")[1]):
                    raise
                warnings.append(f"{error}; ignored, as this home directory is another user's")
                continue
            if fd >= 0:
                opened.append((path, fd, os.fstat(fd)))
                _check(path, opened[-1][2], (system_dir or SYSTEM_DIR) if kind == "system" else "")
        if not opened:
            return Files((), tuple(warnings), False, ())
        from slicer.config import cache

        ids = tuple(
            (path, st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
            for path, _, st in opened
        )
        cached = cache.load(cache_dir(environ), ids)
        if cached is not None:
            return Files(tuple(Layer(*each) for each in cached), tuple(warnings), False, ids)
        from slicer.config.toml import parse

        layers = tuple(Layer(path, *parse(_read(path, fd), printable(path))) for path, fd, _ in opened)
        return Files(layers, tuple(warnings), True, ids)
    finally:
        for _, fd, _ in opened:
            os.close(fd)


def read_system_file(path: str) -> bytes | None:
    """One file of ``/etc/slicer``; None if it is missing. Raises ConfigError as :func:`read_files`.

    A link is followed: whoever may write there is trusted with its target, too (as in NixOS' /etc).
    """
    fd = _open(path, required=False)
    if fd < 0:
        return None
    try:
        _check(path, os.fstat(fd), os.path.dirname(path))
        return _read(path, fd)
    finally:
        os.close(fd)


def store(environ: Mapping[str, str], files: Files) -> None:
    """Remember files that proved valid, so that the next start need not parse them."""
    from slicer.config import cache

    content = [(layer.path, layer.data, layer.lines) for layer in files.layers]
    cache.store(cache_dir(environ), files.ids, content)


def user_file(environ: Mapping[str, str]) -> str:
    """The path of the user's own configuration file; "" if there is no home directory."""
    base, _ = _base(environ, "XDG_CONFIG_HOME", ".config")
    return f"{base}/slicer/config.toml" if base else ""


def cache_dir(environ: Mapping[str, str]) -> str:
    """The directory of slicer's cache; "" if none belongs to the caller."""
    base, anchor = _base(environ, "XDG_CACHE_HOME", ".cache")
    return f"{base}/slicer" if base and _is_trusted(anchor) else ""


def _candidates(
    environ: Mapping[str, str], system_dir: str, warnings: list[str]
) -> Iterator[tuple[str, str]]:
    yield f"{system_dir}/config.toml", "system"
    drop_ins = f"{system_dir}/conf.d"
    try:
        names = sorted(os.listdir(drop_ins))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as error:
        raise ConfigError(f"cannot list the directory: {error.strerror}", where=drop_ins) from None
    for name in names:
        if name.endswith(".toml") and not name.startswith("."):
            yield f"{drop_ins}/{name}", "system"
    base, anchor = _base(environ, "XDG_CONFIG_HOME", ".config")
    if base and _is_trusted(anchor):
        yield f"{base}/slicer/config.toml", "user"
    elif base and os.path.lexists(f"{base}/slicer/config.toml"):
        warnings.append(
            f"{printable(base)}/slicer/config.toml is ignored: root does not use the configuration"
            f" of the owner of {printable(anchor)}"
        )
    explicit = environ.get("SLICER_CONFIG")
    if explicit:
        yield explicit, "explicit"


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> tuple[str, str]:
    """A base directory of the XDG specification, and the directory whose owner controls it."""
    base = environ.get(variable, "")
    if base.startswith("/"):  # by the specification, a relative path is ignored
        return base, base
    found = home(environ)
    return (f"{found}/{below_home}", found) if found else ("", "")


def _is_anothers(directory: str) -> bool:
    """Whether it belongs to another user, as with ``sudo -E -u``."""
    try:
        return os.stat(directory).st_uid != os.geteuid()
    except OSError:
        return True


def _is_trusted(directory: str) -> bool:
    """Whether root may trust a user's directory; other users trust their environment."""
    if os.geteuid() != 0:
        return True
    try:
        return _by_root_alone(os.stat(directory))
    except OSError:
        return True  # it contains nothing


def _by_root_alone(st: os.stat_result) -> bool:
    group_may_write = st.st_mode & stat.S_IWGRP and st.st_gid != 0
    return st.st_uid == 0 and not group_may_write and not st.st_mode & stat.S_IWOTH


def _open(path: str, *, required: bool) -> int:
    """A descriptor; -1 if an optional file is missing. Does not wait on a FIFO."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        if not required:
            return -1
        raise ConfigError(
            "the file named by SLICER_CONFIG does not exist",
            where=printable(path),
            hint="unset or correct SLICER_CONFIG",
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error.strerror}", where=printable(path)) from None


def _check(path: str, st: os.stat_result, system_dir: str) -> None:
    where = printable(path)
    if stat.S_ISDIR(st.st_mode):
        raise ConfigError("is a directory, not a file", where=where)
    if not stat.S_ISREG(st.st_mode):
        raise ConfigError("is not a regular file", where=where)
    if st.st_size > MAX_BYTES:
        raise ConfigError("is larger than 1 MiB, too large for a configuration", where=where)
    if os.geteuid() == 0 and not _by_root_alone(st) and not _owner_of_etc(st, system_dir):
        raise ConfigError(
            f"users other than root can write it (owner {st.st_uid}, mode {stat.S_IMODE(st.st_mode):04o}),"
            " so root does not use it",
            where=where,
            hint=f"chown root:root {where} && chmod go-w {where}",
        )


def _owner_of_etc(st: os.stat_result, system_dir: str) -> bool:
    """In a user namespace /etc belongs to the overflow user: its owner may own the files in it, too."""
    if not system_dir or st.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    return st.st_uid == os.stat(os.path.dirname(system_dir)).st_uid


def _read(path: str, fd: int) -> bytes:
    try:
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error.strerror}", where=printable(path)) from None
    if len(content) > MAX_BYTES:
        raise ConfigError("is larger than 1 MiB, too large for a configuration", where=printable(path))
    return content
