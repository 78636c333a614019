"""The data behind ``slicer status``: the jobs that hold resources, those that wait, and what is free."""

from __future__ import annotations

import os

from slicer.config import profiles
from slicer.errors import GpuError, LedgerLost, SlicerError, StateError
from slicer.gpu.attribution import attribute, is_foreign
from slicer.gpu.observer import GpuObserver
from slicer.kernel.proc import now_s
from slicer.ledger.halted import Halted, awaits_turn, halted
from slicer.ledger.ledger import Ledger, Snapshot, measured
from slicer.ledger.lock import EAGER_PAUSE_S
from slicer.ledger.plain_lock import PlainLock
from slicer.model import CPU, GpuLoad
from slicer.outcome import job_files
from slicer.outcome.history import folder
from slicer.placement import capacity, decision, forecast, order
from slicer.placement.devices import headroom, is_idle, reserved_mib
from slicer.placement.settings import Policy
from slicer.record import record, replace
from slicer.share.arena import SharingNow, standing
from slicer.state import statedir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.config.profiles import Config
    from slicer.gpu.snapshot import AttributedGpus, GpuSnapshot, ProcessKey
    from slicer.model import Busy, Gpu, GroupStanding, Lease, Reservation, Standing, Ticket, UserStanding
    from slicer.outcome.job_files import DetachedJob
    from slicer.placement.decision import Infeasible
    from slicer.placement.devices import Device
    from slicer.state.statedir import StateDir

    Warn = Callable[[str], None]
    AskOthers = Callable[[], Standing]

PATIENCE_S = 10.0  # of read-only commands, while another process decides


@record
class ForeignProcess:
    """A process on a GPU that has no memory reserved there."""

    pid: int
    name: str  # "" if /proc does not show it
    used_mib: int | None  # None: the driver does not report it
    peak_mib: int | None  # its highest use so far
    job: str  # its job, which does not hold this GPU; "" for none
    uid: int | None = None  # its user's; None: unknown


@record
class GpuState:
    """One GPU. Without ``device`` all that follows is 0, empty or None."""

    gpu: Gpu
    device: Device | None  # None: the driver did not answer
    reserved_mib: int  # for the leases on it, and for foreign processes
    free_mib: int | None  # available to one more sharer; None: unknown
    is_idle: bool  # whether it could be leased whole
    unexplained_mib: int  # used, but by no visible process
    foreign: tuple[ForeignProcess, ...]
    load: GpuLoad = GpuLoad()
    is_suspect: bool = False  # jobs fail at once there: see slicer.placement.suspects

    @property
    def out(self) -> str:
        """As in Device."""
        return self.device.out if self.device else ""


@record
class Wait:
    """Why a ticket waits. Without ``busy`` and ``never`` it is about to be served."""

    busy: Busy | None
    never: Infeasible | None
    is_reserving: bool  # whether what it needs is kept for it as it becomes free
    starts_in_s: float | None  # expected; None: it depends on a job that gave no estimate
    held_back: str = ""  # the administrator's cap or share for which it waits, in words


@record
class SlotState:
    """The slots of one name. None: the configuration defines none, or cannot be read."""

    total: int | None
    free: int | None
    held: int


@record
class PlainLockState:
    """The lock of scripts, and the process that excludes slicer's GPU jobs by it (0: none)."""

    path: str
    pid: int


