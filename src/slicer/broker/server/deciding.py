"""Decides which request is next, and why the others wait: one placement decision over all leases and tickets.

One decision serves all requests that came in one turn of the loop. A request that is absent (its connection
broke) or stopped (Ctrl-Z) keeps its place, and others may pass it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, cached_property

from slicer.broker.protocol.messages import Acquire
from slicer.broker.rules import order, standing, views
from slicer.broker.rules.allowance import Allowance, Balance
from slicer.broker.rules.shares import Shares
from slicer.broker.server.leases import Leases
from slicer.broker.server.policy_state import PolicyState
from slicer.errors import GpuError
from slicer.gpu.observer import GpuObserver
from slicer.kernel import proc
from slicer.kernel.sleep import soonest
from slicer.ledger.ledger import measured
from slicer.model import Busy, Gpu, Lease, Ticket, lease_from
from slicer.placement import decision, forecast
from slicer.placement.decision import Book
from slicer.placement.devices import Device, is_used_by_others
from slicer.placement.order import places
from slicer.placement.refusal import refusal
from slicer.record import replace
from slicer.state.statefile import is_job_scope

AGAIN_S = 1.0  # between decisions if no event comes: foreign processes on GPUs, stopped callers, a full /run


class Decider:
    """Decides by the leases and tickets, the GPUs and the administrator's policy."""

    def __init__(self, leases: Leases, policy_state: PolicyState, warn: Callable[[str], None]) -> None:
        self._leases = leases
        self._policy_state = policy_state
        self._warn = warn
        self.observer = GpuObserver(policy_state.configuration.placement, trusts_environment=False)
        self.no_gpus: GpuError | None = None  # the driver's last failure
        self._stopped = Stopped()

    def decide(
        self, extra: Ticket | None = None, *, is_fresh: bool = True, sees_gpus: bool = False
    ) -> Decided:
        """Decide what each present ticket gets now. ``extra`` is one more of them.

        Without ``is_fresh`` the last snapshot of the GPUs suffices. ``sees_gpus``: look at the GPUs even if
        nobody waits for any.
        """
        self.observer.policy = measured(self._policy_state.placement)
        now_s, leases = proc.now_s(), self._leases.listed
        present = [each for each in self._leases.waiters.values() if each.connection is not None]
        tickets = [*(each.ticket for each in present), *((extra,) if extra else ())]
        shares = self._policy_state.shares(self._leases.holdings.values(), tickets, now_s)
        own_priorities = {
            each.ticket.job: each.asked.priority for each in present
            if each.asked is not None and each.asked.priority > each.ticket.priority
        }  # fmt: skip
        wants_gpus = any(ticket.gpus for ticket in tickets)
        devices = self._devices(leases, is_fresh) if wants_gpus or sees_gpus else None
        policy, patience_s = self.observer.policy, self._policy_state.policy.patience_s
        among_own = places(devices, policy, now_s)
        queue = tuple(order.ordered(tickets, shares, patience_s, now_s, own_priorities, among_own))
        if any(ticket.inside for ticket in queue):
            queue = order.in_order(queue, devices, leases, policy, now_s)
        if devices is not None:
            self._policy_state.seen(self._leases.holdings.values(), devices)
        allowance, stopped = self._policy_state.allowance(), self._stopped.since(now_s)
        able = [ticket for ticket in queue if ticket.job not in stopped]
        book = Book(able, devices, leases, policy, now_s, allowance)
        book = book.among_able(lambda found: self._stopped.among(found.queue, found.served, now_s))
        changes = any(each.out or is_used_by_others(each, policy) for each in devices or ())
        is_unseen = len(book.queue) < len(queue) or (wants_gpus and (changes or devices is None))
        again_s = soonest(AGAIN_S if is_unseen else book.verdict.again_s, self._policy_state.next_end_s())
        return Decided(
            book, allowance, queue, shares, own_priorities, again_s, self._policy_state.names.name_of
        )

    def adopted(self, ticket: Ticket, asked: Acquire | None) -> tuple[str, ...]:
        """The GPUs of a request that adopts a process which uses all of them, whoever waits; (): none."""
        if asked is None or not asked.adopts or self.observer.snapshot is None:
            return ()
        pid, start = asked.adopts
        seen = self.observer.snapshot.processes
        theirs = [each for each in seen if pid in (each.pid, *each.above) and each.uid == ticket.uid]
        used = {each.gpu_uuid for each in theirs if not any(map(is_job_scope, each.cgroup.split("/")))}
        is_theirs = proc.uid_of(pid) == ticket.uid and proc.is_running(pid, start)
        if not is_theirs or not ticket.gpu_choice or not used.issuperset(ticket.gpu_choice):
            return ()
        others = (each.ticket for each in self._leases.waiters.values() if each.ticket.job != ticket.job)
        if any(ticket.slots.keys() & each.slots.keys() for each in others):
            return ()
        now_s, leases = proc.now_s(), self._leases.listed
        self.observer.adopting = lease_from(ticket, ticket.gpu_choice, now_s, pid=pid)
        try:
            devices = self.devices_seen()
        finally:
            self.observer.adopting = None
        book = Book((ticket,), devices, leases, self.observer.policy, now_s, self._policy_state.allowance())
        return book.verdict.grants.get(ticket.job, ())

    def devices_seen(self) -> tuple[Device, ...] | None:
        return self.observer.devices(self._leases.listed)

    def _devices(self, leases: tuple[Lease, ...], is_fresh: bool) -> tuple[Device, ...] | None:
        try:
            self.observer.open()
            if is_fresh or self.observer.snapshot is None:
                self.observer.look()
            self.no_gpus = None
        except GpuError as error:
            if self.no_gpus is None or self.no_gpus.message != error.message:
                self._warn(f"GPUs: {error}")
            self.no_gpus = error
            return None
        return self.observer.devices(leases)

    def gpus(self) -> tuple[Gpu, ...]:
        """The machine's GPUs. Raises NoGpu, GpuError."""
        self.observer.open()
        return self.observer.gpus

    def check_feasible(self, ticket: Ticket) -> None:
        """Raises InfeasibleError, DeadlockError, GpuError if waiting would never end."""
        if ticket.gpus:
            self.observer.open()
            if self.observer.snapshot is None:
                self.observer.look()
        devices = self.observer.devices(self._leases.listed) if ticket.gpus else None
        never = decision.infeasible(ticket, devices)
        if never is not None:
            raise refusal(replace(never, slot=views.shown_name(never.slot, ticket.uid)), ticket)

    def deadlocked(self, ticket: Ticket, found: Decided) -> tuple[str, ...]:
        there = {each.job for each in found.everybody}
        absent = [each.ticket for job, each in self._leases.waiters.items() if job not in there]
        return forecast.deadlocked(ticket, (*found.everybody, *absent), found.book)


