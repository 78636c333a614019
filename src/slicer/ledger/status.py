"""Who holds what on this machine, who waits and why, and what is free: the data behind ``slicer status``."""

from __future__ import annotations

import os

from slicer.config import profiles
from slicer.errors import SlicerError, StateError
from slicer.ledger.clock import now_s
from slicer.ledger.halted import halted
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.ledger.tickets import request_of
from slicer.placement import capacity, decision, forecast
from slicer.placement.capacity import Policy
from slicer.record import record, replace
from slicer.state import statedir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.config.profiles import Config
    from slicer.gpu.vram import ForeignPeaks, GpuWatch, PeakKey, Sighting
    from slicer.model import Busy, Gpu, Lease, Request, Ticket
    from slicer.placement.capacity import Device
    from slicer.placement.decision import Infeasible
    from slicer.state.statedir import StateDir

    Warn = Callable[[str], None]


PATIENCE_S = 10.0  # for who only looks, while somebody else decides


@record
class Foreign:
    """A process on a GPU where nothing is set aside for it. ``used_mib`` None: the driver does not say."""

    pid: int
    name: str  # "" where /proc does not show it
    used_mib: int | None
    peak_mib: int | None  # the most it was seen to use
    job: str  # that it belongs to and that does not hold this GPU; "" for none


@record
class GpuState:
    """One GPU. All that follows ``device`` is worked out from it, and is 0, empty or None without it."""

    gpu: Gpu
    device: Device | None  # None: the driver did not answer
    reserved_mib: int  # set aside: for the leases on it, and for foreign processes
    free_mib: int | None  # that one more sharer could count on; None: unknown
    is_idle: bool  # could be taken whole
    unexplained_mib: int  # used, but by no process that is seen
    foreign: tuple[Foreign, ...]


@record
class Wait:
    """Why a ticket waits. ``busy`` None: it does not have to (it is about to go, or can never)."""

    busy: Busy | None
    never: Infeasible | None
    is_reserving: bool  # what it needs is kept for it as it becomes free
    starts_in_s: float | None  # expected; None: it depends on somebody who gave no estimate


@record
class PlainLock:
    """The lock of scripts, and the process that excludes slicer's GPU jobs by it (0: none)."""

    path: str
    pid: int


@record
class Status:
    """One look at the ledger and the machine."""

    directory: str  # the ledger's; "" while nothing has run yet
    leases: tuple[Lease, ...]  # the oldest first
    tickets: tuple[Ticket, ...]  # in their order
    waits: dict[str, Wait]  # by the ticket's job
    gpus: tuple[GpuState, ...]
    no_gpus: str  # why there are none to list; "" where there are
    cpu_slots: int | None  # None: the configuration cannot be read
    plain_lock: PlainLock | None  # None: not configured
    now_s: float  # the ledger's clock
    halted: tuple[tuple[str, str], ...] = ()  # jobs that are "stopped" or "frozen"

    def gpu(self, uuid: str) -> GpuState | None:
        """The GPU of that UUID, if the driver lists it."""
        return next((state for state in self.gpus if state.gpu.uuid == uuid), None)

    @property
    def free_cpu_slots(self) -> int | None:
        """None: the configuration cannot be read."""
        if self.cpu_slots is None:
            return None
        return max(0, self.cpu_slots - sum(lease.cpu_slots for lease in self.leases))


def look(environ: Mapping[str, str], warn: Warn) -> Status:
    """The state of things now. What cannot be found out is said through ``warn`` and left out.

    Raises StateError where there is a ledger that cannot be used.
    """
    lookout = Lookout(environ)
    try:
        return lookout.look(warn)
    finally:
        lookout.close()


def existing_ledger(environ: Mapping[str, str], warn: Warn) -> Ledger | None:
    """The caller's ledger, None while there is none: looking must not make one. Raises StateError."""
    directory = statedir.existing(environ, os.geteuid())
    if directory is None:
        return None
    for note in directory.notes:
        warn(note)
    book = Ledger(directory, warn)
    book.patience_s = PATIENCE_S
    return book


