"""What one job uses on the GPUs of its lease. It is looked at once a second, and after its end.

The outer half does this. If it is dead, the keeper looks at the end. Nobody looks while a job runs that has
neither (``--exec``), that uses what an outer job holds, or whose outer half was killed. Nobody sees what a
job uses between two looks, or in its first instants: the driver keeps no peaks.
"""

from __future__ import annotations

import time

from slicer.errors import NoGpu, SlicerError
from slicer.gpu.attribution import attribute, devices, process_counts
from slicer.gpu.observer import GpuObserver
from slicer.job.job import tell
from slicer.quantity import format_size
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.gpu import AttributedGpus
    from slicer.gpu.snapshot import GpuSnapshot, ProcessKey, ProcessOnGpu
    from slicer.job.job import Job
    from slicer.job.share_audit import Finding, ShareAudit
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease

FIRST_SAMPLE_S = 0.25  # after the start: loading the driver's library is not to slow that down
SAMPLE_S = 1.0
WORTH_WRITING = 1.02  # times the peak in the lease
WORTH_REPEATING = 1.10  # times the use that was warned of


def _through_the_broker() -> AttributedGpus:
    from slicer.broker.client.gpus import open_gpus

    return open_gpus()


class GpuWatch:
    """Looks at the GPUs of one job. A look that fails is reported once, and is the last."""

    def __init__(self, job: Job, held: HeldLease, ledger: Ledger, warn: Callable[[str], None]) -> None:
        self.job = job
        self.held = held
        self.ledger = ledger
        self._warn = warn
        self.observer = GpuObserver(only=held.lease.gpus, otherwise=_through_the_broker)
        self._due = time.monotonic() + FIRST_SAMPLE_S
        self.has_failed = False  # then looking again makes no sense
        self._leases: tuple[Lease, ...] = (held.lease,)
        self._keys: frozenset[ProcessKey] = frozenset()
        self._warned_mib: dict[str, int] = {}
        self._audit = self._new_audit()
        self.end_job: Callable[[], None] | None = None  # how a job that got past its cap is ended

    def _new_audit(self) -> ShareAudit | None:
        """What looks at how the job shares its GPUs; None: it does not."""
        sharing = self.job.sharing
        if sharing is None or not sharing.is_active:
            return None
        from slicer.job.share_audit import ShareAudit

        return ShareAudit(self.ledger.directory, self.job.id)

    def left_s(self) -> float | None:
        """How long until the next look; None when there will be none."""
        return None if self.has_failed else max(0.0, self._due - time.monotonic())

    def sample(self) -> None:
        """Look, and note the peak. Raises nothing of the driver or the ledger: it stops no job."""
        self._due = time.monotonic() + SAMPLE_S
        try:
            if self._audit is not None:
                self._audit.before()
            snapshot = self.observer.observe()
            self._learn_leases(snapshot)
            used = self._used(snapshot)
            if used is not None:
                self._note(used)
                self._note_sharing(used, snapshot)
        except SlicerError as error:
            self.fail(error)

    def fail(self, error: SlicerError) -> None:
        """Say why the GPUs are not looked at any more; not that they are fenced off, which is meant so."""
        if not self.has_failed:
            self.has_failed = True
            if isinstance(error, NoGpu) and error.reason == "fenced":
                return
            self.say(f"what the job uses on its GPUs can no longer be seen: {error}")

    def say(self, text: str) -> None:
        """To the user and the journal."""
        self._warn(text)
        tell(self.job, "error", lease=self.held.lease, message=text)

    def name_of(self, uuid: str) -> str:
        """ "GPU 0", as `slicer status` and CUDA's PCI order count."""
        return f"GPU {self.observer.index(uuid)}"

    def leases(self) -> tuple[Lease, ...]:
        """All live leases. Raises StateError."""
        with self.ledger.locked():
            return self.ledger.leases()

    def _learn_leases(self, snapshot: GpuSnapshot) -> None:
        """Read the leases where there are new processes. For the known ones the lock need not be taken."""
        keys = frozenset(process.key for process in snapshot.processes)
        if not keys <= self._keys:
            self._leases = self.leases()
        self._keys = keys

    def _used(self, snapshot: GpuSnapshot) -> dict[str, int] | None:
        """What the job uses now, in MiB by GPU; None where the driver does not say how much of it is its."""
        lease = self.held.lease
        attributed = attribute(snapshot, self._leases)
        for uuid in lease.gpus:
            silent = [owner for each, owner in attributed if each.gpu_uuid == uuid and each.used_mib is None]
            owned = [owner is not None and owner.job == lease.job for owner in silent]
            if any(owned) and not all(owned):
                return None
        found = devices(snapshot, self._leases, {})
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
        if self._audit is not None and self._audit.has_cap:
            return  # what goes beyond that is the audit's
        for uuid in lease.gpus:
            self._compare(uuid, used.get(uuid, 0), lease.vram_mib)

    def _note_sharing(self, used: dict[str, int], snapshot: GpuSnapshot) -> None:
        """Say what the library did not keep the job from."""
        if self._audit is None:
            return
        lease = self.held.lease
        counts = process_counts(snapshot, self._leases)
        processes = {uuid: counts.get((lease.job, uuid), 0) for uuid in lease.gpus}
        for found in self._audit.after({uuid: used.get(uuid, 0) for uuid in lease.gpus}, processes):
            if found.is_escape:
                self._warn(f"{self.job.name or 'the job'} {ESCAPED}")
                continue
            text = past_cap(self.name_of(found.gpu), found)
            self._warn(f"{self.job.name or 'the job'} {text}")
            tell(
                self.job, "over-limit", lease=lease, message=text, over_gpu=found.gpu,
                declared_mib=found.cap_mib, used_mib=found.used_mib,
            )  # fmt: skip
            if found.ends and self.end_job is not None:
                self.end_job()

    def _compare(self, uuid: str, used_mib: int, declared_mib: int | None) -> None:
        """Say at once when the job outgrows what it declared (E5), and again when it gets much worse."""
        if declared_mib is None or used_mib <= declared_mib:
            return
        if used_mib <= self._warned_mib.get(uuid, 0) * WORTH_REPEATING:
            return
        self._warned_mib[uuid] = used_mib
        text = (
            f"uses {format_size(used_mib << 20)} of {self.name_of(uuid)},"
            f" declared {format_size(declared_mib << 20)}"
        )
        self._warn(f"{self.job.name or 'the job'} {text}")
        tell(
            self.job, "over-limit", lease=self.held.lease, message=text, over_gpu=uuid,
            declared_mib=declared_mib, used_mib=used_mib,
        )  # fmt: skip


ESCAPED = (
    "uses its GPU without the library: its program is statically linked, or its environment was cleared;"
    " it takes no turns, and has no cap"
)


def past_cap(gpu: str, found: Finding) -> str:
    """What is said of a job that got past its cap."""
    used, cap = format_size(found.used_mib << 20), format_size(found.cap_mib << 20)
    ended = ", and is ended" if found.ends else ""
    return f"uses {used} of {gpu}, beyond its cap of {cap}: it got past the library{ended}"


def describe(process: ProcessOnGpu) -> str:
    """As in "pid 4711 (python, 3.2G)"."""
    size = "size unknown" if process.used_mib is None else format_size(process.used_mib << 20)
    if not process.pid:
        return f"processes of others ({size})"
    return f"pid {process.pid} ({process.name or 'unknown'}, {size})"
