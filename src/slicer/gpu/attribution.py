"""Decides to which job the memory of a GPU's processes belongs, or that it is foreign. Pure.

- A process belongs to the lease whose cgroup contains its own. A process cannot leave a cgroup by setsid, a
  double fork or a pid namespace. The cgroups that a container runtime creates below the scope count, too.
- Some leases have no cgroup: with the backend "plain", in the Python API, and while a scope is not up yet.
  Then a process belongs to the lease whose job id is in its initial environment, or whose owner is its
  ancestor.
- If several leases match, the innermost one that holds this GPU counts. A job inside another uses what the
  outer one holds.
- NVML reports the machine's pids. A process that /proc does not show is outside our pid namespace and belongs
to
  no lease. Neither does a process that has left its scope for another unit.

A job may use a GPU that its lease does not hold. That process is the job's own (``used_by``), but it is also
foreign on this GPU (``foreign_mib``, ``foreign_pids``). No memory was reserved for it there, so to the GPU's
other users it is the same as an unknown process.

In some containers, under WSL and in MIG mode the driver does not report a process's memory. The memory of
such a GPU that no process accounts for belongs to these silent processes. If all of them belong to one lease,
it is that lease's. If they belong to several leases, each lease is assumed to use what it declared. Memory
beyond the declarations counts as foreign, because it was not reserved. If one of them belongs to no lease,
all of it counts as foreign.
"""

from __future__ import annotations

from slicer.placement.devices import Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from slicer.gpu.snapshot import GpuSnapshot, ProcessKey, ProcessOnGpu
    from slicer.model import GpuMemory, Lease


class Owners:
    """The leases, indexed to find the owner of a process."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.leases = {lease.job: lease for lease in leases}
        self._in_cgroup = {lease.cgroup: lease for lease in self.leases.values() if lease.cgroup}
        self._of_pid: dict[int, list[Lease]] = {}  # the youngest first: it was taken inside the others
        for lease in sorted(self.leases.values(), key=lambda lease: -lease.since_s):
            for pid in {lease.pid, lease.keeper} - {0}:
                self._of_pid.setdefault(pid, []).append(lease)

    def of(self, process: ProcessOnGpu) -> Lease | None:
        """The lease to which the process belongs; None for a foreign process."""
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
        """The leases under which the process was started, the innermost first."""
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
    """Each process with its lease, or None."""
    owners = Owners(leases)
    return [(process, owners.of(process)) for process in snapshot.processes]


def process_counts(snapshot: GpuSnapshot, leases: Iterable[Lease]) -> dict[tuple[str, str], int]:
    """The number of each job's processes that the driver lists, by job and GPU."""
    counts: dict[tuple[str, str], int] = {}
    for process, owner in attribute(snapshot, leases):
        if owner is not None:
            key = owner.job, process.gpu_uuid
            counts[key] = counts.get(key, 0) + 1
    return counts


def is_foreign(process: ProcessOnGpu, lease: Lease | None) -> bool:
    """Whether no memory was reserved for the process on its GPU; ``lease`` is the one to which it belongs."""
    return lease is None or process.gpu_uuid not in lease.gpus


def foreign_peaks(
    snapshot: GpuSnapshot, leases: Iterable[Lease], before: Mapping[ProcessKey, int]
) -> dict[ProcessKey, int]:
    """The highest use of each foreign GPU process, now or ``before``."""
    return {
        process.key: max(process.used_mib, before.get(process.key, 0))
        for process, lease in attribute(snapshot, leases)
        if process.used_mib is not None and is_foreign(process, lease)
    }


def devices(
    snapshot: GpuSnapshot, leases: Iterable[Lease], foreign_peaks: Mapping[ProcessKey, int]
) -> tuple[Device, ...]:
    """The GPUs, with their processes attributed to the leases (see the module's docstring)."""
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
        memory.gpu_uuid, memory.total_mib, memory.used_mib, used_by, foreign_mib, tuple(foreign_pids),
        memory.fault or "",
    )  # fmt: skip
