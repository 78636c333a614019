"""From what is needed to a lease: the ticket, the wait, and the plain lock of scripts beside it."""

from __future__ import annotations

import os

from slicer.errors import BusyError, UsageError
from slicer.kernel import proc
from slicer.ledger import ledger
from slicer.ledger.ledger import HeldLease
from slicer.ledger.nesting import OuterJobs
from slicer.ledger.tickets import PRIORITY_MAX, request_of
from slicer.model import Busy, Lease, Ticket
from slicer.record import record, replace

TYPE_CHECKING = False
AT_ONCE_S = 2.0  # how long --no-wait and --max-wait 0 wait for somebody who is deciding just now

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.gpu.view import View
    from slicer.ledger.ledger import Ledger
    from slicer.ledger.waiting import Waiting
    from slicer.model import BackendName, Gpu, Manager, Then


@record
class Needs:
    """What is missing, and how long to wait for it."""

    gpus: int
    gpu_words: tuple[str, ...]  # indices, UUIDs or their beginnings; empty: any
    vram_mib: int | None  # on each GPU; None: whole ones
    margin_mib: int
    cpu_slots: int
    cpu_limit: int
    priority: int
    expect_s: float | None
    wait: bool
    max_wait_s: float | None
    then: Then | None
    plain_lock: str  # the flock that scripts take; "" for none


@record
class Requester:
    """Who asks. ``name``, ``command``, ``unit`` as in :class:`slicer.model.Lease`."""

    job: str
    name: str
    command: str
    backend: BackendName
    manager: Manager
    unit: str
    inside: tuple[Lease, ...]  # the leases of the jobs around it


@record
class PreparedRequest:
    """All that the ledger is asked. ``draft`` is the lease, still without its GPUs."""

    needs: Needs
    ticket: Ticket
    draft: Lease
    view: View


class Cancel:
    """A way to end a wait from another thread."""

    def __init__(self) -> None:
        self.is_asked = False
        self._waiting: Waiting | None = None

    def ask(self) -> None:
        """Make whoever waits leave the queue, soon."""
        self.is_asked = True
        if self._waiting is not None:
            self._waiting.interrupt()

    def concerns(self, waiting: Waiting) -> None:
        """That is the wait to be ended."""
        self._waiting = waiting


@record
class Hooks:
    """What the caller does on the way. ``waits`` is called once when the request has to wait, ``comes_first``
    once when nobody is ahead of it any more: for what can be done before the lease is there. It returns a
    descriptor that becomes readable when that was in vain (-1: none), and is closed in the end.
    ``still_waits`` is called before each sleep; it returns the seconds after which it wants to be called
    again (None: never).
    """

    waits: Callable[[Busy], None]
    comes_first: Callable[[Waiting], int] | None
    cancel: Cancel
    still_waits: Callable[[Busy], float | None] | None = None


def want(who: Requester, needs: Needs, view: View) -> PreparedRequest:
    """Prepare the request. Raises UsageError for GPUs that are not there, NoGpu, GpuError."""
    # Only those that serve: of a GPU on which the jobs around have too little, more can be had.
    held = OuterJobs(who.inside, False).gpus_for(needs.vram_mib)
    chosen: tuple[str, ...] = ()
    if needs.gpus or (needs.gpu_words and held):
        if not view.gpus:
            view.open_gpus()
        chosen = choice(needs.gpu_words, view.gpus)
        if not needs.gpus and chosen and not set(chosen) & set(held):
            raise UsageError(
                "the job around holds none of these",
                where="--gpu",
                hint=f"it has {', '.join(held)}; ask for the others in the outer job",
            )
        chosen = tuple(uuid for uuid in chosen if uuid not in held)
    pid = os.getpid()
    # Jobs around it hold on to what they have while it waits: behind a reservation it could be for ever.
    holds = any(lease.gpus or lease.cpu_slots for lease in who.inside)
    priority = PRIORITY_MAX if holds else needs.priority
    draft = Lease(
        job=who.job, name=who.name, command=who.command, pid=pid, pid_start=proc.start_time(pid) or 0,
        keeper=0, boot_id=proc.boot_id(), uid=os.geteuid(), backend=who.backend, manager=who.manager,
        unit=who.unit, cgroup="", gpus=(), vram_mib=None, vram_peak_mib=(), cpu_slots=0,
        priority=needs.priority, forced=0, since_s=ledger.now_s(), expect_s=needs.expect_s,
    )  # fmt: skip
    ticket = Ticket(
        job=who.job, name=who.name, command=who.command, pid=pid, pid_start=draft.pid_start,
        boot_id=draft.boot_id, uid=draft.uid, inside=tuple(lease.job for lease in who.inside),
        priority=priority, arrived_s=round(draft.since_s, 6), gpus=needs.gpus,
        gpu_choice=chosen, vram_mib=needs.vram_mib if needs.gpus else None,
        margin_mib=needs.margin_mib if needs.gpus and needs.vram_mib is not None else 0,
        cpu_slots=needs.cpu_slots, cpu_limit=needs.cpu_limit, expect_s=needs.expect_s,
    )  # fmt: skip
    return PreparedRequest(needs, ticket, draft, view)


