"""How much foreign processes used of GPUs at most, shared by the state directory's file "foreign"."""

from __future__ import annotations

import os

from slicer import faults
from slicer.errors import StateError
from slicer.gpu.attribution import attribute, is_foreign
from slicer.state.directory import Directory, write_all
from slicer.state.statefile import is_digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from slicer.gpu.snapshot import GpuSnapshot, ProcessKey
    from slicer.model import Lease

_FILE = "foreign"
_NEW = "foreign.new"
_HEAD = "SLICER_FOREIGN=1"  # 1: the version of the file's form
_MAX_BYTES = 1 << 20
_WORTH_WRITING = 1.05  # times what is written: else every look would write


class ForeignPeaks:
    """``mib``: the most that each foreign process was seen to use.

    Where the file is missing, torn or not ours, peaks begin anew with what is used now.
    """

    def __init__(self, base: Directory | None, only: Collection[str] = ()) -> None:
        """``base``: the state directory, None while there is none. ``only``: the GPUs that are looked at
        (UUIDs); empty: all.
        """
        self._base = base
        self._only = only
        self.mib: Mapping[ProcessKey, int] = {}

    def is_stale(self, snapshot: GpuSnapshot, leases: Iterable[Lease]) -> bool:
        """Whether :meth:`update` would write something. Needs no lock."""
        written = self._read()
        return _is_worth_writing(self._merged(snapshot, leases, written, {}), written)

    def update(self, snapshot: GpuSnapshot, leases: Iterable[Lease]) -> str | None:
        """Merge what was seen, forget processes that left the GPU, and write what others should know.

        Call it under the ledger's lock. Returns None, or one line for the user when the file could not be
        written; ``mib`` is right nevertheless.
        """
        written = self._read()
        self.mib = self._merged(snapshot, leases, written, self.mib)
        try:
            if _is_worth_writing(self.mib, written) or not self.mib:
                self._write(self.mib)
        except OSError as error:
            return f"{_FILE}: what foreign processes used cannot be written: {error.strerror}"
        return None

    def _merged(
        self, snapshot: GpuSnapshot, leases: Iterable[Lease], written: Mapping[ProcessKey, int],
        earlier: Mapping[ProcessKey, int],
    ) -> dict[ProcessKey, int]:  # fmt: skip
        """The peaks after a look; those of GPUs that were not looked at stay as they are written."""
        peaks = {key: mib for key, mib in written.items() if self._only and key[2] not in self._only}
        for process, lease in attribute(snapshot, leases):
            if process.used_mib is not None and is_foreign(process, lease):
                key = process.key
                peaks[key] = max(process.used_mib, written.get(key, 0), earlier.get(key, 0))
        return peaks

    def _read(self) -> dict[ProcessKey, int]:
        if self._base is None:
            return {}
        try:
            return parse_peaks(self._base.read(_FILE, _MAX_BYTES))
        except (OSError, StateError):
            return {}

    def _write(self, peaks: Mapping[ProcessKey, int]) -> None:
        base = self._base
        if base is None:
            return
        base.remove(_NEW)  # a killed writer's; the lock says that there is no other
        if not peaks:
            base.remove(_FILE)
            return
        fd = base.open(_NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                faults.point("foreign-created")
                write_all(fd, format_peaks(peaks))
            finally:
                os.close(fd)
            faults.point("foreign-written")
            base.rename(_NEW, base, _FILE)
        except OSError:
            base.remove(_NEW)
            raise


def _is_worth_writing(peaks: Mapping[ProcessKey, int], written: Mapping[ProcessKey, int]) -> bool:
    grown = any(mib > written.get(key, 0) * _WORTH_WRITING for key, mib in peaks.items())
    return grown or peaks.keys() != written.keys()


def format_peaks(peaks: Mapping[ProcessKey, int]) -> bytes:
    """``PEAK=PID START GPU MIB`` lines between a first line with the version and a last one, "END="."""
    lines = [f"PEAK={pid} {started} {gpu} {mib}" for (pid, started, gpu), mib in sorted(peaks.items())]
    return "\n".join((_HEAD, *lines, "END=", "")).encode()


def parse_peaks(data: bytes) -> dict[ProcessKey, int]:
    """What :func:`format_peaks` wrote; nothing for a torn file, another version's, or none of ours."""
    head, *lines = data.decode("utf-8", "replace").split("\n")
    if head != _HEAD or lines[-2:] != ["END=", ""]:
        return {}
    found = {}
    for line in lines[:-2]:
        words = line.removeprefix("PEAK=").split(" ")
        numbers = [word for index, word in enumerate(words) if index != 2]
        if not line.startswith("PEAK=") or len(words) != 4 or not all(map(is_digits, numbers)):
            return {}
        found[int(words[0]), int(words[1]), words[2]] = int(words[3])
    return found
