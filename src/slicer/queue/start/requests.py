"""Where the queue asks for leases: a ticket for each kind of job that waits, and no more.

In the ledger the queue is one among others. It asks for the first job of each kind only; the next one of that
kind arrives when the first has its lease, so that a queue of a thousand jobs is ahead of nobody a thousand
times. Among its own jobs the file's order counts: a job that is asked for after one that stands behind it in
the file takes a place just ahead of that.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from slicer.errors import InfeasibleError, UsageError
from slicer.job.launch import needs_of, spec_of, who
from slicer.ledger import clock, leasing
from slicer.ledger.held_lease import HeldLease
from slicer.queue.start.pending import Kind
from slicer.record import record, replace
from slicer.text import one_line

if TYPE_CHECKING:
    from slicer.backend import BatchBackend
    from slicer.gpu.observer import GpuObserver
    from slicer.job.launch import Plan
    from slicer.ledger.leasing import PreparedRequest
    from slicer.ledger.ledger import Ledger
    from slicer.ledger.waiting import Waiting
    from slicer.model import Busy, ScopeSpec
    from slicer.queue.model import Entry
    from slicer.queue.start.pending import Place

_INSTANT_S = 1e-6  # what the ledger's clock tells apart
_COMMAND_CHARS = 160  # of one that is shown
_SCRIPTS_S = 1.0  # how soon to try again for the lock of scripts, which send no event


@record
class _Form:
    """One request, filled in."""

    entry: Entry
    plan: Plan
    job_id: str
    spec: ScopeSpec
    wanted: PreparedRequest
    choice: tuple[str, ...]


class _Ask:
    """One request that waits."""

    def __init__(self, form: _Form, waiting: Waiting) -> None:
        self.form = form
        self.waiting = waiting
        self.is_due = True  # something happened that may concern it
        self.watched: list[int] = []
        self.due_at: float | None = None  # by the ledger's clock: asked for again though nothing happens


@record
class Granted:
    """A lease for a job. ``waited_s`` since it was first asked for."""

    entry: Entry
    plan: Plan
    job_id: str
    spec: ScopeSpec
    held: HeldLease
    waited_s: float


class LeaseRequests:
    """Our requests. Raises of the ledger (StateError, GpuError) go to the caller."""

    def __init__(
        self, book: Ledger, backend: BatchBackend, view: GpuObserver, gpu_words: tuple[str, ...],
        *, exclusive: bool,
    ) -> None:  # fmt: skip
        self._book = book
        self._backend = backend
        self._view = view
        self._words = gpu_words
        self._exclusive = exclusive
        self._asks: dict[Kind, _Ask] = {}
        self._arrived: dict[str, float] = {}  # when a job was first asked for, by its key
        self._not_before: dict[Kind, float] = {}  # while a script has the lock, by the ledger's clock

    # -- asking ------------------------------------------------------------------------------------------

    def ask(
        self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place], in_use: Collection[str]
    ) -> Granted | None:
        """The lease, if it can be had now; else see to it that it is waited for.

        ``in_use``: the GPUs of this queue's own jobs. Raises InfeasibleError when it can never be had, and
        UsageError for GPUs that are not there.
        """
        choice = self._choice(plan, in_use)
        current = self._asks.get(kind)
        if current is not None and (current.form.entry.key, current.form.choice) != (entry.key, choice):
            self._withdraw(kind)
            current = None
        if self._not_before.get(kind, 0.0) > clock.now_s():
            return None
        if current is None:
            return self._ask_anew(kind, self._form(entry, plan, choice, places))
        if not (current.is_due or current.waiting.is_unsettled):
            return None
        current.is_due = False
        held = current.waiting.attempt()
        if held is None:
            return None
        del self._asks[kind]
        return self._granted(kind, current.form, held)

    def _form(self, entry: Entry, plan: Plan, choice: tuple[str, ...], places: Mapping[str, Place]) -> _Form:
        job_id = os.urandom(6).hex()
        spec = spec_of(job_id, plan, self._backend)
        needs = replace(needs_of(plan), gpu_words=choice if plan.need_gpus else ())
        asker = replace(
            who(job_id, plan, self._backend, spec), command=one_line(entry.command, _COMMAND_CHARS)
        )
        wanted = leasing.prepare(asker, needs, self._view)
        ticket = replace(wanted.ticket, arrived_s=self._arrival(entry, places))
        return _Form(entry, plan, job_id, spec, replace(wanted, ticket=ticket), choice)

    def _ask_anew(self, kind: Kind, form: _Form) -> Granted | None:
        wanted = form.wanted
        is_narrowed = self._exclusive and form.plan.need_gpus > 0
        if is_narrowed:
            self._check_feasible(form)
            if len(form.choice) < form.plan.need_gpus:
                return None
        try:
            found = leasing.queue_up(wanted, self._book)
        except InfeasibleError:
            if not is_narrowed:
                raise
            return None  # on the GPUs that our own jobs leave it cannot be; on the others it can
        if isinstance(found, HeldLease):
            return self._granted(kind, form, found)
        self._asks[kind] = _Ask(form, found)
        return None

    def _check_feasible(self, form: _Form) -> None:
        """Raises InfeasibleError when not even all GPUs that are ours to use would do."""
        needs = replace(form.wanted.needs, gpu_words=self._words)
        asker = who(form.job_id, form.plan, self._backend, form.spec)
        leasing.foresee(leasing.prepare(asker, needs, self._view), self._book)

    def _arrival(self, entry: Entry, places: Mapping[str, Place]) -> float:
        """When the job counts as having arrived: first asked for, or just before who comes after it."""
        known = self._arrived.get(entry.key)
        if known is not None:
            return known
        place = places[entry.key]
        later = [
            self._arrived[ask.form.entry.key]
            for ask in self._asks.values()
            if places.get(ask.form.entry.key, place) > place and places[ask.form.entry.key][0] == place[0]
        ]
        stamp = round(min(later) - _INSTANT_S if later else clock.now_s(), 6)
        self._arrived[entry.key] = stamp
        return stamp

    def _choice(self, plan: Plan, in_use: Collection[str]) -> tuple[str, ...]:
        """The GPUs that will do, in words; () any. With --exclusive, none that a job of ours is on."""
        if not self._exclusive or not plan.need_gpus:
            return self._words if plan.need_gpus else ()
        self._view.open()
        allowed = self.allowed()
        return tuple(uuid for uuid in allowed if uuid not in in_use)

    def allowed(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that this queue may use. Raises UsageError for one that is not there."""
        try:
            chosen = leasing.gpus_named(self._words, self._view.gpus)
        except UsageError as error:
            raise UsageError(error.message, where="--gpus", hint=error.hint) from error
        return chosen or tuple(gpu.uuid for gpu in self._view.gpus)

    def check(self) -> None:
        """See that the GPUs are there that this queue is told to use. Raises UsageError, GpuError."""
        if self._words:
            self._view.open()
            self.allowed()

    def _granted(self, kind: Kind, form: _Form, held: HeldLease) -> Granted | None:
        if held.lease.gpus and form.wanted.needs.plain_lock and not self._has_plain_lock(form, held):
            self._not_before[kind] = clock.now_s() + _SCRIPTS_S
            held.release()
            return None
        waited_s = max(0.0, clock.now_s() - self._arrived.pop(form.entry.key))
        return Granted(form.entry, form.plan, form.job_id, form.spec, held, waited_s)

    def _has_plain_lock(self, form: _Form, held: HeldLease) -> bool:
        from slicer.ledger.plain_lock import PlainLock

        lock = PlainLock(form.wanted.needs.plain_lock)
        if lock.take(0.0, None):
            held.plain_lock = lock
            return True
        lock.release()
        return False

    # -- waiting -----------------------------------------------------------------------------------------

    def keep(self, kinds: Collection[Kind]) -> None:
        """Withdraw what is asked for others than these."""
        for kind in [kind for kind in self._asks if kind not in kinds]:
            self._withdraw(kind)

    def forget(self, keys: Iterable[str]) -> None:
        """These jobs are not to be started any more."""
        for key in keys:
            self._arrived.pop(key, None)

    def _withdraw(self, kind: Kind) -> None:
        self._asks.pop(kind).waiting.leave()

    def watched(self) -> tuple[list[int], float | None]:
        """What becomes readable when it is time to ask again, and the seconds after which it is anyway."""
        descriptors: list[int] = []
        now_s = clock.now_s()
        limits = [max(0.0, at - now_s) for at in self._not_before.values()]
        for ask in self._asks.values():
            if ask.is_due or ask.waiting.is_unsettled:
                limits.append(0.0)
                continue
            ask.watched, limit_s = ask.waiting.watched()
            descriptors += ask.watched
            if limit_s is not None:  # from now; but others may wake us before it is over, again and again
                ask.due_at = min(now_s + limit_s, ask.due_at or now_s + limit_s)
            if ask.due_at is not None:
                limits.append(max(0.0, ask.due_at - now_s))
        return descriptors, min(limits) if limits else None

    def woken(self, ready: Collection[int]) -> None:
        """Note which requests to ask again for: ``ready`` are readable."""
        now_s = clock.now_s()
        self._not_before = {kind: at for kind, at in self._not_before.items() if at > now_s}
        for ask in self._asks.values():
            if ask.is_due or ask.waiting.is_unsettled:
                continue
            is_late = ask.due_at is not None and now_s >= ask.due_at
            if is_late or any(fd in ready for fd in ask.watched):
                ask.waiting.woken(ready)
                ask.is_due = True
                ask.due_at = None

    def why(self, kind: Kind) -> Busy | None:
        """What stands in the way of the jobs of a kind, as far as was seen."""
        ask = self._asks.get(kind)
        return None if ask is None else ask.waiting.why()

    @property
    def is_waiting(self) -> bool:
        return bool(self._asks)
