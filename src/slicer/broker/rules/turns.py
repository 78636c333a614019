"""Whose turn is near. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slicer.model import Ticket


_DEPTH = 2


def nearest(queue: Iterable[Ticket], is_over_cap: Callable[[Ticket], bool]) -> list[Ticket]:
    """The requests that could be the next to be served, out of a queue in order.

    These are the first two of each kind: of those that want GPUs, and of those that want slots of the same
    names. (Two, because of short jobs the next one ends before the scope of the one behind it stands.) Who is
    over a cap is passed over, but may be served when a job of the same user ends. So the first of each user
    that is over a cap are among them, too.
    """
    found: dict[object, list[Ticket]] = {}
    for ticket in queue:
        kind = "gpus" if ticket.gpus else tuple(sorted(ticket.slots))
        of_kind = found.setdefault((kind, ticket.uid if is_over_cap(ticket) else None), [])
        if len(of_kind) < _DEPTH:
            of_kind.append(ticket)
    return [ticket for of_kind in found.values() for ticket in of_kind]
