"""What one job uses on the GPUs of its lease: looked at once a second while it runs, and after its end.

Done by the outer half of the supervisor, and by the keeper at the end where the outer half is dead. Jobs that
are their own supervisor (``--exec``), jobs that use what a job around them holds, and orphans of a killed
outer half are not looked at while they run. Neither is what a job uses between two looks, or in its first
instants: the driver tells of no peaks.
"""

from __future__ import annotations

import time

from slicer.errors import SlicerError
from slicer.gpu.vram import ForeignPeaks, GpuWatch, Owners, devices, key_of
from slicer.job.job import tell
from slicer.quantity import format_size
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.gpu.vram import PeakKey, Seen, Sighting
    from slicer.job.job import Job
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease

FIRST_SAMPLE_S = 0.25  # after the start: loading the driver's library is not to slow that down
SAMPLE_S = 1.0
WORTH_WRITING = 1.02  # times the peak in the lease
WORTH_REPEATING = 1.10  # times the use that was warned of


class JobWatch:
    """Looks at the GPUs of one job. What fails on the way is said once, and then ends the looking."""

    def __init__(self, job: Job, held: HeldLease, book: Ledger, warn: Callable[[str], None]) -> None:
        self.job = job
        self.held = held
        self.book = book
        self.last: Sighting | None = None
        self._warn = warn
        self._watch: GpuWatch | None = None
        self._index: dict[str, int] = {}
        self._due = time.monotonic() + FIRST_SAMPLE_S
        self._has_failed = False
        self._leases: tuple[Lease, ...] = (held.lease,)
        self._keys: frozenset[PeakKey] = frozenset()
        self._peaks = ForeignPeaks(book.directory.base)
        self._warned_mib: dict[str, int] = {}

    def left_s(self) -> float | None:
        """How long until the next look; None when there will be none."""
        return None if self._has_failed else max(0.0, self._due - time.monotonic())

    def sample(self) -> None:
        """Look, and note the peak. Raises nothing of the driver or the ledger: it stops no job."""
        self._due = time.monotonic() + SAMPLE_S
        try:
            sighting = self.look()
            self._learn_leases(sighting)
            used = self._used(sighting)
            if used is not None:
                self._note(used)
            if self._peaks.is_stale(sighting, self._leases, self.held.lease.gpus):
                self.share_foreign(sighting)
        except SlicerError as error:
            self.fail(error)

    def look(self) -> Sighting:
        """The job's GPUs as they are now. Raises NoGpu, GpuError."""
        if self._watch is None:
            self._watch, gpus = GpuWatch.open()
            self._index = {gpu.uuid: gpu.index for gpu in gpus}
        self.last = self._watch.look(self.held.lease.gpus)
        return self.last

    def fail(self, error: SlicerError) -> None:
        """Say why the GPUs are not looked at any more."""
        if not self._has_failed:
            self._has_failed = True
            self.say(f"what the job uses on its GPUs can no longer be seen: {error}")

    @property
    def has_failed(self) -> bool:
        """Whether looking again makes no sense."""
        return self._has_failed

    def say(self, text: str) -> None:
        """To the user and the journal."""
        self._warn(text)
        tell(self.job, "error", message=text)

    def name_of(self, uuid: str) -> str:
        """ "GPU 0", as `slicer status` and CUDA's PCI order count."""
        return f"GPU {self._index.get(uuid, uuid)}"

    def close(self) -> None:
        """Give the driver's library back. Safe to repeat."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def leases(self) -> tuple[Lease, ...]:
        """All live leases. Raises StateError."""
        with self.book.locked():
            return self.book.leases()

    def _learn_leases(self, sighting: Sighting) -> None:
        """Whose a new process is, only the ledger tells; its lock is not taken for those that are known."""
        keys = frozenset(map(key_of, sighting.processes))
        if not keys <= self._keys:
            self._leases = self.leases()
        self._keys = keys

    def _used(self, sighting: Sighting) -> dict[str, int] | None:
        """What the job uses now, in MiB by GPU; None where the driver does not say how much of it is its."""
        lease = self.held.lease
        owners = Owners(self._leases)
        for uuid in lease.gpus:
            mute = [seen for seen in sighting.processes if seen.gpu_uuid == uuid and seen.used_mib is None]
            owned = [owner is not None and owner.job == lease.job for owner in map(owners.of, mute)]
            if any(owned) and not all(owned):
                return None
        found = devices(sighting, self._leases, {})
        return {device.uuid: device.used_by.get(lease.job, 0) for device in found}

    def _note(self, used: dict[str, int]) -> None:
        lease = self.held.lease
        before = lease.vram_peak_mib or (0,) * len(lease.gpus)
        peaks = tuple(max(used.get(uuid, 0), mib) for uuid, mib in zip(lease.gpus, before, strict=True))
        grown = any(now > then * WORTH_WRITING for now, then in zip(peaks, before, strict=True))
        if grown or not lease.vram_peak_mib:
            self.held.update(vram_peak_mib=peaks)
        else:
            self.held.lease = replace(lease, vram_peak_mib=peaks)  # the outcome is to be exact
        for uuid in lease.gpus:
            self._compare(uuid, used.get(uuid, 0), lease.vram_mib)

    def _compare(self, uuid: str, used_mib: int, declared_mib: int | None) -> None:
        """Say at once when the job outgrows what it declared (E5), and again when it gets much worse."""
        if declared_mib is None or used_mib <= declared_mib:
            return
        if used_mib <= self._warned_mib.get(uuid, 0) * WORTH_REPEATING:
            return
        self._warned_mib[uuid] = used_mib
        text = (
            f"{self.job.name or 'the job'} uses {format_size(used_mib << 20)} of {self.name_of(uuid)},"
            f" declared {format_size(declared_mib << 20)}"
        )
        self._warn(text)
        tell(
            self.job, "over-limit", message=text, gpu=uuid, declared_mib=declared_mib, used_mib=used_mib
        )  # fmt: skip

    def share_foreign(self, sighting: Sighting) -> None:
        """Let the others know how much foreign processes were seen to use. Raises StateError."""
        with self.book.locked():
            self._leases = self.book.leases()
            warning = self._peaks.update(sighting, self._leases, self.held.lease.gpus)
        if warning:
            self.say(warning)

    def share_end(self, sighting: Sighting, leases: tuple[Lease, ...]) -> None:
        """The last word on foreign processes. Raises StateError."""
        if self._peaks.is_stale(sighting, leases, self.held.lease.gpus):
            self.share_foreign(sighting)


def describe(seen: Seen) -> str:
    """As in "pid 4711 (python, 3.2G)"."""
    size = "size unknown" if seen.used_mib is None else format_size(seen.used_mib << 20)
    return f"pid {seen.pid} ({seen.name or 'unknown'}, {size})"
