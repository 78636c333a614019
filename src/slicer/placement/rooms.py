"""GPUs during a decision: what of them is left, and when more will be. Pure."""

from __future__ import annotations

from slicer.placement.devices import (
    Device,
    budget_mib,
    buffered,
    headroom,
    is_used_by_others,
    unexplained_mib,
)
from slicer.placement.order import expected_end, length_of
from slicer.placement.settings import NEVER, Policy
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from slicer.model import Lease, Request


@record
class _End:
    at_s: float
    mib: int | None  # what it frees on the GPU; None: all of it
    since_s: float
    is_overdue: bool  # it has exceeded its estimate, or never had one


@record
class StrictTurn:
    """A request's turn that has become strict: see :mod:`slicer.placement.decision`."""

    began_s: float
    strict_s: float  # when it became that

    def end_s(self, end: _End, now_s: float) -> float:
        """When the lease counts as ending. Claims of newer leases count for less."""
        is_doubted = end.since_s > self.strict_s or (end.since_s > self.began_s and end.is_overdue)
        return now_s if is_doubted else end.at_s


class GpuRoom:
    def __init__(self, index: int, device: Device, leases: list[Lease], policy: Policy, now_s: float) -> None:
        self.uuid = device.uuid
        self.index = index  # in PCI order, with those that are placed last behind the others
        self.total_mib = device.total_mib
        self.foreign_mib = max(buffered(device.foreign_mib, policy), unexplained_mib(device))
        self.is_foreign = is_used_by_others(device, policy)
        self.is_idle = not leases and not self.is_foreign
        self.free_mib = headroom(device, leases, policy) if device.total_mib else None  # None: no sharing
        self.newest_s = max((lease.since_s for lease in leases), default=-NEVER)
        self.is_open_ended = any(lease.est_s is None for lease in leases)
        self._ends = [
            _End(
                expected_end(lease, now_s),
                None if lease.vram_mib is None else budget_mib(lease, device, policy), lease.since_s,
                lease.est_s is None or lease.since_s + lease.est_s <= now_s,
            )
            for lease in leases
        ]  # fmt: skip

    def take(self, request: Request, left_mib: int | None, now_s: float) -> None:
        """Count a request as granted. ``left_mib``: what it leaves; None: nothing."""
        self.free_mib = left_mib
        self.newest_s = now_s
        self.is_open_ended |= request.est_s is None
        self._ends.append(_End(now_s + length_of(request), request.vram_mib, now_s, request.est_s is None))

    def lacks(self, need: int | None) -> bool:
        """Whether some use has to end before ``need`` MiB (None: the whole GPU) are free."""
        if need is None:
            return self.newest_s > -NEVER or self.is_foreign
        return self.free_mib is None or self.free_mib < need

    def is_taken_by_foreign(self, need: int | None) -> bool:
        """Whether foreign processes are in the way of ``need`` MiB (None: of the whole GPU)."""
        return self.is_foreign if need is None else self.total_mib - self.foreign_mib < need

    def is_stuck(self, need: int | None) -> bool:
        """Whether foreign processes take it, and no lease is left whose end could free it."""
        return self.is_taken_by_foreign(need) and self.newest_s == -NEVER

    def fits_at(self, need: int | None, now_s: float, turn: StrictTurn | None) -> float:
        """When ``need`` MiB should be free. ``turn``: of the request that needs it, if that is strict."""
        if not self.lacks(need):
            return now_s
        ends = sorted(
            (turn.end_s(each, now_s) if turn else each.at_s, each.mib or 0, each.mib is None)
            for each in self._ends
        )
        if need is None or any(is_whole for _, _, is_whole in ends):
            return ends[-1][0] if ends else now_s
        free_mib = self.free_mib or 0
        for at_s, mib, _ in ends:
            free_mib += mib
            if free_mib >= need:
                return at_s
        return ends[-1][0] if ends else now_s

    def spare_mib(self, need: int, until_s: float) -> int | None:
        """What is left beside ``need`` and the leases that should outlast ``until_s``; None: nothing."""
        left = self.total_mib - self.foreign_mib - need
        for each in self._ends:
            if each.at_s > until_s:
                if each.mib is None:
                    return None
                left -= each.mib
        return left


class Pool:
    """What one sort of request may take: whole GPUs, and MiB of each."""

    def __init__(self, gpus: Collection[GpuRoom]) -> None:
        self.mib = {gpu.index: gpu.free_mib for gpu in gpus}
        self.idle = {gpu.uuid: gpu for gpu in gpus if gpu.is_idle}
        # In increasing order: the n-th last entry shows at once whether n GPUs have enough.
        self.free = sorted((mib, index) for index, mib in self.mib.items() if mib is not None)

    def set(self, gpu: GpuRoom, mib: int | None) -> None:
        """The MiB left of a GPU that is not whole any more; None: none at all."""
        before_mib = self.mib[gpu.index]
        self.idle.pop(gpu.uuid, None)
        if before_mib is not None:
            self.free.remove((before_mib, gpu.index))
        self.mib[gpu.index] = mib
        if mib is not None:
            self.free.append((mib, gpu.index))
            self.free.sort()
