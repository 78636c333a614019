"""Measures a job on the GPUs of its lease, look by look.

The supervisor looks once a second and after the job's end; if it is dead, the keeper measures at the end. A
running job is not measured if it has neither process (``--exec``), if it uses an outer job's GPUs, or if its
supervisor was killed.

Peaks go into the outcome. They also go into the leases, because others who decide about the GPU must know
about a job that outgrew its declaration (E3). The driver records no peaks, so the use between two looks,
or in a job's first instants, is not seen.
"""

from __future__ import annotations

import time

from slicer.errors import NoGpu, SlicerError
from slicer.gpu.attribution import attribute, process_counts
from slicer.gpu.observer import GpuObserver
from slicer.job.gpu_use import Escaped, Exceeded, GpuUse
from slicer.job.job import Follower, Job, tell
from slicer.kernel.sleep import seconds_until
from slicer.quantity import format_size
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from slicer.gpu.snapshot import AttributedGpus, GpuSnapshot, ProcessKey, ProcessOnGpu
    from slicer.job.gpu_use import Found
    from slicer.job.idle_watch import IdleNews, IdleWatch
    from slicer.job.sharing import ShareAudit
    from slicer.ledger.control_log import Kind
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease

ALL_EACH = 10  # looks: one of them is at all GPUs
FIRST_LOOKS_S = (0.25, 1.0)  # after a job's start, which loading the driver's library must not slow down
WORTH_WRITING = 1.02  # times the peak in the lease's file
WORTH_REPEATING = 1.10  # times the use in the last warning


def _through_the_broker() -> AttributedGpus:
    from slicer.broker.client.gpu_look import open_gpus

    return open_gpus()


