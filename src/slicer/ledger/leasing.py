"""From a job's needs to its lease: the ticket, the wait, and the plain lock of scripts."""

from __future__ import annotations

import os

from slicer.errors import BusyError, UsageError
from slicer.kernel import proc
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger, decide_alone
from slicer.ledger.nesting import OuterJobs
from slicer.model import (
    CPU,
    PRIORITY_MAX,
    Busy,
    Demand,
    Gpu,
    Lease,
    Ticket,
    lease_from,
    manager_of,
    ticket_from,
)
from slicer.record import fields_for, record, replace
from slicer.text import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Protocol

    from slicer.gpu.observer import GpuObserver
    from slicer.ledger.waiting import ReachesFront, WaitingTicket
    from slicer.model import BackendName, Manager, Then

    class Waits(Protocol):
        """A request that waits: a ticket in the user's own ledger, or one at the broker."""

        ticket: Ticket
        reaches_front: ReachesFront | None  # see Hooks
        until_s: float | None  # the end of the wait, on the ledger's clock; None: never, or the broker's task
        is_unsettled: bool  # look again at once

        def look(self) -> HeldLease | None: ...
        def why(self) -> Busy: ...
        def watched(self) -> tuple[list[int], float | None]: ...
        def woken(self, ready: Collection[int]) -> None: ...
        def interrupt(self) -> None: ...
        def give_up(self, *, force: bool) -> HeldLease | Busy: ...
        def leave(self) -> None: ...

AT_ONCE_S = 2.0  # how long --no-wait and --max-wait 0 wait for the ledger's lock


@record
class Needs(Demand):
    """The resources that the job still lacks, and the limits of its wait."""

    slot_limits: dict[str, int]  # of these slots, and perhaps of others
    expect_s: float | None  # as the user said
    limit_s: float | None  # the job is ended then
    wait: bool
    max_wait_s: float | None
    then: Then | None
    plain_lock: str  # the path of the lock that scripts take; "" for none
    adopts: tuple[int, ...] = ()  # as in ScopeSpec: it may be on these GPUs already

    @property
    def runs_anyway(self) -> bool:
        """Whether the job runs after ``max_wait_s`` although nothing is free.

        By default only a job that just wants CPU slots does: one more slows the others down, but does no
        worse.
        """
        return self.then == "run" or (self.then is None and not self.gpus and not self.slots.keys() - {CPU})


@record
class Requester:
    """The requesting job. ``name``, ``command`` and ``unit`` are as in :class:`slicer.model.Lease`."""

    job: str
    name: str
    command: str
    backend: BackendName
    manager: Manager
    unit: str
    outer: tuple[Lease, ...]  # the leases of the outer jobs
    profile: str = ""
    idle_warn_s: float | None = None  # as in Lease
    idle_end_s: float | None = None
    min_run_s: float | None = None
    stop_s: float | None = None


def of_process(name: str, command: tuple[str, ...], outer: OuterJobs, profile: str = "") -> Requester:
    """A process that requests a lease for itself, without a scope."""
    job, manager = os.urandom(6).hex(), manager_of(os.geteuid())
    return Requester(job, name, command_text(command), "plain", manager, "", outer.leases, profile)


@record
class PreparedRequest:
    """A request that is ready for the ledger. ``draft`` is the future lease, without its GPUs."""

    needs: Needs
    ticket: Ticket
    draft: Lease
    observer: GpuObserver
    ahead_of: str = ""  # the job whose place it takes in the broker's line; "": the last place


