"""What the queue's jobs use on their GPUs. One look serves all of them.

Peaks go into the outcome. They go into the leases too, because others who decide about the GPU must know of a
job that outgrew its declaration (E3). After a job, its GPUs are looked at until its memory is free (B5).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from slicer.errors import SlicerError
from slicer.gpu.attribution import process_counts
from slicer.job import gpu_leftovers
from slicer.job.gpu_watch import WORTH_WRITING, describe
from slicer.job.share_audit import ShareAudit
from slicer.kernel.sleep import seconds_until
from slicer.quantity import format_size
from slicer.queue.model import GpuRow
from slicer.record import record

if TYPE_CHECKING:
    from slicer.gpu.observer import GpuObserver
    from slicer.gpu.snapshot import GpuSnapshot
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease
    from slicer.placement.capacity import Device

_FIRST_LOOKS_S = (0.25, 1.0)  # after a job's start, whatever --poll says
_AFTER_END_S = 0.05  # between two looks after a job's end: the driver sends no event


class Use:
    """What the job of one lease uses. The tuples are in the order of its GPUs; () before the first look."""

    def __init__(self, held: HeldLease, peak_mib: tuple[int, ...], looks_due: list[float]) -> None:
        self.held = held
        self.now_mib: tuple[int, ...] = ()
        self.peak_mib = peak_mib
        self.utilisation: float | None = None  # percent, averaged over the looks that told it
        self.looks = 0
        self.busy_looks = 0
        self.looks_due = looks_due
        self.exceeded: set[str] = set()  # the GPUs for which it was reported
        self.audit: ShareAudit | None = None  # of a job that shares its GPUs
        self.has_cap = False
        self.ended_at: float | None = None
        self.is_over = False  # then it is looked at no more


@record
class Exceeded:
    """A job uses more of a GPU than it declared, or than its cap."""

    job: str  # its id
    gpu: str
    used_mib: int
    declared_mib: int
    ends: bool = False  # it got past its cap, and is to be ended for it


@record
class Escaped:
    """A job that is to share its GPUs uses them without the library."""

    job: str  # its id


class Monitor:
    """Looks every ``poll_s`` seconds while a job of the queue has GPUs. ``problem``: why it cannot, or "".

    A job is reported when it exceeds its declaration by more than the fraction ``tolerance``.
    """

    def __init__(
        self, gpu_observer: GpuObserver, ledger: Ledger, poll_s: float, idle_threshold_mib: int,
        tolerance: float,
    ) -> None:  # fmt: skip
        self._gpu_observer = gpu_observer
        self._ledger = ledger
        self._poll_s = poll_s
        self._idle_mib = idle_threshold_mib
        self._tolerance = tolerance
        self._uses: dict[str, Use] = {}
        self._next = 0.0
        self._utilisation: dict[str, int | None] = {}
        self.look_count = 0
        self.problem = ""

    # -- which jobs --------------------------------------------------------------------------------------

    def follow(self, held: HeldLease, *, shares: bool = False) -> None:
        """The job with this lease runs: look at its GPUs, if it has some. Raises NoGpu, GpuError.

        ``shares``: it may have a file that tells how it shares them.
        """
        if held.lease.gpus:
            self._gpu_observer.open()
            now = time.monotonic()
            known = held.lease.vram_peak_mib  # of a job that is adopted
            use = Use(held, known, [now + s for s in _FIRST_LOOKS_S])
            if shares:
                use.audit = ShareAudit(held.directory, held.lease.job)
                use.has_cap = use.audit.has_cap
            self._uses[held.lease.job] = use

    def use_of(self, job: str) -> Use | None:
        return self._uses.get(job)

    def has_ended(self, job: str) -> None:
        """The job's processes have ended. Its GPU memory may be freed a moment later."""
        use = self._uses.get(job)
        if use is not None:
            use.ended_at = time.monotonic()
            _end_audit(use)

    def forget(self, job: str) -> Use | None:
        """The job is over. Returns what was seen of it."""
        use = self._uses.pop(job, None)
        if use is not None:
            _end_audit(use)
        return use

    # -- looking -----------------------------------------------------------------------------------------

    def left_s(self) -> float | None:
        """How many seconds until the next :meth:`look`; None: there is nothing to look at."""
        if not self._uses:
            return None
        due = [self._next, *(at for use in self._uses.values() for at in use.looks_due[:1])]
        if any(use.ended_at is not None for use in self._uses.values()):
            due.append(time.monotonic() + _AFTER_END_S)
        return seconds_until(*due)

    def look(self) -> list[Exceeded | Escaped]:
        """Look at all GPUs once. Returns which jobs have outgrown their declarations since the last look."""
        now = time.monotonic()
        self._next = now + self._poll_s
        self.look_count += 1
        for use in self._uses.values():
            use.looks_due = [at for at in use.looks_due if at > now]
        found: list[Exceeded | Escaped] = []
        audited = [use.audit for use in self._uses.values() if use.audit is not None]
        try:
            for each in audited:
                each.before()
            snapshot, devices = self._observe()
            self._utilisation = self._gpu_observer.utilisation()
            used_by = {device.uuid: device.used_by for device in devices}
            leases = [use.held.lease for use in self._uses.values()]
            counts = process_counts(snapshot, leases) if audited else {}
            for use in self._uses.values():
                if use.ended_at is None and not use.is_over:
                    found += self._note(use, used_by)
                    found += _shared_badly(use, counts)
        except SlicerError as error:
            self.problem = str(error)
            return found
        self.problem = ""
        return found

    def _observe(self) -> tuple[GpuSnapshot, tuple[Device, ...]]:
        """What is on the GPUs now, also attributed to the leases. Raises NoGpu, GpuError, StateError."""
        snapshot = self._gpu_observer.observe()
        with self._ledger.locked():
            return snapshot, self._gpu_observer.devices(self._ledger.leases()) or ()

    def _note(self, use: Use, used_by: dict[str, dict[str, int]]) -> list[Exceeded]:
        lease = use.held.lease
        use.looks += 1
        use.now_mib = tuple(used_by.get(uuid, {}).get(lease.job, 0) for uuid in lease.gpus)
        before = use.peak_mib or (0,) * len(lease.gpus)
        use.peak_mib = tuple(map(max, use.now_mib, before))
        written = lease.vram_peak_mib or (0,) * len(lease.gpus)
        if any(peak > mib * WORTH_WRITING for peak, mib in zip(use.peak_mib, written, strict=True)):
            use.held.note_peaks(use.peak_mib)
        busy = [percent for uuid in lease.gpus if (percent := self._utilisation.get(uuid)) is not None]
        if busy:
            average = sum(busy) / len(busy)
            use.utilisation = ((use.utilisation or 0.0) * use.busy_looks + average) / (use.busy_looks + 1)
            use.busy_looks += 1
        return list(self._exceeded(use, lease))

    def _exceeded(self, use: Use, lease: Lease) -> Iterable[Exceeded]:
        if lease.vram_mib is None or use.has_cap:  # what goes beyond a cap is the audit's
            return
        for uuid, mib in zip(lease.gpus, use.now_mib, strict=True):
            allowed_mib = lease.vram_mib * (1 + self._tolerance)
            if mib > allowed_mib and uuid not in use.exceeded:
                use.exceeded.add(uuid)
                yield Exceeded(lease.job, uuid, mib, lease.vram_mib)

    # -- after a job -------------------------------------------------------------------------------------

    def settled(self, say: Callable[[str], None]) -> set[str]:
        """The ended jobs whose GPUs may be used again, each once: their memory is free, or took too long."""
        ended = {job: use for job, use in self._uses.items() if use.ended_at is not None}
        if not ended:
            return set()
        try:
            snapshot = self._observe()[0]
        except SlicerError as error:
            self.problem = str(error)
            snapshot = None
        found = set()
        for job, use in ended.items():
            if snapshot is None or self._is_settled(use, snapshot, say):
                use.ended_at = None
                use.is_over = True
                found.add(job)
        return found

    def _is_settled(self, use: Use, snapshot: GpuSnapshot, say: Callable[[str], None]) -> bool:
        left = gpu_leftovers.remains(snapshot, use.held.lease, self._idle_mib)
        if not left.own and not left.unexplained:
            return True
        if use.ended_at is not None and time.monotonic() - use.ended_at < gpu_leftovers.SETTLE_S:
            return False
        what = [describe(seen) for seen in left.own]
        what += [f"{format_size(mib << 20)} of no process" for mib in left.unexplained.values()]
        say(f"after its job GPU memory is still in use: {', '.join(what)}")
        return True

    # -- for people --------------------------------------------------------------------------------------

    def uses(self) -> list[tuple[str, Use]]:
        """What each running job uses, by its id."""
        return list(self._uses.items())

    def indices(self) -> dict[str, int]:
        """The numbers by which people know the GPUs, by UUID."""
        return {gpu.uuid: gpu.index for gpu in self._gpu_observer.gpus}

    def index(self, uuid: str) -> int:
        """The number of one GPU; for a GPU that is not listed, the number after all others."""
        return self.indices().get(uuid, len(self._gpu_observer.gpus))

    def rows(self, numbers: dict[str, int]) -> tuple[GpuRow, ...]:
        """The GPUs as last seen. ``numbers`` maps the ids of this queue's jobs to their numbers."""
        memory = {each.gpu_uuid: each for each in self._gpu_observer.memory}
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
            for gpu in self._gpu_observer.gpus
        )


def _shared_badly(use: Use, counts: dict[tuple[str, str], int]) -> Iterable[Exceeded | Escaped]:
    """What a look says of a job's sharing."""
    if use.audit is None:
        return
    lease = use.held.lease
    used = dict(zip(lease.gpus, use.now_mib, strict=True))
    processes = {uuid: counts.get((lease.job, uuid), 0) for uuid in lease.gpus}
    for found in use.audit.after(used, processes):
        if found.is_escape:
            yield Escaped(lease.job)
        else:
            yield Exceeded(lease.job, found.gpu, found.used_mib, found.cap_mib, found.ends)


def _end_audit(use: Use) -> None:
    if use.audit is not None:
        use.audit.close()
        use.audit = None