class GpuWatch:
    """Looks at the GPUs of one job. A failed look is reported once, and is the last.

    A job is reported when it exceeds its declaration: once for a GPU, and again when its use has grown. The
    tuples are in the order of its GPUs, and () before the first look.
    """

    def __init__(
        self, job: Job, held: HeldLease, ledger: Ledger, warn: Callable[[str], None], follower: Follower
    ) -> None:
        self.job = job
        self.held = held
        self.observer = GpuObserver(only=held.lease.gpus, otherwise=_through_the_broker, all_each=ALL_EACH)
        self.has_failed = False  # then further looks make no sense
        self.end_job: Callable[[Kind], None] | None = None  # ends the job, for "cap" or "idle"
        self.now_mib: tuple[int, ...] = ()
        self.busy: tuple[int | None, ...] = ()  # the GPUs' utilisation in percent; None: unknown
        self.utilisation: float | None = None  # percent, averaged over the looks that had a figure
        self.looks = 0
        self._ledger = ledger
        self._warn = warn
        self._follower = follower
        now = time.monotonic()
        self._due = [*(now + s for s in FIRST_LOOKS_S), now + job.look_s]  # the next looks
        self._leases: tuple[Lease, ...] = ()
        self._keys: frozenset[ProcessKey] = frozenset()
        self._written_mib = held.lease.vram_peak_mib  # the peak in the lease's file
        self._busy_looks = 0
        self._reported_mib: dict[str, int] = {}  # by GPU: the last use reported as beyond the declaration
        self._is_elsewhere = False  # it was seen on a GPU that it has no lease on
        self._audit: ShareAudit | None = None  # of a job that shares its GPUs
        self._idle: IdleWatch | None = None  # of a job with a limit for that
        shares = job.sharing is not None and job.sharing.is_active
        if shares:
            from slicer.job.sharing import ShareAudit

            self._audit = ShareAudit(held.directory, held.lease.job)
        if held.lease.idle_warn_s is not None:
            from slicer.job.idle_watch import IdleWatch

            self._idle = IdleWatch(held, shares=shares)

    @property
    def peak_mib(self) -> tuple[int, ...]:
        return self.held.lease.vram_peak_mib

    @property
    def use(self) -> GpuUse:
        return GpuUse(self.now_mib, self.peak_mib, self.utilisation, self.looks)

    def left_s(self) -> float | None:
        """The seconds until the next look; None: there will be none."""
        return None if self.has_failed else seconds_until(*self._due)

    def sample(self) -> None:
        """Look, and note the peak. Errors of the driver or the ledger are not raised: they stop no job."""
        now = time.monotonic()
        self._due = [*(at for at in self._due[:-1] if at > now), now + self.job.look_s]
        try:
            for found in self._look():
                self._tell(found)
        except SlicerError as error:
            self.fail(error)

    def fault(self) -> str:
        """What is said now of a GPU of the job that has failed; "" of none."""
        self.sample()
        faults = {} if self.has_failed else self.observer.faults()
        found = next((uuid for uuid in self.held.lease.gpus if faults.get(uuid)), "")
        return found and f"{self.name_of(found)} failed: {faults[found].partition(';')[0]}"

    # -- what is told ------------------------------------------------------------------------------------

    def fail(self, error: SlicerError) -> None:
        """Report why there are no more looks, unless the GPUs are fenced off, which is intended."""
        if not self.has_failed:
            self.has_failed = True
            if isinstance(error, NoGpu) and error.reason == "fenced":
                return
            self.say(f"the job's use of its GPUs can no longer be measured: {error}")

    def say(self, text: str) -> None:
        self._warn(text)
        tell(self.job, "error", lease=self.held.lease, message=text)

    def name_of(self, uuid: str) -> str:
        """ "GPU 0", numbered as in `slicer status` and CUDA's PCI order."""
        return f"GPU {self.observer.index(uuid)}"

    def _tell(self, found: Found) -> None:
        name = self.job.name or "the job"
        is_told = self._follower.found(found)

        def warn(text: str) -> None:
            if not is_told:
                self._warn(f"{name} {text}")

        if isinstance(found, Escaped):
            warn(found.how)
            return
        if not isinstance(found, Exceeded):
            self._tell_idle(found, warn)
            return
        text = exceeds(self.name_of(found.gpu), found)
        warn(text)
        tell(
            self.job, "over-limit", lease=self.held.lease, message=text, over_gpu=found.gpu,
            declared_mib=found.declared_mib, used_mib=found.used_mib,
        )  # fmt: skip
        if found.ends and self.end_job is not None:
            self.end_job("cap")

    def _tell_idle(self, news: IdleNews, warn: Callable[[str], None]) -> None:
        text = news.words()
        warn(text)
        tell(
            self.job, "idle", lease=self.held.lease, message=text, idle=news.kind, idle_s=news.idle_s,
            left_s=news.left_s,
        )  # fmt: skip
        if news.kind == "warned" and self.job.notify is not None:
            from slicer.job.notifying import tell_idle

            tell_idle(self.job, self.held.lease, text, news.idle_s, self._warn)
        if news.kind == "ends" and self.end_job is not None:
            self.end_job("idle")

    # -- what is seen ------------------------------------------------------------------------------------

    def leases(self) -> tuple[Lease, ...]:
        with self._ledger.locked():
            return self._ledger.leases()

    def _look(self) -> Iterator[Found]:
        """Look at the GPUs once. Yields news. Raises GpuError, StateError."""
        if self._audit is not None:
            self._audit.before()
        snapshot = self._observe()
        used_by = {device.uuid: device.used_by for device in self.observer.devices(self._leases) or ()}
        owned = attribute(snapshot, self._leases)
        yield from self._elsewhere(owned)
        self._note_utilisation()
        if not _is_untold(self.held.lease, owned):
            self._note(used_by)
            yield from self._exceeded()
            if self._audit is not None:
                yield from self._shared_badly(self._audit, process_counts(snapshot, self._leases))
        if self._idle is not None:
            leases = {each.job: each for each in (*self._leases, self.held.lease)}
            used = self.observer.in_use(tuple(leases.values()))
            news = self._idle.look(used.get(self.held.lease.job), self.now_mib)
            if news:
                yield news

    def _observe(self) -> GpuSnapshot:
        """The GPUs' current state; new processes cause the leases to be read."""
        snapshot = self.observer.observe()
        keys = frozenset(process.key for process in snapshot.processes)
        if not keys <= self._keys:
            self._leases = self.leases()
        self._keys = keys
        return snapshot

    def _elsewhere(self, owned: list[tuple[ProcessOnGpu, Lease | None]]) -> Iterator[Escaped]:
        """News of a GPU that the job uses and that neither it nor a job around it has a lease on; once."""
        lease = self.held.lease
        for process, owner in owned:
            is_own = owner is not None and owner.job == lease.job
            if is_own and process.gpu_uuid not in lease.gpus and not self._is_elsewhere:
                self._is_elsewhere = True
                yield Escaped(f"uses {self.name_of(process.gpu_uuid)}, on which it has no lease: {_KEEP}")

    def _note_utilisation(self) -> None:
        self.looks += 1
        utilisation = self.observer.utilisation()
        self.busy = tuple(map(utilisation.get, self.held.lease.gpus))
        busy = [percent for percent in self.busy if percent is not None]
        if busy:
            average = sum(busy) / len(busy)
            sum_before = (self.utilisation or 0.0) * self._busy_looks
            self._busy_looks += 1
            self.utilisation = (sum_before + average) / self._busy_looks

    def _note(self, used_by: Mapping[str, Mapping[str, int]]) -> None:
        """Note the peak, also in the lease's file if it has grown enough. Raises StateError."""
        lease, written = self.held.lease, self._written_mib
        self.now_mib = tuple(used_by.get(uuid, {}).get(lease.job, 0) for uuid in lease.gpus)
        peaks = tuple(map(max, self.now_mib, self.peak_mib)) if self.peak_mib else self.now_mib
        if written and all(mib <= then * WORTH_WRITING for mib, then in zip(peaks, written, strict=True)):
            self.held.lease = replace(lease, vram_peak_mib=peaks)  # the outcome must be exact
        else:
            self.held.update(vram_peak_mib=peaks)
            self._written_mib = peaks

    def _exceeded(self) -> Iterator[Exceeded]:
        lease = self.held.lease
        if lease.vram_mib is None or (self._audit is not None and self._audit.has_cap):
            return  # the audit reports use beyond a cap
        for uuid, mib in zip(lease.gpus, self.now_mib, strict=True):
            if mib > max(lease.vram_mib, self._reported_mib.get(uuid, 0) * WORTH_REPEATING):
                self._reported_mib[uuid] = mib
                yield Exceeded(uuid, mib, lease.vram_mib)

    def _shared_badly(
        self, audit: ShareAudit, counts: Mapping[tuple[str, str], int]
    ) -> Iterator[Exceeded | Escaped]:
        lease = self.held.lease
        used = dict(zip(lease.gpus, self.now_mib, strict=True))
        processes = {uuid: counts.get((lease.job, uuid), 0) for uuid in lease.gpus}
        for found in audit.after(used, processes):
            if found.is_escape:
                yield Escaped(_UNSHARED)
            else:
                yield Exceeded(found.gpu, found.used_mib, found.cap_mib, is_cap=True, ends=found.ends)


