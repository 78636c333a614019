"""The use of simulated GPUs by simulated jobs.

A simulated machine has its own state directory (:mod:`slicer.state.statedir`). In its folder "usage" each
process that uses simulated GPUs has one file, named after its pid and start time. The file of a process that
has ended does not count, and the next reader of the folder removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.model import Gpu
from slicer.record import record
from slicer.state import statefile
from slicer.state.directory import Directory, check_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAX_BYTES = 1 << 16
_NEW = ".tmp"  # the end of a file's name while it is being written


@record
class Use:
    """One process's use of simulated GPUs. The file contains this name and those of the fields."""

    pid: int
    started: int  # clock ticks since boot (see proc.start_time)
    utilisation: int  # percent
    gpus: tuple[str, ...]  # UUIDs
    mib: tuple[int, ...]  # on each of them


@record
class NoRoom:
    """Why an allocation failed."""

    gpu: Gpu
    free_mib: int  # all that the process can have on this GPU, including what it already has


def no_room(use: Use, others: Iterable[Use], gpus: Iterable[Gpu]) -> NoRoom | None:
    """The first GPU on which ``use`` does not fit beside the others; None if it fits. Pure."""
    wanted = dict(zip(use.gpus, use.mib, strict=True))
    taken = in_use(others)
    for gpu in gpus:
        free_mib = gpu.memory_mib - taken.get(gpu.uuid, 0)
        if wanted.get(gpu.uuid, 0) > free_mib:
            return NoRoom(gpu, free_mib)
    return None


def in_use(uses: Iterable[Use]) -> Mapping[str, int]:
    """MiB in use by UUID. Pure."""
    sums: dict[str, int] = {}
    for use in uses:
        for uuid, mib in zip(use.gpus, use.mib, strict=True):
            sums[uuid] = sums.get(uuid, 0) + mib
    return sums


class UsageFolder:
    """The folder with the processes' use. Every method may raise StateError."""

    def __init__(self, base: Directory, gpus: tuple[Gpu, ...]) -> None:
        """``base``: the simulated machine's state directory. Raises StateError."""
        self._folder = base.own_folder("usage")
        self._path = self._folder.path
        self._gpus = gpus

    def close(self) -> None:
        self._folder.close()

    def living(self) -> list[Use]:
        """The use of all living processes. Files of dead ones are removed."""
        try:
            names = sorted(self._folder.names())
        except OSError as error:
            raise self._failed("read", error) from error
        found = []
        for name in names:
            owner = _owner(name)
            if owner is None:
                continue
            if not proc.is_running(*owner):
                self._remove(name)
            elif not name.endswith(_NEW) and (use := self._read(name)) is not None:
                found.append(use)
        return found

    def allocate(self, use: Use) -> NoRoom | None:
        """Set the process's use, if there is room; otherwise nothing changes."""
        lock = self._lock()
        try:
            mine = use.pid, use.started
            others = [other for other in self.living() if (other.pid, other.started) != mine]
            lacking = no_room(use, others, self._gpus)
            if lacking is None:
                self._write(use)
            return lacking
        finally:
            os.close(lock)

    def take_over(self, use: Use, before: Use) -> None:
        """Pass one process's use on to another."""
        lock = self._lock()
        try:
            self._write(use)
            self.free(before)
        finally:
            os.close(lock)

    def free(self, use: Use) -> None:
        """End the process's use. Safe to repeat."""
        self._remove(_name(use))
        self._remove(_name(use) + _NEW)

    def _lock(self) -> int:
        # The lock is on the directory itself, so that readers find no additional file in it.
        try:
            fd = os.open(self._folder.handle, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._failed("read", error) from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def _read(self, name: str) -> Use | None:
        """None for a file that is already gone, or that is not ours."""
        try:
            fd = self._folder.open(name, os.O_RDONLY)
            try:
                check_file(fd, f"{self._path}/{name}")
                use = statefile.decode(Use, os.read(fd, _MAX_BYTES))
            finally:
                os.close(fd)
        except (statefile.TornFile, StateError):
            return None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # gone, a link, a socket
                return None
            raise self._failed("read", error) from error
        return use if len(use.gpus) == len(use.mib) and _name(use) == name else None

    def _write(self, use: Use) -> None:
        try:
            os.close(self._folder.replace(_name(use), statefile.encode(use), mode=0o600))
        except OSError as error:
            raise self._failed("written", error) from error

    def _remove(self, name: str) -> None:
        try:
            self._folder.remove(name)
        except OSError as error:
            raise self._failed("cleaned up", error) from error

    def _failed(self, what: str, error: OSError) -> StateError:
        return StateError(f"cannot be {what}: {error.strerror}", where=self._path)


def _name(use: Use) -> str:
    return f"{use.pid}-{use.started}"


def _owner(name: str) -> tuple[int, int] | None:
    """The pid and start time in a file's name; None if the file is not ours."""
    words = name.removesuffix(_NEW).split("-")
    if len(words) != 2 or not all(map(statefile.is_digits, words)):
        return None
    return int(words[0]), int(words[1])