@record
class LedgerStatus:
    """The state of the ledger and the machine at one moment."""

    directory: str  # the ledger's; "" before the first job
    leases: tuple[Lease, ...]  # the oldest first
    tickets: tuple[Ticket, ...]  # in their order
    waits: dict[str, Wait]  # by the ticket's job
    gpus: tuple[GpuState, ...]
    no_gpus: str  # why none are listed; "" if some are
    slot_limits: dict[str, int] | None  # None: the configuration cannot be read
    plain_lock: PlainLockState | None  # None: not configured
    now_s: float  # the ledger's clock
    halted: tuple[Halted, ...] = ()  # the jobs that stand still
    not_begun: tuple[str, ...] = ()  # jobs whose scopes are running before it is their turn in a queue
    sharing: tuple[SharingNow, ...] = ()  # the jobs that share GPUs, with --share
    users: tuple[UserStanding, ...] | None = None  # None: only this user's jobs are known
    groups: tuple[GroupStanding, ...] = ()  # with common limits
    reservations: tuple[Reservation, ...] = ()  # the broker's that are not over, the first to begin first
    later: tuple[DetachedJob, ...] = ()  # jobs that begin after others or at a time, the oldest first

    def halt(self, job: str) -> Halted | None:
        """How the job stands still; None: it does not."""
        return next((each for each in self.halted if each.job == job), None)

    def shared(self, job: str) -> SharingNow | None:
        """How the job shares its GPUs; None: it does not."""
        return next((each for each in self.sharing if each.job == job), None)

    def gpu(self, uuid: str) -> GpuState | None:
        """The GPU of that UUID, if the driver lists it."""
        return next((state for state in self.gpus if state.gpu.uuid == uuid), None)

    @property
    def slots(self) -> dict[str, SlotState]:
        """The slots by their names: those of the CPU first, then the others in alphabetical order."""
        limits = self.slot_limits or {}
        in_use = capacity.held_slots(self.leases)
        wanted = {name for ticket in self.tickets for name in ticket.slots}
        found = {}
        for name in (CPU, *sorted((limits.keys() | in_use.keys() | wanted) - {CPU})):
            held = in_use.get(name, 0)
            total = limits.get(name)
            free = None if total is None else max(0, total - held)
            found[name] = SlotState(total, free, held)
        return found


def existing_ledger(environ: Mapping[str, str], warn: Warn) -> Ledger | None:
    """The caller's ledger, or None: reading the status must not create one. Raises StateError."""
    directory = statedir.existing(environ, os.geteuid())
    if directory is None:
        return None
    for note in directory.notes:
        warn(note)
    try:
        directory.check_alone()
    except LedgerLost as lost:
        warn(str(lost))
    ledger = Ledger(directory, warn)
    ledger.patience_s, ledger.longest_pause_s = PATIENCE_S, EAGER_PAUSE_S
    return ledger