_UNSHARED = (
    "uses its GPU without the library: its program is statically linked, or its environment was cleared;"
    " it takes no turns, and has no cap"
)
_KEEP = "others may get it, too (does the command set CUDA_VISIBLE_DEVICES itself?)"


def exceeds(gpu: str, found: Exceeded) -> str:
    used, declared = format_size(found.used_mib << 20), format_size(found.declared_mib << 20)
    if not found.is_cap:
        return f"uses {used} of {gpu}, declared {declared}"
    ended = ", and is ended" if found.ends else ""
    return f"uses {used} of {gpu}, beyond its cap of {declared}: it got past the library{ended}"


def describe(process: ProcessOnGpu) -> str:
    """As in "pid 4711 (python, 3.2G)"."""
    size = "size unknown" if process.used_mib is None else format_size(process.used_mib << 20)
    if not process.pid:
        return f"processes of others ({size})"
    return f"pid {process.pid} ({process.name or 'unknown'}, {size})"


def _is_untold(lease: Lease, owned: list[tuple[ProcessOnGpu, Lease | None]]) -> bool:
    """Whether several jobs use a GPU and the driver does not report this job's part."""
    for uuid in lease.gpus:
        silent = [owner for each, owner in owned if each.gpu_uuid == uuid and each.used_mib is None]
        own = [owner is not None and owner.job == lease.job for owner in silent]
        if any(own) and not all(own):
            return True
    return False
