"""The GPUs at one moment: their memory, and the facts that identify the owners of their processes.

The driver reports pids. /proc has their cgroup, environment and ancestors. Reading that is slow, so it
happens without the ledger's lock. Under the lock, :mod:`slicer.gpu.attribution` finds the owners.
"""

from __future__ import annotations

from slicer.kernel import cgroup, proc
from slicer.model import LEASE_VARIABLE, GpuMemory, GpuProcess
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Protocol

    from slicer.gpu import Gpus

    ProcessKey = tuple[int, int, str]  # pid, start time, GPU

    class AttributedGpus(Gpus, Protocol):
        """GPUs that report snapshots whose processes are already attributed to jobs."""

        def snapshot(self, only: Collection[str] = ()) -> GpuSnapshot:
            """A snapshot, with the jobs of all processes. Raises GpuError."""

_MOST_ANCESTORS = 64
_MOST_ENVIRON = 4 << 20  # bytes; the kernel allows a quarter of the stack limit, 2 MiB by default
_DELETED = " (deleted)"  # the kernel adds this to the name of a cgroup that is gone
_NOWHERE = ("", "/")  # the cgroup of a process that has left its own while it exits


@record
class ProcessOnGpu:
    """A process with a context on one GPU, and the facts that identify its owner."""

    gpu_uuid: str
    pid: int
    used_mib: int | None  # None: the driver does not report it
    started: int  # clock ticks since boot (see proc.start_time); 0: not in our /proc
    name: str
    cgroup: str  # as in /proc/PID/cgroup; "" if unknown
    jobs: tuple[str, ...]  # the jobs inside which it was started, the innermost last
    above: tuple[int, ...]  # the pids of its ancestors, the nearest first
    uid: int | None = None  # None: unknown

    @property
    def key(self) -> ProcessKey:
        return self.pid, self.started, self.gpu_uuid


@record
class GpuSnapshot:
    """The GPUs at one moment, in the driver's order, and every process on any of them."""

    memory: tuple[GpuMemory, ...]
    processes: tuple[ProcessOnGpu, ...]


def take(
    gpus: Gpus, before: GpuSnapshot | None, only: Collection[str], trusts_environment: bool = True
) -> GpuSnapshot:
    """Ask the driver and /proc about the GPUs ``only`` (empty: all). Raises GpuError.

    Without ``trusts_environment`` no environment is read, because users could put another's job into their
    own. When a process is killed, its environment is gone before its GPU memory is free. So that information
    is taken from
    ``before``, the previous snapshot.
    """
    known = {process.pid: process for process in before.processes} if before else {}
    found = _take(gpus, known, only, trusts_environment)
    if all(process.started for process in found.processes):
        return found
    # Some were missing in /proc. Most of these have just ended, and the driver no longer lists them.
    return _take(gpus, known, only, trusts_environment)


def _take(
    gpus: Gpus, known: Mapping[int, ProcessOnGpu], only: Collection[str], trusts_environment: bool
) -> GpuSnapshot:
    memory = gpus.memory(only)
    facts: dict[int, ProcessOnGpu] = {}
    found = []
    for listed in gpus.processes(only):
        pid = listed.pid
        process = facts.get(pid) or facts_of(listed, known.get(pid), trusts_environment)
        facts[pid] = replace(process, gpu_uuid=listed.gpu_uuid, used_mib=listed.used_mib)
        found.append(facts[pid])
    return GpuSnapshot(memory, tuple(found))


def facts_of(listed: GpuProcess, known: ProcessOnGpu | None, trusts_environment: bool) -> ProcessOnGpu:
    """The process according to /proc; facts that /proc no longer has are taken from ``known``."""
    pid = listed.pid
    started, name = _identity(pid)
    if known is not None and started in (0, known.started):
        within = _cgroup(pid)
        return replace(known, cgroup=within if within not in _NOWHERE else known.cgroup)
    if not started:
        return ProcessOnGpu(listed.gpu_uuid, pid, listed.used_mib, 0, "", "", (), ())
    jobs = _marker(pid) if trusts_environment else ()
    return ProcessOnGpu(
        listed.gpu_uuid, pid, listed.used_mib, started, name, _cgroup(pid), jobs, tuple(_ancestors(pid)),
        proc.uid_of(pid),
    )  # fmt: skip


def _identity(pid: int) -> tuple[int, str]:
    """The start time and the name of a process; 0 and "" if /proc does not show it."""
    stat = proc.text_of(f"/proc/{pid}/stat")
    if not stat:
        return 0, ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return int(rest.split()[19]), name


def _cgroup(pid: int) -> str:
    try:
        return cgroup.of(pid).removesuffix(_DELETED)
    except OSError:
        return ""


def _marker(pid: int) -> tuple[str, ...]:
    """The jobs around a process, from its environment; none if we may not read that."""
    prefix = f"{LEASE_VARIABLE}=".encode()
    entries = proc.environment(pid, _MOST_ENVIRON).split(b"\0")
    text = next((entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix)), b"")
    return tuple(filter(None, text.decode("ascii", "replace").split(",")))


def _ancestors(pid: int) -> Iterator[int]:
    for _ in range(_MOST_ANCESTORS):  # pids may be reused meanwhile
        pid = proc.parent(pid)
        if not pid:
            return
        yield pid
