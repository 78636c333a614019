"""Whose memory a GPU's processes use: that of a job, or nobody's that slicer knows. Pure.

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

from slicer.placement.capacity import Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from slicer.gpu.snapshot import GpuSnapshot, ProcessKey, ProcessOnGpu
    from slicer.model import GpuMemory, Lease


class Owners:
    """The leases, arranged for finding whose a process is."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.leases = {lease.job: lease for lease in leases}
        self._in_cgroup = {lease.cgroup: lease for lease in self.leases.values() if lease.cgroup}
        self._of_pid: dict[int, list[Lease]] = {}  # the youngest first: a lease taken under another
        for lease in sorted(self.leases.values(), key=lambda lease: -lease.since_s):
            for pid in {lease.pid, lease.keeper} - {0}:
                self._of_pid.setdefault(pid, []).append(lease)

    def of(self, process: ProcessOnGpu) -> Lease | None:
        """The lease that the process belongs to; None for a foreign one."""
        inner = self._innermost(process)
        if inner is None or process.gpu_uuid in inner.gpus:
            return inner
        return next((lease for lease in self._around(process) if process.gpu_uuid in lease.gpus), inner)

    def _innermost(self, process: ProcessOnGpu) -> Lease | None:
        inside = self._by_cgroup(process.cgroup)
        loose = next((lease for lease in self._around(process) if not lease.cgroup), None)
        if inside is None or loose is None:
            return inside or loose
        if loose.job in process.jobs or inside.job in process.jobs:
            return max(inside, loose, key=lambda lease: _last(process.jobs, lease.job))
        climb = (process.pid, *process.above)
        return min(loose, inside, key=lambda lease: _first(climb, (lease.pid, lease.keeper)))

    def _by_cgroup(self, name: str) -> Lease | None:
        while name:
            if name in self._in_cgroup:
                return self._in_cgroup[name]
            name = name.rpartition("/")[0]
        return None

    def _around(self, process: ProcessOnGpu) -> Iterator[Lease]:
        """The leases that the process was started under, the innermost first."""
        for job in reversed(process.jobs):
            if job in self.leases:
                yield self.leases[job]
        for pid in (process.pid, *process.above):
            yield from self._of_pid.get(pid, ())


def _last(jobs: tuple[str, ...], job: str) -> int:
    return max((index for index, name in enumerate(jobs) if name == job), default=-1)


def _first(climb: tuple[int, ...], pids: tuple[int, ...]) -> int:
    return min((index for index, pid in enumerate(climb) if pid in pids), default=len(climb))


def attribute(snapshot: GpuSnapshot, leases: Iterable[Lease]) -> list[tuple[ProcessOnGpu, Lease | None]]:
    """Each process with the lease it belongs to; None where it belongs to none."""
    owners = Owners(leases)
    return [(process, owners.of(process)) for process in snapshot.processes]


def process_counts(snapshot: GpuSnapshot, leases: Iterable[Lease]) -> dict[tuple[str, str], int]:
    """How many processes of each job the driver lists, by job and GPU."""
    counts: dict[tuple[str, str], int] = {}
    for process, owner in attribute(snapshot, leases):
        if owner is not None:
            key = owner.job, process.gpu_uuid
            counts[key] = counts.get(key, 0) + 1
    return counts


def is_foreign(process: ProcessOnGpu, lease: Lease | None) -> bool:
    """Whether nothing was set aside for the process on its GPU; ``lease`` is the one it belongs to."""
    return lease is None or process.gpu_uuid not in lease.gpus


def foreign_peaks(
    snapshot: GpuSnapshot, leases: Iterable[Lease], before: Mapping[ProcessKey, int]
) -> dict[ProcessKey, int]:
    """The most that each foreign process on the GPUs was seen to use, now or ``before``."""
    return {
        process.key: max(process.used_mib, before.get(process.key, 0))
        for process, lease in attribute(snapshot, leases)
        if process.used_mib is not None and is_foreign(process, lease)
    }


def devices(
    snapshot: GpuSnapshot, leases: Iterable[Lease], foreign_peaks: Mapping[ProcessKey, int]
) -> tuple[Device, ...]:
    """The GPUs with their processes attributed to the leases (see the module)."""
    owned: dict[str, list[tuple[ProcessOnGpu, Lease | None]]] = {}
    for process, lease in attribute(snapshot, leases):
        owned.setdefault(process.gpu_uuid, []).append((process, lease))
    return tuple(_device(memory, owned.get(memory.gpu_uuid, []), foreign_peaks) for memory in snapshot.memory)


def _device(
    memory: GpuMemory, owned: list[tuple[ProcessOnGpu, Lease | None]], foreign_peaks: Mapping[ProcessKey, int]
) -> Device:
    used_by: dict[str, int] = {}
    foreign_mib = 0
    foreign_pids = []
    for process, lease in owned:
        now_mib = process.used_mib or 0
        if lease is not None:
            used_by[lease.job] = used_by.get(lease.job, 0) + now_mib
        if is_foreign(process, lease):
            foreign_mib += max(now_mib, foreign_peaks.get(process.key, 0))
            foreign_pids.append(process.pid)
    silent = [(process, lease) for process, lease in owned if process.used_mib is None]
    rest_mib = max(0, memory.used_mib - sum(process.used_mib or 0 for process, _ in owned)) if silent else 0
    if rest_mib:
        users = {lease.job: lease for _, lease in silent if lease is not None}
        if len(users) == 1 and all(lease is not None for _, lease in silent):
            (job,) = users
            used_by[job] += rest_mib
        if any(is_foreign(process, lease) for process, lease in silent):
            foreign_mib += rest_mib
        elif len(users) > 1:
            foreign_mib += max(0, rest_mib - sum(lease.vram_mib or 0 for lease in users.values()))
    return Device(
        memory.gpu_uuid, memory.total_mib, memory.used_mib, used_by, foreign_mib, tuple(foreign_pids)
    )
