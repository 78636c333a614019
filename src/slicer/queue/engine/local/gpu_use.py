"""Measures the queue's jobs on their GPUs. One look covers all jobs.

After a job's end, the looks at its GPUs continue until its memory is free (B5).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slicer.errors import SlicerError
from slicer.gpu.observer import GpuObserver
from slicer.gpu.snapshot import GpuSnapshot
from slicer.job import gpu_leftovers
from slicer.job.gpu_watch import LeaseUse, Monitor, describe
from slicer.kernel.sleep import soonest
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.quantity import format_size
from slicer.queue.model import GpuRow

_AFTER_END_S = 0.05  # between two looks after a job's end: the driver sends no event


class QueueMonitor(Monitor):
    """Looks while a job of the queue has GPUs."""

    def __init__(
        self, observer: GpuObserver, ledger: Ledger, poll_s: float, idle_threshold_mib: int, tolerance: float
    ) -> None:
        super().__init__(observer, ledger, poll_s, tolerance=tolerance)
        self._idle_mib = idle_threshold_mib

    # -- which jobs --------------------------------------------------------------------------------------

    def follow(self, held: HeldLease, *, shares: bool = False) -> LeaseUse | None:
        """Like :meth:`Monitor.follow`. Raises NoGpu, GpuError."""
        if held.lease.gpus:
            self._observer.open()
        return super().follow(held, shares=shares)

    def use_of(self, job: str) -> LeaseUse | None:
        return self._uses.get(job)

    def has_ended(self, job: str) -> None:
        """The job's processes have ended. Its GPU memory may be freed a moment later."""
        use = self._uses.get(job)
        if use is not None:
            use.ended_at = time.monotonic()
            use.end_audit()

    def forget(self, job: str) -> LeaseUse | None:
        use = self._uses.pop(job, None)
        if use is not None:
            use.end_audit()
        return use

    # -- looking -----------------------------------------------------------------------------------------

    def left_s(self) -> float | None:
        """Like :meth:`Monitor.left_s`, but soon while an ended job's GPU memory is not free."""
        has_ended = any(use.ended_at is not None for use in self._uses.values())
        return soonest(super().left_s(), _AFTER_END_S if has_ended else None)

    def settled(self, say: Callable[[str], None]) -> set[str]:
        """The ended jobs whose GPUs may be used again, each once: the memory is free, or took too long."""
        ended = {job: use for job, use in self._uses.items() if use.ended_at is not None}
        if not ended:
            return set()
        try:
            snapshot = self.observe()
        except SlicerError as error:
            self.problem = error
            snapshot = None
        found = set()
        for job, use in ended.items():
            if snapshot is None or self._is_settled(use, snapshot, say):
                use.ended_at = None
                use.is_over = True
                found.add(job)
        return found

    def _is_settled(self, use: LeaseUse, snapshot: GpuSnapshot, say: Callable[[str], None]) -> bool:
        left = gpu_leftovers.remains(snapshot, use.held.lease, self._idle_mib)
        if not left.own and not left.unexplained:
            return True
        if use.ended_at is not None and time.monotonic() - use.ended_at < gpu_leftovers.SETTLE_S:
            return False
        what = [describe(seen) for seen in left.own]
        what += [f"{format_size(mib << 20)} without a process" for mib in left.unexplained.values()]
        say(f"GPU memory is still in use after its job: {', '.join(what)}")
        return True

    # -- for people --------------------------------------------------------------------------------------

    def uses(self) -> list[tuple[str, LeaseUse]]:
        return list(self._uses.items())

    def indices(self) -> dict[str, int]:
        """The numbers by which people know the GPUs, by UUID."""
        return {gpu.uuid: gpu.index for gpu in self._observer.gpus}

    def index(self, uuid: str) -> int:
        """The number of one GPU; for a GPU that is not listed, the number after all others."""
        return self.indices().get(uuid, len(self._observer.gpus))

    def rows(self, numbers: dict[str, int]) -> tuple[GpuRow, ...]:
        """The GPUs as last seen. ``numbers`` maps the ids of this queue's jobs to their numbers."""
        memory = {each.gpu_uuid: each for each in self._observer.memory}
        on: dict[str, list[int]] = {}
        for job in self._uses.keys() & numbers.keys():
            for uuid in self._uses[job].held.lease.gpus:
                on.setdefault(uuid, []).append(numbers[job])
        return tuple(
            GpuRow(
                gpu.index,
                gpu.name,
                memory[gpu.uuid].total_mib if gpu.uuid in memory else gpu.memory_mib,
                memory[gpu.uuid].used_mib if gpu.uuid in memory else 0,
                self._utilisation.get(gpu.uuid) if self._uses else None,
                tuple(sorted(on.get(gpu.uuid, []))),
            )
            for gpu in self._observer.gpus
        )