def choice(words: tuple[str, ...], gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """The UUIDs that the words mean. Raises UsageError."""
    found: list[str] = []
    for word in words:
        if word.isdigit():
            meant = [gpu.uuid for gpu in gpus if gpu.index == int(word)]
        else:
            meant = [gpu.uuid for gpu in gpus if gpu.uuid.lower().startswith(word.lower())]
        if len(meant) != 1:
            known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            problem = f"{word!r} could be {len(meant)} GPUs" if meant else f"no such GPU: {word!r}"
            raise UsageError(problem, where="--gpu", hint=f"this machine has {known}")
        if meant[0] in found:
            raise UsageError(f"{word!r} is there twice", where="--gpu", hint="name each GPU once")
        found += meant
    return tuple(found)


def obtain(wanted: PreparedRequest, book: Ledger, hooks: Hooks) -> HeldLease:
    """The lease, once it can be had.

    Raises BusyError, InfeasibleError, DeadlockError, StateError, GpuError.
    """
    needs = wanted.needs
    until_s = None if needs.max_wait_s is None else wanted.ticket.arrived_s + needs.max_wait_s
    if not needs.wait:
        held = ledger.raise_if_busy(book.acquire(request_of(wanted.ticket), wanted.draft, wanted.view))
    else:
        found = book.acquire_or_queue(wanted.ticket, wanted.draft, wanted.view)
        held = found if isinstance(found, HeldLease) else _wait(found, needs, until_s, hooks)
    if held.lease.gpus and needs.plain_lock:
        try:
            _take_plain_lock(held, needs, until_s, book, hooks)
        except BaseException:
            held.release()
            raise
    return held


def _wait(waiting: Waiting, needs: Needs, until_s: float | None, hooks: Hooks) -> HeldLease:
    with waiting:
        hooks.cancel.concerns(waiting)
        hooks.waits(waiting.busy)
        waiting.at_the_front, waiting.still_waits = hooks.comes_first, hooks.still_waits
        held = waiting.wait(until_s, lambda: hooks.cancel.is_asked)
        if held is not None:
            return held
        found = waiting.give_up(force=_runs_anyway(needs) and not hooks.cancel.is_asked)
        if isinstance(found, HeldLease):
            return found
        raise BusyError(found, waited_s=ledger.now_s() - waiting.ticket.arrived_s)


def _runs_anyway(needs: Needs) -> bool:
    """What becomes of a request that waited too long: CPU jobs run, GPU jobs fail, unless they say so."""
    return needs.then == "run" or (needs.then is None and not needs.gpus)


def _take_plain_lock(
    held: HeldLease, needs: Needs, until_s: float | None, book: Ledger, hooks: Hooks
) -> None:
    """Exclude scripts that know nothing of leases, by the lock that they take."""
    from slicer.ledger.plain_lock import PlainLock

    lock = PlainLock(needs.plain_lock)
    if not lock.take(0.0, book.mask):
        busy = Busy("gpu", (), 0, (), "", lock.holder())
        began_s = ledger.now_s()
        if needs.wait:
            hooks.waits(busy)
        left_s = None if until_s is None else max(0.0, until_s - began_s)
        if not needs.wait or not lock.take(left_s, book.mask):
            lock.release()
            if needs.wait and _runs_anyway(needs):
                held.update(forced=1)
                return
            raise BusyError(busy, waited_s=ledger.now_s() - began_s if needs.wait else None)
    held.beside = lock


def foresee(wanted: PreparedRequest, book: Ledger | None) -> tuple[str, ...] | Busy:
    """What the answer would be now, without asking: the GPUs, or what stands in the way.

    ``book`` None: there is no ledger yet. Raises InfeasibleError, GpuError.
    """
    request = request_of(wanted.ticket)
    wanted.view.look()
    if book is not None:
        return book.foresee(request, wanted.view)
    return ledger.judge_alone(request, wanted.view).answer(request)


def patience_s(needs: Needs) -> float | None:
    """How long to wait for somebody who is deciding, in seconds: it is no waiting for what was asked for."""
    if not needs.wait:
        return AT_ONCE_S
    return None if needs.max_wait_s is None else max(AT_ONCE_S, needs.max_wait_s)


def nothing_needed(needs: Needs) -> bool:
    """Whether nothing is asked of the ledger but to be in it."""
    return not needs.gpus and not needs.cpu_slots


def nested_lease(draft: Lease, around: OuterJobs) -> Lease:
    """What stands for a lease where the jobs around hold all that is needed."""
    last = next((lease for lease in reversed(around.leases) if lease.gpus), None)
    vram_mib = last.vram_mib if last else None
    return replace(draft, gpus=around.gpus, vram_mib=vram_mib, cpu_slots=around.cpu_slots)
