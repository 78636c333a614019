"""Reports the use of the GPUs to users that a fence keeps from asking the driver."""

from __future__ import annotations

from collections.abc import Iterable

from slicer.broker.protocol.messages import GpuNow, Seen, UseNow
from slicer.broker.server.connections import ReceivedCall
from slicer.broker.server.deciding import Decider
from slicer.broker.server.leases import Leases
from slicer.broker.server.loop import now_s
from slicer.gpu.attribution import attribute
from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu
from slicer.model import Gpu, GpuLoad, Lease
from slicer.record import as_dict, record

FRESH_S = 0.2  # how long one reading serves all callers


@record
class _Reading:
    snapshot: GpuSnapshot
    load: dict[str, GpuLoad]
    read_s: float


class Looking:
    def __init__(self, leases: Leases, decider: Decider) -> None:
        self._leases = leases
        self._decider = decider
        self._last: _Reading | None = None

    def look(self, call: ReceivedCall) -> None:
        """Report the use of the GPUs, and the caller's own part of it. Raises NoGpu, GpuError."""
        reading = self._reading()
        owned = attribute(reading.snapshot, self._leases.listed)
        gpus = _gpus(self._decider.observer.gpus, reading)
        call.connection.send(Seen(gpus, uses_for(owned, call.connection.peer.uid)))

    def _reading(self) -> _Reading:
        if self._last is None or now_s() - self._last.read_s >= FRESH_S:
            observer = self._decider.observer
            self._last = None
            self._last = _Reading(observer.observe(), observer.load(), now_s())
        return self._last


def _gpus(gpus: Iterable[Gpu], reading: _Reading) -> tuple[GpuNow, ...]:
    known = {gpu.uuid: gpu for gpu in gpus}
    return tuple(
        GpuNow(
            known[each.gpu_uuid].index, each.gpu_uuid, known[each.gpu_uuid].name,
            known[each.gpu_uuid].memory_mib, each.total_mib, each.used_mib, fault=each.fault or "",
            **as_dict(reading.load.get(each.gpu_uuid, GpuLoad())),
        )
        for each in reading.snapshot.memory if each.gpu_uuid in known
    )  # fmt: skip


def uses_for(owned: Iterable[tuple[ProcessOnGpu, Lease | None]], viewer: int) -> tuple[UseNow, ...]:
    """The use of the GPUs as a user may see it: its own processes (root: all), and sums of others'. Pure."""
    found: list[UseNow] = []
    others: dict[tuple[str, str, str, int | None], int | None] = {}
    for process, lease in owned:
        whose = (lease.job, lease.cgroup) if lease is not None else ("", "")
        if viewer == 0 or (lease is not None and lease.uid == viewer):
            found.append(UseNow(process.gpu_uuid, process.pid, *whose, process.used_mib))
            continue
        key = (process.gpu_uuid, *whose, process.uid if lease is None else None)
        before = others.get(key, 0)
        is_known = before is not None and process.used_mib is not None
        others[key] = (before or 0) + (process.used_mib or 0) if is_known else None
    found += [UseNow(gpu, 0, job, place, mib, uid) for (gpu, job, place, uid), mib in others.items()]
    return tuple(found)