class Lookout:
    """Looks again and again, and keeps open what is slow to open. What broke is opened anew."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._eyes = _Eyes()
        self._book: Ledger | None = None
        self._peaks: ForeignPeaks | None = None
        self._warn: Warn = lambda _: None

    def look(self, warn: Warn) -> Status:
        """As :func:`look`; each call says anew what it has to say."""
        self._warn = warn
        config = _config(self._environ, warn)
        policy = config.policy if config else Policy()
        sighting = self._eyes.look(warn)  # the driver is slow: before the ledger's lock
        seen, peaks = self._read(sighting)
        leases = tuple(sorted(seen.leases, key=lambda lease: (lease.since_s, lease.job)))
        devices = _devices(sighting, leases, peaks)
        at_s = now_s()
        book = self._book
        return Status(
            directory=book.directory.path if book else "",
            leases=leases,
            tickets=seen.tickets,
            waits=waits(seen.tickets, devices, leases, policy, at_s),
            gpus=states(self._eyes.gpus, devices, sighting, leases, policy, peaks),
            no_gpus=self._eyes.no_gpus,
            cpu_slots=config.slots_cpu if config else None,
            plain_lock=_plain_lock(config),
            now_s=at_s,
            halted=halted(leases),
        )

    @property
    def directory(self) -> StateDir | None:
        """The ledger that was looked at; None for none."""
        return self._book.directory if self._book else None

    @property
    def orphans(self) -> tuple[Lease, ...]:
        """See :class:`slicer.ledger.ledger.Ledger`."""
        return self._book.orphans() if self._book else ()

    def close(self) -> None:
        """Give the driver's library and the ledger back. Safe to repeat."""
        self._eyes.close()
        self._close_book()

    def _close_book(self) -> None:
        if self._book is not None:
            self._book.close()
        self._book = self._peaks = None

    def _read(self, sighting: Sighting | None) -> tuple[Snapshot, Mapping[PeakKey, int]]:
        """The leases and tickets of one moment, and what foreign processes used at most."""
        if self._book is not None and not self._book.directory.is_in_place():
            self._close_book()
        if self._book is not None:
            try:
                return self._read_open(self._book, sighting)
            except StateError:
                self._close_book()  # its directory was removed: there may be a new one
        self._book = existing_ledger(self._environ, lambda text: self._warn(text))
        if self._book is None:
            return Snapshot((), ()), {}
        return self._read_open(self._book, sighting)

    def _read_open(self, book: Ledger, sighting: Sighting | None) -> tuple[Snapshot, Mapping[PeakKey, int]]:
        seen = book.snapshot()
        if sighting is None:
            return seen, {}
        if self._peaks is None:
            from slicer.gpu.vram import ForeignPeaks

            self._peaks = ForeignPeaks(book.directory.base)
        with book.locked():
            problem = self._peaks.update(sighting, seen.leases)
        if problem:
            self._warn(problem)
        return seen, self._peaks.peaks


