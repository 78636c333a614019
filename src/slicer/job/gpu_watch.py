"""Measures jobs on the GPUs of their leases, look by look.

A queue follows all of its jobs. The supervisor follows one job, once a second and after its end; if the
supervisor is dead, the keeper measures at the end. A running job is not measured if it has neither process
(``--exec``), if it uses an outer job's GPUs, or if its supervisor was killed.

Peaks go into the outcome. They also go into the leases, because others who decide about the GPU must know
about a job that outgrew its declaration (E3). The driver records no peaks, so the use between two looks,
or in a job's first instants, is not seen.
"""

from __future__ import annotations

import time

from slicer.errors import NoGpu, SlicerError
from slicer.gpu.attribution import attribute, process_counts
from slicer.gpu.observer import GpuObserver
from slicer.job.job import Job, tell
from slicer.kernel.sleep import seconds_until
from slicer.quantity import format_size
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from slicer.gpu.snapshot import AttributedGpus, GpuSnapshot, ProcessKey, ProcessOnGpu
    from slicer.job.idle_watch import IdleNews, IdleWatch
    from slicer.job.sharing import ShareAudit
    from slicer.ledger.control_log import Kind
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease

    Found: TypeAlias = "Exceeded | Escaped | IdleNews"

SAMPLE_S = 1.0
ALL_EACH = 10  # looks: one of them is at all GPUs
WORTH_REPEATING = 1.10  # times the use in the last warning


def _through_the_broker() -> AttributedGpus:
    from slicer.broker.client.gpu_look import open_gpus

    return open_gpus()


class GpuWatch:
    """Looks at the GPUs of one job. A failed look is reported once, and is the last."""

    def __init__(self, job: Job, held: HeldLease, ledger: Ledger, warn: Callable[[str], None]) -> None:
        self.job = job
        self.held = held
        self._warn = warn
        self.observer = GpuObserver(only=held.lease.gpus, otherwise=_through_the_broker, all_each=ALL_EACH)
        self.monitor = Monitor(self.observer, ledger, SAMPLE_S, again=WORTH_REPEATING)
        self.use = self.monitor.follow(held, shares=job.sharing is not None and job.sharing.is_active)
        self.has_failed = False  # then further looks make no sense
        self.end_job: Callable[[Kind], None] | None = None  # ends the job, for "cap" or "idle"

    def left_s(self) -> float | None:
        """The seconds until the next look; None: there will be none."""
        return None if self.has_failed else self.monitor.left_s()

    def sample(self) -> None:
        """Look, and note the peak. Errors of the driver or the ledger are not raised: they stop no job."""
        for found in self.monitor.look():
            self._tell(found)
        if self.monitor.problem is not None:
            self.fail(self.monitor.problem)

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
        if isinstance(found, Escaped):
            self._warn(f"{name} {found.how}")
            return
        if not isinstance(found, Exceeded):
            self._tell_idle(found, name)
            return
        text = exceeds(self.name_of(found.gpu), found)
        self._warn(f"{name} {text}")
        tell(
            self.job, "over-limit", lease=self.held.lease, message=text, over_gpu=found.gpu,
            declared_mib=found.declared_mib, used_mib=found.used_mib,
        )  # fmt: skip
        if found.ends and self.end_job is not None:
            self.end_job("cap")

    def _tell_idle(self, news: IdleNews, name: str) -> None:
        text = news.words()
        self._warn(f"{name} {text}")
        tell(
            self.job, "idle", lease=self.held.lease, message=text, idle=news.kind, idle_s=news.idle_s,
            left_s=news.left_s,
        )  # fmt: skip
        if news.kind == "warned" and self.job.notify is not None:
            from slicer.job.notifying import tell_idle

            tell_idle(self.job, self.held.lease, text, news.idle_s, self._warn)
        if news.kind == "ends" and self.end_job is not None:
            self.end_job("idle")


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


FIRST_LOOKS_S = (0.25, 1.0)  # after a job's start, which loading the driver's library must not slow down
WORTH_WRITING = 1.02  # times the peak in the lease's file


