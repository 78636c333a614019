"""Whose memory a GPU's processes use: that of a job, found by its cgroup, or nobody's that slicer knows.

NVML names processes by pid. :class:`GpuWatch` looks up in /proc what tells their job. That is slow, so it
happens without the ledger's lock. :func:`devices` then says whose they are, among the leases of that moment.
It is pure.

- A process belongs to the lease whose cgroup contains its own. A process cannot leave a cgroup by setsid, a
  double fork or a pid namespace. The cgroups that a container runtime makes below the scope count too.
- Some leases have no cgroup: with the backend "plain", in the Python API, and while a scope is not up yet.
  Then a process belongs to the lease whose job id its first environment has, or whose owner is its ancestor.
- If several leases match, the innermost one that holds this GPU counts. A job inside another uses what the
  outer one holds.
- NVML knows the machine's pids. A process that /proc does not show lives outside our pid namespace and
  belongs to no lease. A process that left its scope for another unit belongs to none either.

A job may use a GPU that its lease does not hold. That process is the job's own (``used_by``), but it is
foreign to this GPU as well (``foreign_mib``, ``foreign_pids``). Nothing was set aside for it there, so the
GPU's other users must live with it as with a process that slicer knows nothing of.

In some containers, under WSL and in MIG mode the driver does not say how much a process uses. The memory of
such a GPU that no process accounts for belongs to these silent processes. If all of them are of one lease, it
is that lease's. If they are of several leases, each lease is taken to use what it declared. Memory beyond a
job's declaration counts as foreign, because nothing was set aside for it. If one of them belongs to no lease,
all of it counts as foreign.
"""

from __future__ import annotations

import os

from slicer import faults
from slicer.errors import StateError
from slicer.kernel import cgroup, proc
from slicer.model import LEASE_VARIABLE
from slicer.placement.capacity import Device
from slicer.record import record, replace
from slicer.state.directory import Directory, check_file, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from slicer.gpu import Gpus
    from slicer.model import Gpu, GpuMemory, GpuProcess, Lease

    PeakKey = tuple[int, int, str]  # pid, start time, GPU

_MOST_ANCESTORS = 64
_MOST_ENVIRON = 4 << 20  # bytes; the kernel allows a quarter of the stack limit, 2 MiB by default
_DELETED = " (deleted)"  # what the kernel adds to the name of a cgroup that is gone
_FILE = "foreign"
_NEW = "foreign.new"
_NOWHERE = ("", "/")  # where a process is that has left its cgroup on its way out


@record
class Seen:
    """A process with a context on one GPU, and what tells whose it is."""

    gpu_uuid: str
    pid: int
    used_mib: int | None  # None: the driver does not say
    started: int  # clock ticks since boot (see proc.start_time); 0: not in our /proc
    name: str
    cgroup: str  # as in /proc/PID/cgroup; "" unknown
    jobs: tuple[str, ...]  # the jobs that it was started inside of, the innermost last
    above: tuple[int, ...]  # the pids of its ancestors, the nearest first


@record
class Sighting:
    """The GPUs at one moment, in the driver's order, and every process on any of them."""

    memory: tuple[GpuMemory, ...]
    processes: tuple[Seen, ...]


