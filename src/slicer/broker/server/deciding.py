"""Decides which request is next, and why the others wait: one placement decision over all leases and tickets.

One decision serves all requests that came in one turn of the loop. A request that is absent (its connection
broke) or stopped (Ctrl-Z) keeps its place, and others may pass it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache

from slicer.broker.rules import order, reservations, standing
from slicer.broker.rules.order import Decided
from slicer.broker.rules.views import shown_name
from slicer.broker.server.leases import Leases
from slicer.broker.server.policy_state import PolicyState
from slicer.errors import GpuError
from slicer.gpu.observer import GpuObserver
from slicer.kernel import proc
from slicer.kernel.sleep import soonest
from slicer.model import Busy, Gpu, Lease, Ticket
from slicer.placement import decision, forecast
from slicer.placement.capacity import shape_of
from slicer.placement.devices import Device, is_used_by_others
from slicer.placement.refusal import refusal
from slicer.record import replace

AGAIN_S = 1.0  # between decisions if no event comes: foreign processes on GPUs, stopped callers, a full /run
_FORECAST = 20  # tickets with an estimated start; further back an estimate means little


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
        self.observer.policy = self._policy_state.placement
        now_s, leases = proc.now_s(), self._leases.listed
        present = [each for each in self._leases.waiters.values() if each.connection is not None]
        tickets = [*(each.ticket for each in present), *((extra,) if extra else ())]
        shares = self._policy_state.shares(leases, tickets, now_s)
        own_priorities = {
            each.ticket.job: each.asked.priority for each in present
            if each.asked is not None and each.asked.priority > each.ticket.priority
        }  # fmt: skip
        wants_gpus = any(ticket.gpus for ticket in tickets)
        devices = self._devices(leases, is_fresh) if wants_gpus or sees_gpus else None
        queue = self._policy_state.ordered(tickets, shares, now_s, own_priorities, devices)
        if any(ticket.inside for ticket in queue):
            queue = order.in_order(queue, devices, leases, self.observer.policy, now_s)
        able, stopped, verdict = self._among_able(queue, devices, leases, now_s)
        foreign = any(is_used_by_others(device, self.observer.policy) for device in devices or ())
        is_unseen = bool(stopped) or (wants_gpus and (foreign or devices is None))
        return Decided(
            verdict.grants, able, queue, leases, devices, self.observer.policy, shares, own_priorities,
            soonest(AGAIN_S if is_unseen else verdict.again_s, self._policy_state.next_end_s()),
        )  # fmt: skip

    def _among_able(
        self, queue: tuple[Ticket, ...], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
        now_s: float,
    ) -> tuple[tuple[Ticket, ...], tuple[str, ...], decision.Verdict]:  # fmt: skip
        """The tickets that can be granted, the jobs of those that are stopped, and the decision."""
        if devices is not None:
            self._policy_state.seen(self._leases.holdings.values(), devices)
        allowance, stopped = self._policy_state.allowance(), self._stopped.since(now_s)
        while True:
            able = tuple(ticket for ticket in queue if ticket.job not in stopped)
            verdict = decision.decide(able, devices, leases, self.observer.policy, now_s, allowance)
            idle = self._stopped.among(able, {*verdict.grants, *verdict.reserving}, now_s)
            if not idle:
                return able, tuple(stopped), verdict
            stopped |= idle

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
            raise refusal(replace(never, slot=shown_name(never.slot, ticket.uid)), ticket)

    def deadlocked(self, ticket: Ticket, found: Decided) -> tuple[str, ...]:
        waiting = [each.ticket for each in self._leases.waiters.values()]
        places = {each.job: place for place, each in enumerate(found.everybody)}
        return forecast.deadlocked(
            ticket, waiting, found.devices, found.leases, found.policy, proc.now_s(),
            self._policy_state.allowance(), lambda each: places.get(each.job, len(places)),
        )  # fmt: skip


class Reasons:
    """Why the tickets of one decision wait. Requests that ask for the same share an answer."""

    def __init__(self, found: Decided, policy_state: PolicyState) -> None:
        self.found = found
        self._allowance = allowance = policy_state.allowance()
        self._name_of = cache(policy_state.names.name_of)
        self._place = {ticket.job: index for index, ticket in enumerate(found.queue)}
        self._known: dict[object, Busy] = {}
        self._balance = allowance.balance(found.leases, found.devices)
        self._starts: dict[str, float | None] | None = None
        self._passing: dict[str, int] | None = None

    def busy(self, ticket: Ticket) -> Busy:
        """Why the ticket waits. Requests for the same share one explanation; only ``ahead`` is its own."""
        found = self.found
        place = self._place.get(ticket.job, len(found.queue))
        capped = self._balance.busy(ticket, found.leases, place)
        if capped is not None:
            return capped
        shape = ticket.uid, shape_of(ticket)
        if shape not in self._known:
            self._known[shape] = decision.explain(
                ticket, found.queue, found.devices, found.leases, found.policy, proc.now_s(), self._allowance
            )
        return replace(self._known[shape], ahead=place)

    def why(self, ticket: Ticket) -> str:
        """The cap or share for which a ticket waits, or why its priority does not count; else ""."""
        found, name = self.found, self._name_of(ticket.uid)
        if self._balance.is_closed_out(ticket):
            numbers = {device.uuid: number for number, device in enumerate(found.devices or ())}
            known, now_at = self._allowance.reservations, self._allowance.now_at
            why = reservations.why(ticket, known, numbers, self._name_of, now_at)
        else:
            why = self._balance.why(ticket, name)
        if self._passing is None:
            self._passing = standing.passing(found.queue, found.shares)
        why = why or standing.why_behind(ticket.uid, self._passing.get(ticket.job, 0), found.shares, name)
        asked = found.own_priorities.get(ticket.job)
        if why or asked is None:
            return why
        among = f"{name}'s own requests only"
        return f"priority {asked} counts among {among}, unless policy.toml has max_priority"

    def starts_in_s(self, ticket: Ticket) -> float | None:
        """When its turn should come; None: unknown."""
        found = self.found
        if self._starts is None:
            some_end = any(lease.est_s is not None or lease.expect_s is not None for lease in found.leases)
            queue = found.queue[:_FORECAST] if some_end else ()
            self._starts = forecast.start_times(
                queue, found.devices, found.leases, found.policy, proc.now_s(), self._allowance
            )
        return self._starts.get(ticket.job)


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