class LeaseUse:
    """The GPU use of one lease's job. The tuples are in the order of its GPUs; () before the first look."""

    def __init__(self, held: HeldLease, looks_due: list[float], audit: ShareAudit | None) -> None:
        self.held = held
        self.looks_due = looks_due
        self.audit = audit  # of a job that shares its GPUs
        self.has_cap = audit is not None and audit.has_cap
        self.idle: IdleWatch | None = None  # of a job with a limit for that
        self.now_mib: tuple[int, ...] = ()
        self.busy: tuple[int | None, ...] = ()  # the GPUs' utilisation in percent; None: unknown
        self.written_mib = held.lease.vram_peak_mib  # the peak in the lease's file; not () for an adopted job
        self.utilisation: float | None = None  # percent, averaged over the looks that had a figure
        self.looks = 0
        self.busy_looks = 0
        self.reported_mib: dict[str, int] = {}  # by GPU: the last use reported as beyond the declaration
        self.ended_at: float | None = None
        self.is_elsewhere = False  # it was seen on a GPU that it has no lease on
        self.is_over = False  # then it is no longer measured

    @property
    def peak_mib(self) -> tuple[int, ...]:
        return self.held.lease.vram_peak_mib

    def end_audit(self) -> None:
        """Safe to repeat."""
        if self.audit is not None:
            self.audit.close()
            self.audit = None


@record
class Exceeded:
    """A job uses more of a GPU than it declared, or than its cap."""

    job: str  # its id
    gpu: str
    used_mib: int
    declared_mib: int
    is_cap: bool = False  # it got past its cap
    ends: bool = False  # and must be ended for that


@record
class Escaped:
    """A job uses GPUs in a way that its lease cannot cover. ``job``: its id; ``how``: what it does."""

    job: str
    how: str