class GpuWatch:
    """Looks at the GPUs again and again.

    It remembers what a process said of itself at first for as long as the driver lists the process. When a
    process is killed, its environment is gone before its memory on the GPU is.
    """

    def __init__(self, gpus: Gpus) -> None:
        """``gpus`` is ours from now on: :meth:`close` gives it back."""
        self._gpus = gpus
        self._known: dict[int, Seen] = {}

    @classmethod
    def open(cls) -> tuple[GpuWatch, tuple[Gpu, ...]]:
        """A watch of this machine's GPUs, and which there are. Raises NoGpu, GpuError."""
        from slicer.gpu import open_gpus

        gpus = open_gpus()
        try:
            return cls(gpus), gpus.list()
        except BaseException:
            gpus.close()
            raise

    def notes(self) -> tuple[str, ...]:
        """What a user should know of the GPUs that :meth:`open` listed."""
        return self._gpus.notes()

    def look(self, only: Collection[str] = ()) -> Sighting:
        """Ask the driver and /proc, about all GPUs or those given; needs no lock. Raises GpuError."""
        sighting = self._look(only)
        if not all(seen.started for seen in sighting.processes):
            # Mostly, one that ended since the driver told of it: then it is gone from the list by now.
            sighting = self._look(only)
        self._known = {seen.pid: seen for seen in sighting.processes}
        return sighting

    def _look(self, only: Collection[str]) -> Sighting:
        memory = self._gpus.memory(only)
        facts: dict[int, Seen] = {}
        found = []
        for process in self._gpus.processes(only):
            pid = process.pid
            seen = facts.get(pid) or _facts(process, self._known.get(pid))
            facts[pid] = replace(seen, gpu_uuid=process.gpu_uuid, used_mib=process.used_mib)
            found.append(facts[pid])
        return Sighting(memory, tuple(found))

    def utilisation(self) -> dict[str, int | None]:
        """How busy each GPU is, in percent by UUID; None where the driver does not say. Raises GpuError."""
        return self._gpus.utilisation()

    def close(self) -> None:
        """Give the driver's library back. Safe to repeat."""
        self._gpus.close()


def _facts(process: GpuProcess, known: Seen | None) -> Seen:
    """The process as /proc has it. What /proc no longer tells is taken from ``known``."""
    pid = process.pid
    started, name = _identity(pid)
    if known is not None and started in (0, known.started):
        within = _cgroup(pid)
        return replace(known, cgroup=within if within not in _NOWHERE else known.cgroup)
    if not started:
        return Seen(process.gpu_uuid, pid, process.used_mib, 0, "", "", (), ())
    return Seen(
        process.gpu_uuid, pid, process.used_mib, started, name, _cgroup(pid), _marker(pid),
        tuple(_ancestors(pid)),
    )  # fmt: skip


def _identity(pid: int) -> tuple[int, str]:
    """The start time and the name of a process; 0 and "" for one that is not there, or not for us."""
    try:
        stat = proc.read_text(f"/proc/{pid}/stat")
    except OSError:
        return 0, ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return int(rest.split()[19]), name


def _cgroup(pid: int) -> str:
    try:
        return cgroup.of(pid).removesuffix(_DELETED)
    except OSError:
        return ""


def _marker(pid: int) -> tuple[str, ...]:
    """The jobs around a process by its environment; none when that is not ours to read."""
    prefix = f"{LEASE_VARIABLE}=".encode()
    entries = proc.environment(pid, _MOST_ENVIRON).split(b"\0")
    text = next((entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix)), b"")
    return tuple(filter(None, text.decode("ascii", "replace").split(",")))


def _ancestors(pid: int) -> Iterator[int]:
    for _ in range(_MOST_ANCESTORS):  # pids may be given anew while we climb
        pid = proc.parent(pid)
        if not pid:
            return
        yield pid


# -- whose it is ------------------------------------------------------------------------------------------


