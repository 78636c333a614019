"""The order in which waiting requests are served. Pure.

By priority first. Among requests of one priority:

- Requests without GPUs keep their places by arrival.
- The other places go to requests for GPUs. The user that used least for its weight goes first
  (:mod:`.shares`). Requests of one user go in the order of :mod:`slicer.placement.order`.
- A user that has waited ``patience_s`` without a GPU is served out of turn: its first request goes ahead of
  the shares. With the grant its patience begins again, so only one of many requests goes ahead.

A priority that may not pass others' requests still orders the user's own, which change places.

So no user starves, whatever the others use. After ``patience_s`` its first request has a fixed place among
the patient ones, by the start of their patience. Ahead of it there is at most one request for each user, and
a user that was served comes back behind it. In that place the argument of :mod:`slicer.placement.decision`
holds. And every request of a user is its first one at some time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

from slicer.broker.rules.shares import NEVER, Shares
from slicer.model import Lease, Ticket
from slicer.placement.capacity import Capacity, limits_of
from slicer.placement.devices import Device, emptied
from slicer.placement.order import rank_of, with_gpus_by
from slicer.placement.settings import Policy
from slicer.record import replace

T = TypeVar("T")


def ordered(
    tickets: Iterable[Ticket], shares: Shares, patience_s: float, now_s: float,
    own_priorities: Mapping[str, int] | None = None,
    among_own: Callable[[Ticket], tuple[float, float, str]] = lambda each: (0.0, each.arrived_s, each.job),
) -> list[Ticket]:  # fmt: skip
    """The tickets in the order in which they are served. Same input, same order.

    ``among_own``: the sort key among requests for GPUs by users with equal shares, and of one user.
    ``own_priorities``: priorities that count only among requests of the same user, by job.
    """
    by_arrival = sorted(tickets, key=rank_of)
    out_of_turn = _out_of_turn(by_arrival, shares.granted_s, patience_s, now_s)
    ranks = {uid: shares.rank(uid) for uid in {each.uid for each in by_arrival if each.gpus}}

    def place(ticket: Ticket) -> tuple[int, float, float, float, str]:
        patient_since_s = out_of_turn.get(ticket.job)
        if patient_since_s is not None:
            return -ticket.priority, -1.0, 0.0, patient_since_s, ticket.job
        return (-ticket.priority, ranks[ticket.uid], *among_own(ticket))

    found = with_gpus_by(by_arrival, place)
    return _by_own_priorities(found, own_priorities) if own_priorities else found


def _by_own_priorities(found: list[Ticket], own_priorities: Mapping[str, int]) -> list[Ticket]:
    """The same, with each user's places of one kind given to its requests by its own priorities."""

    def places_of(ticket: Ticket) -> tuple[int, int, bool]:
        return ticket.uid, ticket.priority, bool(ticket.gpus)

    own: dict[tuple[int, int, bool], list[Ticket]] = {}
    for ticket in found:
        own.setdefault(places_of(ticket), []).append(ticket)
    served = {
        places: iter(sorted(each, key=lambda ticket: -own_priorities.get(ticket.job, ticket.priority)))
        for places, each in own.items()
    }
    return [next(served[places_of(ticket)]) for ticket in found]


def _out_of_turn(
    by_arrival: Iterable[Ticket], granted_s: Mapping[int, float], patience_s: float, now_s: float
) -> dict[str, float]:
    """For each user and priority, the first request that has been patient for long enough; and since when."""
    first: dict[tuple[int, int], Ticket] = {}
    for ticket in by_arrival:
        if ticket.gpus:
            first.setdefault((ticket.uid, ticket.priority), ticket)
    since_s = {each.job: max(each.arrived_s, granted_s.get(each.uid, NEVER)) for each in first.values()}
    return {job: begin_s for job, begin_s in since_s.items() if now_s - begin_s >= patience_s}


def in_order(
    queue: Sequence[Ticket], devices: tuple[Device, ...] | None, leases: Sequence[Lease], policy: Policy,
    now_s: float,
) -> tuple[Ticket, ...]:  # fmt: skip
    """The queue. A request that has to wait for outer jobs anyway goes behind the last inner one.

    While an inner job waits, its outer job keeps its lease. A request that cannot be served beside such
    leases could keep from the inner jobs what they need, and nobody would ever be served. So it steps behind
    them, and loses nothing. All others keep their places: an inner job passes no request that need not wait
    for it.
    """
    outer = {job for ticket in queue for job in ticket.inside}
    held = tuple(lease for lease in leases if lease.job in outer)
    capacity = Capacity(emptied(devices), held, policy, now_s, limits_of(queue))
    last = max((place for place, ticket in enumerate(queue) if ticket.inside), default=0)
    before = [*queue[: last + 1]]
    stepping = [each for each in before if not each.inside and capacity.fit(each) is None]
    if not stepping:
        return tuple(queue)
    jobs = {each.job for each in stepping}
    return (*(each for each in before if each.job not in jobs), *stepping, *queue[last + 1 :])


_MOST_MOVED = 64


def interleaved(found: Iterable[T], whose: Callable[[T], int]) -> list[T]:
    """The same, with each user's first item before anybody's second. Otherwise the order is kept."""
    own: Counter[int] = Counter()
    placed: list[tuple[int, T]] = []
    for each in found:
        placed.append((own[whose(each)], each))
        own[whose(each)] += 1
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def put_ahead(
    new: Ticket, ahead_of: str, own: Iterable[Ticket], counted: Container[str]
) -> tuple[Ticket, list[Ticket]]:
    """A request that takes another one's place, and its user's requests that move because of that.

    Each later request gets the place of the next, and the last one that of the new request. So a user gains
    no place, and keeps none by a request that is never served. The places are those of requests that wait for
    the same: the other one must wait for everything that others can want, too (``counted``: the slots of all
    users).
    """
    alike = sorted((each for each in own if each.priority == new.priority), key=lambda each: each.arrived_s)
    jobs = [each.job for each in alike]
    if ahead_of not in jobs:
        return new, []
    later = alike[jobs.index(ahead_of) :]
    if not _kinds(new, counted) <= _kinds(later[0], counted) or len(later) > _MOST_MOVED:
        return new, []
    places = [*(each.arrived_s for each in later), new.arrived_s]
    first, *others = (
        replace(each, arrived_s=place) for each, place in zip([new, *later], places, strict=True)
    )
    return first, others


def _kinds(ticket: Ticket, counted: Container[str]) -> set[str]:
    """The kinds of resources that others could want, too."""
    return {name for name in ticket.slots if name in counted} | ({"gpus"} if ticket.gpus else set())