class StatusReader:
    """Reads the status repeatedly. Keeps the driver and the ledger open, and reopens what broke."""

    def __init__(
        self, environ: Mapping[str, str], ask_others: AskOthers | None = None,
        gpus_otherwise: Callable[[], AttributedGpus] | None = None,
    ) -> None:  # fmt: skip
        """``ask_others`` returns all users' jobs, and raises if it cannot.

        ``gpus_otherwise``: as in :class:`slicer.gpu.observer.GpuObserver`.
        """
        self._environ = environ
        self._ask_others = ask_others
        self._observer = GpuObserver(otherwise=gpus_otherwise)
        self._ledger: Ledger | None = None
        self._load: dict[str, GpuLoad] = {}  # by UUID
        self._warn: Warn = lambda _: None

    def read(self, warn: Warn) -> LedgerStatus:
        """The present status. Warns of parts that cannot be determined, and leaves them out.

        Asks the driver, and waits for the ledger's lock. Each call repeats its warnings. Raises StateError
        for a ledger that cannot be used.
        """
        self._warn = warn
        config = _config(self._environ, warn)
        policy = self._observer.policy = measured(config.policy if config else Policy())
        no_gpus = self._look_at_gpus()  # the driver is slow: before the ledger's lock
        others = self._hear_of_others()
        if others is not None:
            policy = policy.without(others.out_of_service)
            out = (*self._observer.faults().items(), *policy.out_of_service)
            suspects = frozenset(others.suspects)
            policy = self._observer.policy = replace(policy, out_of_service=out, suspects=suspects)
        there = Snapshot(others.leases, others.tickets) if others else Snapshot((), ())
        found, devices = self._read_ledger(there)
        limits = config.slots if config else None
        if others is not None:
            limits = {**(limits or {}), **others.slot_limits}
        held_back = others.held_back if others else {}
        still = halted(found.leases, self.directory)
        unknown = {each.job for each in still}  # the remaining time of a job that stands still is unknown
        leases = tuple(
            replace(lease, expect_s=None, est_s=None) if lease.job in unknown else lease
            for lease in sorted(found.leases, key=lambda lease: (lease.since_s, lease.job))
        )
        at_s = now_s()
        ledger, tickets = self._ledger, found.tickets
        if others is None and ledger is not None:  # the broker's are in its order
            policy = replace(policy, mean_job_s=ledger.lengths().mean_s, suspects=ledger.suspects())
            tickets = order.in_order(tickets, devices, policy, at_s)
        return LedgerStatus(
            directory=ledger.directory.path if ledger else "",
            leases=leases,
            tickets=tickets,
            waits=waits(tickets, devices, leases, policy, at_s, held_back),
            gpus=states(
                self._observer.gpus, devices, self._observer.snapshot, leases, policy,
                self._observer.foreign_peaks, self._load,
            ),
            no_gpus=no_gpus,
            slot_limits=limits,
            plain_lock=_plain_lock(config),
            now_s=at_s,
            halted=still,
            not_begun=tuple(lease.job for lease in leases if awaits_turn(lease, self.directory)),
            sharing=standing(self.directory, [lease.job for lease in leases]),
            users=others.users if others else None,
            groups=others.groups if others else (),
            reservations=others.reservations if others else (),
            later=self._later({lease.job for lease in leases} | {ticket.job for ticket in found.tickets}),
        )

    def _later(self, there: set[str]) -> tuple[DetachedJob, ...]:
        """Jobs that wait for others or their time, and have neither lease nor ticket."""
        if not os.path.lexists(folder(self._environ)):
            return ()
        try:
            known = job_files.known(self._environ, self._warn)
        except StateError as error:
            self._warn(str(error))
            return ()
        found = (file for file in known if file.begins_later and file.job not in there and file.is_alive())
        return tuple(found)[::-1]

    def _hear_of_others(self) -> Standing | None:
        if self._ask_others is None:
            return None
        try:
            found = self._ask_others()
        except SlicerError as error:
            self._warn(f"only your own jobs are known: {error}")
            return None
        if found.left_out:
            self._warn(f"{found.left_out} jobs are not shown: the broker's answer has no room for them")
        return found

    def _look_at_gpus(self) -> str:
        """Take a snapshot of the GPUs, if possible. Returns why none are listed, or ""."""
        observer, warn = self._observer, self._warn
        self._load = {}
        try:
            observer.open()
        except GpuError as error:
            return error.message
        for note in observer.notes:
            warn(note)
        try:
            observer.observe()
            self._load = observer.load()
        except GpuError as error:
            warn(f"the use of the GPUs is unknown: {error.message}")
            observer.close()
        return "" if observer.gpus else "the driver lists none"

    def _read_ledger(self, others: Snapshot) -> tuple[Snapshot, tuple[Device, ...] | None]:
        """The leases and tickets of one moment, and the GPUs' processes attributed to the leases."""
        if self._ledger is not None and self._ledger.directory.is_in_place():
            try:
                return self._read_open(self._ledger, others)
            except StateError:
                pass  # its directory was removed: there may be a new one
        self._close_ledger()
        self._ledger = existing_ledger(self._environ, lambda text: self._warn(text))
        if self._ledger is None:
            return others, self._observer.devices(others.leases)
        return self._read_open(self._ledger, others)

    def _read_open(
        self, ledger: Ledger, others: Snapshot
    ) -> tuple[Snapshot, tuple[Device, ...] | None]:
        found = joined(ledger.snapshot(), others)
        if self._observer.snapshot is None:
            return found, None
        with ledger.locked():
            return found, self._observer.devices(found.leases)

    @property
    def directory(self) -> StateDir | None:
        """The directory of the ledger that was read, or None."""
        return self._ledger.directory if self._ledger else None

    @property
    def orphans(self) -> tuple[Lease, ...]:
        """See :meth:`slicer.ledger.files.LedgerFiles.orphans`."""
        return self._ledger.orphans() if self._ledger else ()

    def close(self) -> None:
        """Close the driver's library and the ledger. Safe to repeat."""
        self._observer.close()
        self._close_ledger()

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        self._ledger = None


def joined(own: Snapshot, all_users: Snapshot) -> Snapshot:
    """Add the broker's other jobs to those in the user's own ledger. Pure.

    The user's ledger has more data about the user's jobs: their peaks and keepers. The broker decides places
    in the queue.
    """
    known = {lease.job for lease in own.leases}
    idle_since_s = {lease.job: lease.idle_since_s for lease in all_users.leases}  # seen by the broker
    waiting = {ticket.job for ticket in all_users.tickets}
    mine = [
        replace(each, idle_since_s=each.idle_since_s or idle_since_s.get(each.job)) for each in own.leases
    ]
    return Snapshot(
        (*mine, *(lease for lease in all_users.leases if lease.job not in known)),
        (*all_users.tickets, *(ticket for ticket in own.tickets if ticket.job not in waiting)),
    )


