"""One user after the other, and one request in the place of another. Pure."""

from __future__ import annotations

from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from typing import TypeVar

    from slicer.model import Ticket

    T = TypeVar("T")


_MOST_MOVED = 64


def interleaved(found: Iterable[T], whose: Callable[[T], int]) -> list[T]:
    """The same, with each user's first one before anybody's second. Among these they keep their order."""
    own: dict[int, int] = {}
    places: list[int] = []
    there = list(found)
    for each in there:
        places.append(own.setdefault(whose(each), 0))
        own[whose(each)] += 1
    return [there[index] for _, index in sorted(zip(places, range(len(there)), strict=True))]


def put_ahead(
    new: Ticket, ahead_of: str, own: Iterable[Ticket], counted: Container[str]
) -> tuple[Ticket, list[Ticket]]:
    """A request that takes another one's place, and those of its user that have other places by that.

    Each later one gets the place of the next, and the last one that of the new request. So a user gains no
    place, and keeps none by a request that is never served. It is a place in the line of those who wait for
    the same: the other one must wait for all that others can want, too (``counted``: the slots of all users).
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
    """What others could want, too."""
    return {name for name in ticket.slots if name in counted} | ({"gpus"} if ticket.gpus else set())