class CancelToken:
    """Ends a wait from another thread."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.waiting: Waits | None = None  # the wait to end, once there is one

    def cancel(self) -> None:
        """Make the waiting thread leave the queue soon."""
        self.is_cancelled = True
        if self.waiting is not None:
            self.waiting.interrupt()


@record
class Hooks:
    """Callbacks of the caller during a wait.

    ``waits`` is called once, when the request has to wait. ``reaches_front`` is called once, when nobody is
    ahead of it any more, and may prepare whatever needs no lease. It gets the descriptors that will hold the
    lease, also in a process that inherits them, and those that nobody may inherit. It returns a descriptor,
    which is closed in the end, and what is known of the future lease; the descriptor becomes readable if the
    preparation is lost (-1: nothing was prepared). ``still_waits`` is called before each sleep. It returns
    the seconds until its next call (None: never).
    """

    waits: Callable[[Busy], None]
    reaches_front: ReachesFront | None
    cancel: CancelToken
    still_waits: Callable[[Busy], float | None] | None = None


def prepare(requester: Requester, needs: Needs, observer: GpuObserver) -> PreparedRequest:
    """Prepare the request. Raises UsageError for GPUs that do not exist, NoGpu, GpuError."""
    outer = requester.outer
    # Only GPUs that serve the job count as held. It can get more of one if the outer jobs have too little.
    held = OuterJobs(outer, False).gpus_for(needs.vram_mib)
    chosen: tuple[str, ...] = ()
    if needs.gpus or (needs.gpu_choice and held):
        known = () if needs.gpus else _numbered(outer)
        if not known:
            observer.open()
        words = needs.gpu_choice
        among = tuple(gpu.uuid for gpu in known if any(_means(word, gpu) for word in words))
        chosen = among if known else gpus_named(words, observer.gpus)
        if not needs.gpus and (chosen or known) and not set(chosen) & set(held):
            raise UsageError(
                "the outer job holds none of these",
                where="--gpu",
                hint=f"it has {', '.join(held)}; ask for the others in the outer job",
            )
        chosen = tuple(uuid for uuid in chosen if uuid not in held)
    return drafted(requester, needs, observer, chosen)


def drafted(
    requester: Requester, needs: Needs, observer: GpuObserver, chosen: tuple[str, ...] = ()
) -> PreparedRequest:
    """The request, with the UUIDs of the suitable GPUs (none: any, or not known yet)."""
    pid = os.getpid()
    # Outer jobs keep their resources while this one waits. Behind a reservation it could wait for ever. A
    # process that runs already takes nothing from those who wait.
    is_urgent = bool(needs.adopts) or any(lease.gpus or lease.slots for lease in requester.outer)
    since_s = proc.now_s()
    ticket = ticket_from(
        needs, requester.outer, since_s, **fields_for(Ticket, requester), pid=pid,
        pid_start=proc.start_time(pid) or 0, boot_id=proc.boot_id(), uid=os.geteuid(),
        priority=PRIORITY_MAX if is_urgent else needs.priority, gpu_choice=chosen,
        slot_limits={name: needs.slot_limits[name] for name in needs.slots},
    )  # fmt: skip
    draft = lease_from(
        ticket, (), since_s, **fields_for(Lease, requester), vram_mib=None, slots={}, priority=needs.priority
    )
    return PreparedRequest(needs, ticket, draft, observer)


def _numbered(outer: tuple[Lease, ...]) -> tuple[Gpu, ...]:
    """The outer jobs' GPUs by their user-visible indices, with nothing else known; () unless all are known.

    Behind a fence the driver's library numbers only the GPUs that it may open.
    """
    found = indices(outer)
    if any(uuid not in found for lease in outer for uuid in lease.gpus):
        return ()
    return tuple(Gpu(index, uuid, "", 0, -1) for uuid, index in found.items())


def indices(leases: tuple[Lease, ...]) -> dict[str, int]:
    """The known indices of the leases' GPUs."""
    return {
        uuid: index for lease in leases for uuid, index in zip(lease.gpus, lease.gpu_indices, strict=False)
    }


def _means(word: str, gpu: Gpu) -> bool:
    return gpu.index == int(word) if word.isdigit() else gpu.uuid.lower().startswith(word.lower())


def gpus_named(words: tuple[str, ...], gpus: tuple[Gpu, ...], where: str = "--gpu") -> tuple[str, ...]:
    """The UUIDs of the named GPUs. Raises UsageError, about ``where``."""
    found: list[str] = []
    for word in words:
        meant = [gpu.uuid for gpu in gpus if _means(word, gpu)]
        if len(meant) != 1:
            known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            problem = f"{word!r} could be {len(meant)} GPUs" if meant else f"no such GPU: {word!r}"
            raise UsageError(problem, where=where, hint=f"this machine has {known}")
        if meant[0] in found:
            raise UsageError(f"{word!r} is listed twice", where=where, hint="name each GPU once")
        found += meant
    return tuple(found)


def estimated(prepared: PreparedRequest, ledger: Ledger) -> PreparedRequest:
    """The request with an estimate of the job's length, if it wants GPUs. Raises StateError."""
    if not prepared.ticket.gpus:
        return prepared
    from slicer.placement import lengths

    ticket = lengths.estimated(prepared.ticket, ledger.lengths(), prepared.needs.limit_s)
    draft = replace(prepared.draft, est_s=ticket.est_s, est_from=ticket.est_from)
    return replace(prepared, ticket=ticket, draft=draft)


def awaited(
    found: HeldLease | Waits, prepared: PreparedRequest, ledger: Ledger, hooks: Hooks
) -> HeldLease:
    """The lease of a request, once it is granted, with the lock that scripts take, if one is configured.

    Raises BusyError, and as ``found.look``.
    """
    needs = prepared.needs
    held = found if isinstance(found, HeldLease) else _wait(found, needs, hooks, ledger.mask)
    if held.lease.gpus and needs.plain_lock:
        try:
            _take_plain_lock(held, needs, _until_s(prepared), ledger, hooks)
        except BaseException:
            held.release()
            raise
    return held


