"""The order in which waiting requests are served. Pure.

By priority first. Among those of one priority:

- Requests that want no GPU keep their places by arrival.
- The other places are those of requests that want GPUs. Whoever used least for its weight goes first
  (:mod:`.shares`), and among requests of one user the first to arrive.
- Who got no GPU for ``patience_s`` although it waited is served out of turn: the first of its requests goes
  ahead of the shares. With the grant its patience begins anew, so of many requests only one goes ahead.

Who may not go ahead of others by a priority may by it go ahead of its own requests: these change places among
each other.

So no user starves, whatever the others use. After ``patience_s`` its first request has a fixed place among
the others that were patient, by the time since when they are. Ahead of it there is at most one request a
user, and who is served comes back behind it. In that place the argument of :mod:`slicer.placement.decision`
holds. And every request of a user is its first one at some time.
"""

from __future__ import annotations

from slicer.broker.rules.shares import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slicer.broker.rules.shares import Shares
    from slicer.model import Ticket


def ordered(
    tickets: Iterable[Ticket], shares: Shares, patience_s: float, now_s: float,
    wishes: Mapping[str, int] | None = None,
) -> list[Ticket]:  # fmt: skip
    """The tickets in the order in which they are served. Same input, same order.

    ``wishes``: priorities that count only among requests of the same user, by job.
    """
    by_arrival = sorted(tickets, key=lambda each: (-each.priority, each.arrived_s, each.job))
    out_of_turn = _out_of_turn(by_arrival, shares.granted_s, patience_s, now_s)
    wanting = [each for each in by_arrival if each.gpus]
    ranks = {uid: shares.rank(uid) for uid in {each.uid for each in wanting}}

    def place(ticket: Ticket) -> tuple[int, float, float, str]:
        patient_since_s = out_of_turn.get(ticket.job)
        if patient_since_s is not None:
            return -ticket.priority, -1.0, patient_since_s, ticket.job
        return -ticket.priority, ranks[ticket.uid], ticket.arrived_s, ticket.job

    # Priorities have the same places in both, so each request stays among its own.
    served = iter(sorted(wanting, key=place))
    found = [next(served) if each.gpus else each for each in by_arrival]
    return _by_own_wishes(found, wishes) if wishes else found


def _by_own_wishes(found: list[Ticket], wishes: Mapping[str, int]) -> list[Ticket]:
    """The same, with each user's places of one kind given to its requests by its own priorities."""

    def places_of(ticket: Ticket) -> tuple[int, int, bool]:
        return ticket.uid, ticket.priority, bool(ticket.gpus)

    own: dict[tuple[int, int, bool], list[Ticket]] = {}
    for ticket in found:
        own.setdefault(places_of(ticket), []).append(ticket)
    served = {
        places: iter(sorted(each, key=lambda ticket: -wishes.get(ticket.job, ticket.priority)))
        for places, each in own.items()
    }
    return [next(served[places_of(ticket)]) for ticket in found]


def _out_of_turn(
    by_arrival: Iterable[Ticket], granted_s: Mapping[int, float], patience_s: float, now_s: float
) -> dict[str, float]:
    """Of each user and priority the first request, if it has been patient for long enough; since when."""
    first: dict[tuple[int, int], Ticket] = {}
    for ticket in by_arrival:
        if ticket.gpus:
            first.setdefault((ticket.uid, ticket.priority), ticket)
    since_s = {
        each.job: max(each.arrived_s, granted_s.get(each.uid, NEVER)) for each in first.values()
    }
    return {job: begin_s for job, begin_s in since_s.items() if now_s - begin_s >= patience_s}
