"""The states of the user's servers, as each ``slicer serve`` has recorded them.

There is one file for each server, in the user's own state directory. It counts while its proxy holds its
lock, so files of killed proxies are ignored. Reading imports no asyncio.
"""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.record import record, replace
from slicer.state import statedir
from slicer.state.directory import Directory, try_lock, write_all
from slicer.state.statefile import MOST_BYTES, TornFile, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FOLDER = "serve"
_LOGS = "serve-logs"
_NO_JOB = "0" * 12  # a file's field "job" must be a job's id
_READS = 3  # for a file that is just being written


@record
class ServerStanding:
    """A server's state for ``slicer status``. Times in seconds since the epoch."""

    name: str
    kind: str
    listen: tuple[str, ...]
    state: str  # as slicer.serve.terms.State
    since_s: float  # in this state
    requests: int  # requests that need the GPU and have not ended
    served: int  # such requests that have ended since the proxy started
    idle_since_s: float | None  # None if there are requests, or nothing is held
    job: str  # its job or lease, as in `slicer status`; "" if it has none
    trouble: str  # the last error; "" after a success
    pid: int  # of the proxy


class StandingWriter:
    """One proxy's records of its servers' states."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises StateError."""
        state = statedir.locate(environ, os.geteuid())
        try:
            self._folder = state.base.own_folder(_FOLDER)
            logs = state.base.own_folder(_LOGS)
            self.logs = logs.path  # a directory for the servers' output
            logs.close()
        finally:
            state.close()
        self._files: dict[str, int] = {}

    def claim(self, name: str) -> None:
        """Become the only proxy of this server. Raises StateError if there is another one."""
        try:
            fd = self._folder.open_file(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            where = f"{self._folder.path}/{name}"
            raise StateError(f"cannot be opened: {error.strerror}", where=where) from error
        if not try_lock(fd):
            os.close(fd)
            raise StateError(f"another slicer serve runs {name}", hint="slicer status shows it")
        self._files[name] = fd

    def write(self, standing: ServerStanding) -> None:
        """Overwrite the server's record. Raises OSError."""
        data = encode(replace(standing, job=standing.job or _NO_JOB))
        fd = self._files[standing.name]
        write_all(fd, data)
        os.ftruncate(fd, len(data))

    def close(self) -> None:
        for name, fd in self._files.items():
            self._folder.remove(name)
            os.close(fd)
        self._files.clear()
        self._folder.close()


def read(environ: Mapping[str, str], warn: Callable[[str], None]) -> tuple[ServerStanding, ...]:
    """The states of the servers with running proxies, by name. Raises StateError."""
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


def log_of(environ: Mapping[str, str], job: str) -> str:
    """The file with the output of the user's server whose job has that name (``serve:NAME``); "": none."""
    kind, _, name = job.partition(":")
    if kind != "serve" or "/" in name:
        return ""
    path = f"{statedir.where(environ, os.geteuid())}/{_LOGS}/{name.removesuffix('-free')}.log"
    return path if os.path.lexists(path) else ""


def _read(folder: Directory, name: str, warn: Callable[[str], None]) -> ServerStanding | None:
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
                return None  # its proxy has just started
            try:
                standing = decode(ServerStanding, data)
                return replace(standing, job="" if standing.job == _NO_JOB else standing.job)
            except TornFile as error:
                problem = error
        warn(f"the state of the server {name!r:.40} cannot be read: {problem}")
        return None
    finally:
        os.close(fd)