def _until_s(prepared: PreparedRequest) -> float | None:
    """The end of the wait, on the ledger's clock; None: never."""
    limit_s = prepared.needs.max_wait_s
    return None if limit_s is None else prepared.ticket.arrived_s + limit_s


def queue_up(prepared: PreparedRequest, ledger: Ledger) -> HeldLease | WaitingTicket:
    """The lease if it is free now, else a place in the queue.

    Raises BusyError without ``needs.wait``, InfeasibleError, DeadlockError, StateError, GpuError.
    """
    prepared = estimated(prepared, ledger)
    ticket, draft, observer = prepared.ticket, prepared.draft, prepared.observer
    found = ledger.acquire(ticket, draft, observer, queues=prepared.needs.wait)
    if isinstance(found, HeldLease):
        return found
    if isinstance(found, Busy):
        raise BusyError(found)
    from slicer.ledger.waiting import WaitingTicket  # a job that need not wait does not need it

    waiting = WaitingTicket(ledger, ticket, draft, observer, found)
    waiting.until_s = _until_s(prepared)
    return waiting


def _wait(waiting: Waits, needs: Needs, hooks: Hooks, mask: frozenset[int] | None) -> HeldLease:
    """Sleep until it is granted. ``mask``: the signal mask while asleep (None: unchanged)."""
    from slicer.kernel.sleep import soonest, until_readable

    cancel, until_s = hooks.cancel, waiting.until_s
    cancel.waiting, waiting.reaches_front = waiting, hooks.reaches_front
    try:
        hooks.waits(waiting.why())
        while not cancel.is_cancelled:
            held = waiting.look()
            if held is not None:
                return held
            if until_s is not None and proc.now_s() >= until_s:
                break
            # Checked again: the look before may have silenced the ring that came with a cancellation.
            if not waiting.is_unsettled and not cancel.is_cancelled:
                descriptors, limit_s = waiting.watched()
                told_s = None if hooks.still_waits is None else hooks.still_waits(waiting.why())
                left_s = None if until_s is None else max(0.0, until_s - proc.now_s())
                waiting.woken(until_readable(descriptors, soonest(limit_s, left_s, told_s), mask))
        found = waiting.give_up(force=needs.runs_anyway and not cancel.is_cancelled)
        if isinstance(found, HeldLease):
            return found
        raise BusyError(found, waited_s=proc.now_s() - waiting.ticket.arrived_s)
    finally:
        cancel.waiting = None
        waiting.leave()


def _take_plain_lock(
    held: HeldLease, needs: Needs, until_s: float | None, ledger: Ledger, hooks: Hooks
) -> None:
    """Exclude scripts that know nothing of leases, by the lock that they take. Raises BusyError."""
    from slicer.ledger.plain_lock import PlainLock

    lock = PlainLock(needs.plain_lock)
    if not lock.take(0.0, ledger.mask):
        busy = Busy("gpu", (), 0, (), "", lock.holder())
        began_s = proc.now_s()
        if needs.wait:
            hooks.waits(busy)
        left_s = None if until_s is None else max(0.0, until_s - began_s)
        if not needs.wait or not lock.take(left_s, ledger.mask):
            lock.release()
            if needs.wait and needs.runs_anyway:
                held.update(forced=1)
                return
            raise BusyError(busy, waited_s=proc.now_s() - began_s if needs.wait else None)
    held.plain_lock = lock


def preview(prepared: PreparedRequest, ledger: Ledger | None) -> tuple[str, ...] | Busy:
    """The GPUs that the request would get now, or why it would wait. Takes nothing.

    ``ledger`` None: there is no ledger yet. Raises InfeasibleError, GpuError.
    """
    if ledger is not None:
        prepared = estimated(prepared, ledger)
    ticket, observer = prepared.ticket, prepared.observer
    observer.look()
    if ledger is None:
        found = decide_alone(ticket, observer)
    else:
        with ledger.locked():
            found = ledger.decide(ticket, observer)
    gpus = found.verdict.grants.get(ticket.job)
    return found.busy(ticket) if gpus is None else gpus


def patience_s(needs: Needs) -> float | None:
    """The seconds to wait for the ledger's lock (not for a lease); None: for ever."""
    if not needs.wait:
        return AT_ONCE_S
    return None if needs.max_wait_s is None else max(AT_ONCE_S, needs.max_wait_s)


def nested_lease(draft: Lease, outer: OuterJobs) -> Lease:
    """The lease of a job whose outer jobs hold everything that it needs."""
    last = next((lease for lease in reversed(outer.leases) if lease.gpus), None)
    vram_mib = last.vram_mib if last else None
    known = indices(outer.leases)
    numbers = tuple(known[uuid] for uuid in outer.gpus) if known.keys() >= set(outer.gpus) else ()
    return replace(draft, gpus=outer.gpus, gpu_indices=numbers, vram_mib=vram_mib, slots=outer.slots)