class Owners:
    """The leases, arranged for finding whose a process is."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.leases = {lease.job: lease for lease in leases}
        self._in_cgroup = {lease.cgroup: lease for lease in self.leases.values() if lease.cgroup}
        self._of_pid: dict[int, list[Lease]] = {}  # the youngest first: a lease taken under another
        for lease in sorted(self.leases.values(), key=lambda lease: -lease.since_s):
            for pid in {lease.pid, lease.keeper} - {0}:
                self._of_pid.setdefault(pid, []).append(lease)

    def of(self, seen: Seen) -> Lease | None:
        """The lease that the process belongs to; None for a foreign one."""
        inner = self._innermost(seen)
        if inner is None or seen.gpu_uuid in inner.gpus:
            return inner
        return next((lease for lease in self._around(seen) if seen.gpu_uuid in lease.gpus), inner)

    def _innermost(self, seen: Seen) -> Lease | None:
        inside = self._by_cgroup(seen.cgroup)
        loose = next((lease for lease in self._around(seen) if not lease.cgroup), None)
        if inside is None or loose is None:
            return inside or loose
        if loose.job in seen.jobs or inside.job in seen.jobs:
            return max(inside, loose, key=lambda lease: _last(seen.jobs, lease.job))
        climb = (seen.pid, *seen.above)
        return min(loose, inside, key=lambda lease: _first(climb, (lease.pid, lease.keeper)))

    def _by_cgroup(self, name: str) -> Lease | None:
        while name:
            if name in self._in_cgroup:
                return self._in_cgroup[name]
            name = name.rpartition("/")[0]
        return None

    def _around(self, seen: Seen) -> Iterator[Lease]:
        """The leases that the process was started under, the innermost first."""
        for job in reversed(seen.jobs):
            if job in self.leases:
                yield self.leases[job]
        for pid in (seen.pid, *seen.above):
            yield from self._of_pid.get(pid, ())


def _last(jobs: tuple[str, ...], job: str) -> int:
    return max((index for index, name in enumerate(jobs) if name == job), default=-1)


def _first(climb: tuple[int, ...], pids: tuple[int, ...]) -> int:
    return min((index for index, pid in enumerate(climb) if pid in pids), default=len(climb))


def key_of(seen: Seen) -> PeakKey:
    """What tells a process on a GPU from all others."""
    return seen.pid, seen.started, seen.gpu_uuid


def is_foreign(seen: Seen, lease: Lease | None) -> bool:
    """Whether nothing was set aside for the process on its GPU; ``lease`` is the one it belongs to."""
    return lease is None or seen.gpu_uuid not in lease.gpus


def devices(
    sighting: Sighting, leases: Iterable[Lease], foreign_peaks: Mapping[PeakKey, int]
) -> tuple[Device, ...]:
    """The GPUs with their processes assigned to the leases (see the module). Pure."""
    owners = Owners(leases)
    return tuple(
        _device(
            memory,
            [(seen, owners.of(seen)) for seen in sighting.processes if seen.gpu_uuid == memory.gpu_uuid],
            foreign_peaks,
        )
        for memory in sighting.memory
    )


def _device(
    memory: GpuMemory, owned: list[tuple[Seen, Lease | None]], foreign_peaks: Mapping[PeakKey, int]
) -> Device:
    used_by: dict[str, int] = {}
    foreign_mib = 0
    foreign_pids = []
    for seen, lease in owned:
        now_mib = seen.used_mib or 0
        if lease is not None:
            used_by[lease.job] = used_by.get(lease.job, 0) + now_mib
        if is_foreign(seen, lease):
            foreign_mib += max(now_mib, foreign_peaks.get(key_of(seen), 0))
            foreign_pids.append(seen.pid)
    mute = [(seen, lease) for seen, lease in owned if seen.used_mib is None]
    rest_mib = max(0, memory.used_mib - sum(seen.used_mib or 0 for seen, _ in owned)) if mute else 0
    if rest_mib:
        users = {lease.job: lease for _, lease in mute if lease is not None}
        if len(users) == 1 and all(lease is not None for _, lease in mute):
            (job,) = users
            used_by[job] += rest_mib
        if any(is_foreign(seen, lease) for seen, lease in mute):
            foreign_mib += rest_mib
        elif len(users) > 1:
            foreign_mib += max(0, rest_mib - sum(lease.vram_mib or 0 for lease in users.values()))
    return Device(
        memory.gpu_uuid, memory.total_mib, memory.used_mib, used_by, foreign_mib, tuple(foreign_pids)
    )


# -- what foreign processes used at most ------------------------------------------------------------------

_HEAD = "SLICER_FOREIGN=1"  # the last is its version
_MAX_BYTES = 1 << 20
_WORTH_WRITING = 1.05  # times what is written: every look would write something, else


class ForeignPeaks:
    """The most that each foreign process was seen to use, kept for all in the file "foreign".

    Call :meth:`update` under the ledger's lock. The file is no lease: without it, or where it is torn or
    not ours, peaks begin anew with what is used now.
    """

    def __init__(self, base: Directory | None) -> None:
        """``base``: the state directory; None while there is none."""
        self._base = base
        self.peaks: Mapping[PeakKey, int] = {}  # MiB

    def is_stale(self, sighting: Sighting, leases: Iterable[Lease], only: Collection[str] = ()) -> bool:
        """Whether :meth:`update` would write something. Needs no lock."""
        written = self._read()
        return _is_news(_merged(sighting, leases, written, {}, only), written)

    def update(self, sighting: Sighting, leases: Iterable[Lease], only: Collection[str] = ()) -> str | None:
        """Merge what was seen, forget who has left the GPU, and write what our other processes should know.

        ``only``: the GPUs that the sighting covers; empty: all. Returns None, or one line for the user when
        it could not be written; what this object knows is right nevertheless.
        """
        written = self._read()
        self.peaks = _merged(sighting, leases, written, self.peaks, only)
        try:
            if _is_news(self.peaks, written) or not self.peaks:
                self._write(self.peaks)
        except OSError as error:
            return f"{_FILE}: what foreign processes used cannot be written: {error.strerror}"
        return None

    def _read(self) -> dict[PeakKey, int]:
        if self._base is None:
            return {}
        try:
            fd = self._base.open(_FILE, os.O_RDONLY)
        except OSError:
            return {}
        try:
            check_file(fd, _FILE)
            return parse_peaks(os.read(fd, _MAX_BYTES))
        except (OSError, StateError):
            return {}
        finally:
            os.close(fd)

    def _write(self, peaks: Mapping[PeakKey, int]) -> None:
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


def _merged(
    sighting: Sighting, leases: Iterable[Lease], written: Mapping[PeakKey, int],
    seen_before: Mapping[PeakKey, int], only: Collection[str],
) -> dict[PeakKey, int]:  # fmt: skip
    """The peaks after a look; those of GPUs that were not looked at stay as they are written."""
    owners = Owners(leases)
    peaks = {key: mib for key, mib in written.items() if only and key[2] not in only}
    for seen in sighting.processes:
        if seen.used_mib is not None and is_foreign(seen, owners.of(seen)):
            key = key_of(seen)
            peaks[key] = max(seen.used_mib, written.get(key, 0), seen_before.get(key, 0))
    return peaks


def _is_news(peaks: Mapping[PeakKey, int], written: Mapping[PeakKey, int]) -> bool:
    grown = any(mib > written.get(key, 0) * _WORTH_WRITING for key, mib in peaks.items())
    return grown or peaks.keys() != written.keys()


def format_peaks(peaks: Mapping[PeakKey, int]) -> bytes:
    """``PEAK=PID START GPU MIB`` lines between a first line with the version and a last one, "END="."""
    lines = [f"PEAK={pid} {started} {gpu} {mib}" for (pid, started, gpu), mib in sorted(peaks.items())]
    return "\n".join((_HEAD, *lines, "END=", "")).encode()


def parse_peaks(data: bytes) -> dict[PeakKey, int]:
    """What :func:`format_peaks` wrote; nothing for a torn file, another version's, or none of ours."""
    head, *lines = data.decode("utf-8", "replace").split("\n")
    if head != _HEAD or lines[-2:] != ["END=", ""]:
        return {}
    found = {}
    for line in lines[:-2]:
        words = line.removeprefix("PEAK=").split(" ")
        numbers = [word for index, word in enumerate(words) if index != 2]
        if not line.startswith("PEAK=") or len(words) != 4 or not all(map(_is_number, numbers)):
            return {}
        found[int(words[0]), int(words[1]), words[2]] = int(words[3])
    return found


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 20