class _Eyes:
    """The GPUs through the driver, for as long as it answers."""

    def __init__(self) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.no_gpus = ""
        self._notes: tuple[str, ...] = ()
        self._watch: GpuWatch | None = None

    def look(self, warn: Warn) -> Sighting | None:
        """What is on the GPUs; None where they cannot be looked at."""
        from slicer.errors import GpuError

        try:
            if self._watch is None:
                self._open()
        except GpuError as error:
            self.gpus, self.no_gpus = (), error.message
            return None
        assert self._watch is not None
        for note in self._notes:
            warn(note)
        try:
            return self._watch.look()
        except GpuError as error:
            warn(f"what is on the GPUs is not known: {error.message}")
            self.close()
            return None

    def _open(self) -> None:
        from slicer.gpu.vram import GpuWatch

        self._watch, self.gpus = GpuWatch.open()
        self._notes = self._watch.notes()
        self.no_gpus = "" if self.gpus else "the driver lists none"

    def close(self) -> None:
        """Give the driver's library back. Safe to repeat."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _config(environ: Mapping[str, str], warn: Warn) -> Config | None:
    try:
        return profiles.load(environ, profiles.host())
    except SlicerError as error:
        warn(str(error))  # a broken configuration stops no job, so it must not hide them either
        return None


def _plain_lock(config: Config | None) -> PlainLock | None:
    if config is None or not config.compat_gpu_lock:
        return None
    from slicer.ledger import plain_lock

    return PlainLock(config.compat_gpu_lock, plain_lock.PlainLock(config.compat_gpu_lock).holder())


# -- worked out, with nothing more to look at ---------------------------------------------------------------


def _devices(
    sighting: Sighting | None, leases: tuple[Lease, ...], peaks: Mapping[PeakKey, int]
) -> tuple[Device, ...] | None:
    if sighting is None:
        return None
    from slicer.gpu import vram

    return vram.devices(sighting, leases, peaks)


def states(
    gpus: tuple[Gpu, ...], devices: tuple[Device, ...] | None, sighting: Sighting | None,
    leases: tuple[Lease, ...], policy: Policy, peaks: Mapping[PeakKey, int],
) -> tuple[GpuState, ...]:  # fmt: skip
    """Each GPU with what is on it. ``devices`` None: nobody could look at them."""
    found = {device.uuid: device for device in devices or ()}
    foreign = _foreign(sighting, leases, peaks)
    return tuple(
        _state(gpu, found.get(gpu.uuid), leases, policy, tuple(foreign.get(gpu.uuid, ()))) for gpu in gpus
    )


def _state(
    gpu: Gpu, device: Device | None, leases: tuple[Lease, ...], policy: Policy, foreign: tuple[Foreign, ...]
) -> GpuState:
    if device is None:
        return GpuState(gpu, None, 0, None, False, 0, ())
    room = capacity.headroom(device, leases, policy)
    known = sum(device.used_by.values()) + sum(one.used_mib or 0 for one in foreign if not one.job)
    is_mute = any(one.used_mib is None for one in foreign)  # then what is left is theirs
    return GpuState(
        gpu=gpu,
        device=device,
        reserved_mib=capacity.reserved_mib(device, leases, policy),
        free_mib=max(0, room or 0) if device.total_mib else None,
        is_idle=capacity.is_idle(device, leases, policy),
        unexplained_mib=0 if is_mute else max(0, device.used_mib - known),
        foreign=foreign,
    )


def _foreign(
    sighting: Sighting | None, leases: tuple[Lease, ...], peaks: Mapping[PeakKey, int]
) -> dict[str, list[Foreign]]:
    """The foreign processes of each GPU, the largest first."""
    if sighting is None:
        return {}
    from slicer.gpu import vram

    owners = vram.Owners(leases)
    found: dict[str, list[Foreign]] = {}
    for seen in sighting.processes:
        lease = owners.of(seen)
        if vram.is_foreign(seen, lease):
            peak_mib = peaks.get(vram.key_of(seen), seen.used_mib)
            one = Foreign(seen.pid, seen.name, seen.used_mib, peak_mib, lease.job if lease else "")
            found.setdefault(seen.gpu_uuid, []).append(one)
    for each in found.values():
        each.sort(key=lambda one: (-(one.used_mib or 0), one.pid))
    return found


def waits(
    tickets: tuple[Ticket, ...], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
    policy: Policy, at_s: float,
) -> dict[str, Wait]:  # fmt: skip
    """Why each ticket waits, and when it is expected to go."""
    queue = tuple(request_of(ticket) for ticket in tickets)
    verdict = decision.decide(queue, devices, leases, policy, at_s)
    expected = {ticket.job: ticket.expect_s for ticket in tickets}
    starts = forecast.start_times(queue, expected, devices, leases, policy, at_s)
    found: dict[str, Wait] = {}
    reserving = set(verdict.reserving)
    reserved = 0  # so many lie between the front and the last that holds a reservation, itself included
    reasons: dict[tuple[object, ...], Busy] = {}  # thousands that wait ask for a handful of things
    for ahead, request in enumerate(queue):
        never = decision.infeasible(request, devices)
        busy = None
        if never is None and request.job not in verdict.grants:
            asked = _asked(request), reserved
            if asked not in reasons:
                before = (*queue[:reserved], request)
                reasons[asked] = decision.explain(request, before, devices, leases, policy, at_s)
            busy = replace(reasons[asked], ahead=ahead)
        is_reserving = request.job in reserving and never is None
        found[request.job] = Wait(busy, never, is_reserving, starts[request.job])
        if request.job in reserving:
            reserved = ahead + 1
    return found


def _asked(request: Request) -> tuple[object, ...]:
    return (
        request.gpus, request.gpu_choice, request.vram_mib, request.margin_mib, request.cpu_slots,
        request.cpu_limit,
    )  # fmt: skip