class Monitor:
    """Looks every ``poll_s`` seconds. ``problem``: why the last look failed.

    A job is reported when it exceeds its declaration by more than the fraction ``tolerance``: once for a GPU,
    and once more whenever its use has grown by the factor ``again``.
    """

    def __init__(
        self, observer: GpuObserver, ledger: Ledger, poll_s: float, *, tolerance: float = 0.0,
        again: float | None = None,
    ) -> None:  # fmt: skip
        self._observer = observer
        self._ledger = ledger
        self._poll_s = poll_s
        self._tolerance = tolerance
        self._again = again
        self._uses: dict[str, LeaseUse] = {}
        self._next = 0.0
        self._leases: tuple[Lease, ...] = ()
        self._keys: frozenset[ProcessKey] = frozenset()
        self._utilisation: dict[str, int | None] = {}
        self.problem: SlicerError | None = None

    def follow(self, held: HeldLease, *, shares: bool = False) -> LeaseUse | None:
        """Look at the GPUs of this lease; None: it has none. ``shares``: it may have a job file."""
        if not held.lease.gpus:
            return None
        audit = None
        if shares:
            from slicer.job.sharing import ShareAudit

            audit = ShareAudit(held.directory, held.lease.job)
        now = time.monotonic()
        if not self._uses:
            self._next = now + self._poll_s
        use = self._uses[held.lease.job] = LeaseUse(held, [now + s for s in FIRST_LOOKS_S], audit)
        if held.lease.idle_warn_s is not None:
            from slicer.job.idle_watch import IdleWatch

            use.idle = IdleWatch(held, shares=shares)
        return use

    def left_s(self) -> float | None:
        """Seconds until the next :meth:`look`; None: there is nothing to look at."""
        if not self._uses:
            return None
        return seconds_until(self._next, *(at for use in self._uses.values() for at in use.looks_due[:1]))

    def look(self) -> list[Found]:
        """Look at the GPUs once. Returns news: jobs that outgrew their declarations, idle ones, …"""
        now = time.monotonic()
        self._next = now + self._poll_s
        for use in self._uses.values():
            use.looks_due = [at for at in use.looks_due if at > now]
        found: list[Found] = []
        self.problem = None
        try:
            self._look(found)
        except SlicerError as error:
            self.problem = error
        return found

    def _look(self, found: list[Found]) -> None:
        """Look, and add to ``found``. Raises SlicerError."""
        uses = [use for use in self._uses.values() if use.ended_at is None and not use.is_over]
        audits = [use.audit for use in uses if use.audit is not None]
        for audit in audits:
            audit.before()
        snapshot = self.observe()
        self._utilisation = self._observer.utilisation()
        used_by = {device.uuid: device.used_by for device in self._observer.devices(self._leases) or ()}
        owned = attribute(snapshot, self._leases)
        counts = process_counts(snapshot, self._leases) if audits else {}
        for use in uses:
            found += self._elsewhere(use, owned)
            self._note_utilisation(use)
            if not _is_untold(use.held.lease, owned):
                self._note(use, used_by)
                found += self._exceeded(use)
                found += _shared_badly(use, counts)
        if any(use.idle is not None for use in uses):
            found += self._idle(uses)

    def _elsewhere(self, use: LeaseUse, owned: list[tuple[ProcessOnGpu, Lease | None]]) -> Iterable[Escaped]:
        """News of a GPU that the job uses and that neither it nor a job around it has a lease on; once."""
        lease = use.held.lease
        for process, owner in owned:
            is_own = owner is not None and owner.job == lease.job
            if is_own and process.gpu_uuid not in lease.gpus and not use.is_elsewhere:
                use.is_elsewhere = True
                where = f"GPU {self._observer.index(process.gpu_uuid)}"
                yield Escaped(lease.job, f"uses {where}, on which it has no lease: {_KEEP}")

    def _idle(self, uses: list[LeaseUse]) -> Iterable[IdleNews]:
        leases = {each.job: each for each in (*self._leases, *(use.held.lease for use in uses))}
        used = self._observer.in_use(tuple(leases.values()))
        for use in uses:
            news = use.idle and use.idle.look(used.get(use.held.lease.job), use.now_mib)
            if news:
                yield news

    def observe(self) -> GpuSnapshot:
        """The GPUs' current state; new processes cause the leases to be read. Raises GpuError, StateError."""
        snapshot = self._observer.observe()
        keys = frozenset(process.key for process in snapshot.processes)
        if not keys <= self._keys:
            self._leases = self.leases()
        self._keys = keys
        return snapshot

    def leases(self) -> tuple[Lease, ...]:
        with self._ledger.locked():
            return self._ledger.leases()

    def _note_utilisation(self, use: LeaseUse) -> None:
        use.looks += 1
        use.busy = tuple(map(self._utilisation.get, use.held.lease.gpus))
        busy = [percent for percent in use.busy if percent is not None]
        if busy:
            average = sum(busy) / len(busy)
            use.utilisation = ((use.utilisation or 0.0) * use.busy_looks + average) / (use.busy_looks + 1)
            use.busy_looks += 1

    def _note(self, use: LeaseUse, used_by: Mapping[str, Mapping[str, int]]) -> None:
        """Note the peak, also in the lease's file if it has grown enough. Raises StateError."""
        lease = use.held.lease
        use.now_mib = tuple(used_by.get(uuid, {}).get(lease.job, 0) for uuid in lease.gpus)
        peaks = tuple(map(max, use.now_mib, use.peak_mib)) if use.peak_mib else use.now_mib
        written = use.written_mib
        if written and all(mib <= then * WORTH_WRITING for mib, then in zip(peaks, written, strict=True)):
            use.held.lease = replace(lease, vram_peak_mib=peaks)  # the outcome must be exact
        else:
            use.held.update(vram_peak_mib=peaks)
            use.written_mib = peaks

    def _exceeded(self, use: LeaseUse) -> Iterable[Exceeded]:
        lease = use.held.lease
        if lease.vram_mib is None or use.has_cap:  # the audit reports use beyond a cap
            return
        for uuid, mib in zip(lease.gpus, use.now_mib, strict=True):
            before = use.reported_mib.get(uuid)
            is_news = before is None or (self._again is not None and mib > before * self._again)
            if is_news and mib > lease.vram_mib * (1 + self._tolerance):
                use.reported_mib[uuid] = mib
                yield Exceeded(lease.job, uuid, mib, lease.vram_mib)


def _is_untold(lease: Lease, owned: list[tuple[ProcessOnGpu, Lease | None]]) -> bool:
    """Whether several jobs use a GPU and the driver does not report this job's part."""
    for uuid in lease.gpus:
        silent = [owner for each, owner in owned if each.gpu_uuid == uuid and each.used_mib is None]
        own = [owner is not None and owner.job == lease.job for owner in silent]
        if any(own) and not all(own):
            return True
    return False


def _shared_badly(use: LeaseUse, counts: Mapping[tuple[str, str], int]) -> Iterable[Exceeded | Escaped]:
    if use.audit is None:
        return
    lease = use.held.lease
    used = dict(zip(lease.gpus, use.now_mib, strict=True))
    processes = {uuid: counts.get((lease.job, uuid), 0) for uuid in lease.gpus}
    for found in use.audit.after(used, processes):
        if found.is_escape:
            yield Escaped(lease.job, _UNSHARED)
        else:
            yield Exceeded(lease.job, found.gpu, found.used_mib, found.cap_mib, is_cap=True, ends=found.ends)