class Decided:
    """One decision for all tickets, and why they wait."""

    def __init__(
        self, book: Book, allowance: Allowance, everybody: tuple[Ticket, ...], shares: Shares,
        own_priorities: Mapping[str, int], again_s: float | None, name_of: Callable[[int], str],
    ) -> None:  # fmt: skip
        self.book = book
        self.everybody = everybody  # in order, including the stopped ones, which the book leaves out
        self.shares = shares
        self.again_s = again_s  # decide again then, because no event will show it; None: events will
        self._allowance = allowance
        self._own_priorities = own_priorities  # those that count among requests of one user, by job
        self._name_of = cache(name_of)

    def why(self, ticket: Ticket) -> str:
        """The cap or share for which a ticket waits, or why its priority does not count; else ""."""
        uid, asked = ticket.uid, self._own_priorities.get(ticket.job)
        name = self._name_of(uid)
        why = self._balance.why(ticket, self._name_of)
        why = why or standing.why_behind(uid, self._passing.get(ticket.job, 0), self.shares, name)
        if why or asked is None:
            return why
        among = f"{name}'s own requests only"
        return f"priority {asked} counts among {among}, unless policy.toml has max_priority"

    @cached_property
    def _balance(self) -> Balance:
        return self._allowance.balance(self.book.leases, self.book.devices)

    @cached_property
    def _passing(self) -> dict[str, int]:
        return standing.passing(self.book.queue, self.shares)

    def told(self, ticket: Ticket) -> Busy:
        """Why a ticket waits, as its user may know it."""
        found = views.busy(self.book.busy(ticket), ticket.uid)
        return replace(found, why=self.why(ticket) or found.why)

    @cached_property
    def starts_in_s(self) -> dict[str, float | None]:
        """When the turn of each ticket should come, by job; None: unknown."""
        return forecast.start_times(self.book)


_COUNTS_S = 0.9  # a little less than the pause before the broker decides again
_EACH_S = 0.01  # longer by this for each of the user's


class Stopped:
    """Finds the stopped requests (Ctrl-Z). No event reports a stop, so rounds check those that they serve.

    A user may have a thousand stopped requests. So once some of a user's are found, the next round checks
    twice as many. A finding counts for a while; the more the user has, the longer.
    """

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}  # by job
        self._of: Counter[int] = Counter()  # the number found in this decision, by uid

    def since(self, now_s: float) -> set[str]:
        """Begin a decision. Returns the jobs that need no new check."""
        self._of.clear()
        self._until_s = {job: until_s for job, until_s in self._until_s.items() if until_s > now_s}
        return set(self._until_s)

    def among(self, able: Iterable[Ticket], chosen: Collection[str], now_s: float) -> set[str]:
        """The stopped jobs among the chosen, and among the next ones of users that had some."""
        further = Counter(self._of)
        found: list[Ticket] = []
        for ticket in able:
            if ticket.job not in chosen:
                if further[ticket.uid] <= 0:
                    continue
                further[ticket.uid] -= 1
            if proc.is_stopped(ticket.pid, ticket.pid_start):
                found.append(ticket)
        self._of.update(ticket.uid for ticket in found)
        for ticket in found:
            self._until_s[ticket.job] = now_s + _COUNTS_S + _EACH_S * self._of[ticket.uid]
        return {ticket.job for ticket in found}
