"""How the user's servers stand, as each ``slicer serve`` has written it down.

A file for each server, in the user's own state directory. It counts while its proxy holds the lock on it: so
what a proxy has left that was killed is not believed. Reading it imports no asyncio.
"""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.record import replace
from slicer.serve.model import Standing
from slicer.state import statedir
from slicer.state.directory import try_lock, write_all
from slicer.state.statefile import MOST_BYTES, TornFile, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.state.directory import Directory

_FOLDER = "serve"
_LOGS = "serve-logs"
_NO_JOB = "0" * 12  # a file's field "job" has to be a job's id
_READS = 3  # of a file that is just being written


class Board:
    """Where one proxy writes how its servers stand."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises StateError."""
        state = statedir.locate(environ, os.geteuid())
        try:
            self._folder = state.base.own_folder(_FOLDER)
            logs = state.base.own_folder(_LOGS)
            self.logs = logs.path  # a directory for what the servers write
            logs.close()
        finally:
            state.close()
        self._files: dict[str, int] = {}

    def claim(self, name: str) -> None:
        """Be the one proxy of this server. Raises StateError where there is another one."""
        try:
            fd = self._folder.open_file(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            where = f"{self._folder.path}/{name}"
            raise StateError(f"cannot be opened: {error.strerror}", where=where) from error
        if not try_lock(fd):
            os.close(fd)
            raise StateError(f"another slicer serve runs {name}", hint="slicer status shows it")
        self._files[name] = fd

    def write(self, standing: Standing) -> None:
        """Write it over what was there. Raises OSError."""
        data = encode(replace(standing, job=standing.job or _NO_JOB))
        fd = self._files[standing.name]
        write_all(fd, data)
        os.ftruncate(fd, len(data))

    def close(self) -> None:
        """Take all of it away."""
        for name, fd in self._files.items():
            self._folder.remove(name)
            os.close(fd)
        self._files.clear()
        self._folder.close()


def read(environ: Mapping[str, str], warn: Callable[[str], None]) -> tuple[Standing, ...]:
    """The standings of the servers whose proxies run, by their names. Raises StateError."""
    state = statedir.existing(environ, os.geteuid())
    if state is None:
        return ()
    try:
        if not state.base.has(_FOLDER):
            return ()
        folder = state.base.own_folder(_FOLDER)
    finally:
        state.close()
    try:
        found = [_read(folder, name, warn) for name in sorted(folder.names())]
    finally:
        folder.close()
    return tuple(each for each in found if each is not None)


def _read(folder: Directory, name: str, warn: Callable[[str], None]) -> Standing | None:
    try:
        fd = folder.open_file(name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if try_lock(fd, shared=True):
            return None  # its proxy was killed
        for _ in range(_READS):
            data = os.pread(fd, MOST_BYTES + 1, 0)
            if not data:
                return None  # its proxy has just begun
            try:
                standing = decode(Standing, data)
                return replace(standing, job="" if standing.job == _NO_JOB else standing.job)
            except TornFile as error:
                problem = error
        warn(f"how the server {name!r:.40} stands cannot be read: {problem}")
        return None
    finally:
        os.close(fd)