def _config(environ: Mapping[str, str], warn: Warn) -> Config | None:
    try:
        return profiles.load(environ, profiles.host())
    except SlicerError as error:
        warn(str(error))  # a broken configuration stops no job, so it must not hide jobs either
        return None


def _plain_lock(config: Config | None) -> PlainLockState | None:
    if config is None or not config.compat_gpu_lock:
        return None
    return PlainLockState(config.compat_gpu_lock, PlainLock(config.compat_gpu_lock).holder())


# -- pure ---------------------------------------------------------------------------------------------------


def states(
    gpus: tuple[Gpu, ...], devices: tuple[Device, ...] | None, snapshot: GpuSnapshot | None,
    leases: tuple[Lease, ...], policy: Policy, peaks: Mapping[ProcessKey, int],
    load: Mapping[str, GpuLoad],
) -> tuple[GpuState, ...]:  # fmt: skip
    """Each GPU with its use. ``devices`` None: they are unknown."""
    found = {device.uuid: device for device in devices or ()}
    foreign = _foreign(snapshot, leases, peaks)
    return tuple(
        _state(
            gpu, found.get(gpu.uuid), leases, policy, tuple(foreign.get(gpu.uuid, ())),
            load.get(gpu.uuid, GpuLoad()),
        )
        for gpu in gpus
    )  # fmt: skip


def _state(
    gpu: Gpu, device: Device | None, leases: tuple[Lease, ...], policy: Policy,
    foreign: tuple[ForeignProcess, ...], load: GpuLoad,
) -> GpuState:  # fmt: skip
    if device is None:
        return GpuState(gpu, None, 0, None, False, 0, ())
    headroom_mib = headroom(device, leases, policy)
    known = sum(device.used_by.values()) + sum(one.used_mib or 0 for one in foreign if not one.job)
    is_silent = any(one.used_mib is None for one in foreign)  # then the rest is theirs
    return GpuState(
        gpu=gpu,
        device=device,
        reserved_mib=reserved_mib(device, leases, policy),
        free_mib=max(0, headroom_mib or 0) if device.total_mib else None,
        is_idle=is_idle(device, leases, policy),
        unexplained_mib=0 if is_silent else max(0, device.used_mib - known),
        foreign=foreign,
        load=load,
        is_suspect=device.uuid in policy.suspects,
    )


def _foreign(
    snapshot: GpuSnapshot | None, leases: tuple[Lease, ...], peaks: Mapping[ProcessKey, int]
) -> dict[str, list[ForeignProcess]]:
    """The foreign processes of each GPU, the largest first."""
    if snapshot is None:
        return {}
    found: dict[str, list[ForeignProcess]] = {}
    for process, lease in attribute(snapshot, leases):
        if is_foreign(process, lease):
            peak_mib = peaks.get(process.key, process.used_mib)
            job = lease.job if lease else ""
            one = ForeignProcess(process.pid, process.name, process.used_mib, peak_mib, job, process.uid)
            found.setdefault(process.gpu_uuid, []).append(one)
    for each in found.values():
        each.sort(key=lambda one: (-(one.used_mib or 0), one.pid))
    return found


def waits(
    tickets: tuple[Ticket, ...], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
    policy: Policy, at_s: float, held_back: Mapping[str, str] | None = None,
) -> dict[str, Wait]:  # fmt: skip
    """Explain why each ticket waits, and estimate its start.

    ``held_back``: those that the administrator's policy holds back, and why. The others pass them.
    """
    held = held_back or {}
    able = [ticket for ticket in tickets if ticket.job not in held]
    book = decision.Book(able, devices, leases, policy, at_s)
    starts = forecast.start_times(book)
    found: dict[str, Wait] = {}
    for ticket in tickets:
        job, never = ticket.job, decision.infeasible(ticket, devices)
        is_told = job in held or never is not None or job in book.verdict.grants
        busy = None if is_told else book.busy(ticket)
        is_reserving = never is None and job in book.verdict.reserving
        found[job] = Wait(busy, never, is_reserving, starts.get(job), held.get(job, ""))
    return found
