"""Leases, tickets and reasons as one user may see them. Pure.

Only the owner and root see a command. Slots have the names that the viewer knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from slicer.model import Busy, Lease, Ticket
from slicer.record import replace

_MOST_HOLDERS = 8  # for one reason: a message is small, and nobody reads more


def lease(found: Lease, viewer: int) -> Lease:
    command = found.command if viewer in (0, found.uid) else ""
    return replace(found, command=command, slots=shown(found.slots, viewer))


def ticket(found: Ticket, viewer: int) -> Ticket:
    return replace(
        found, command=found.command if viewer in (0, found.uid) else "",
        slots=shown(found.slots, viewer), slot_limits=shown(found.slot_limits, viewer),
    )  # fmt: skip


def busy(found: Busy, viewer: int) -> Busy:
    """The reason, reduced for this user. Of many holders, those that should end first remain."""
    holders = sorted(found.holders, key=_end_s)[:_MOST_HOLDERS]
    return replace(
        found, holders=tuple(replace(lease(each, viewer), command="") for each in holders),
        foreign=found.foreign[:_MOST_HOLDERS],
        slot=shown_name(found.slot, viewer) if found.slot else "",
    )  # fmt: skip


def _end_s(holder: Lease) -> tuple[bool, float]:
    if holder.expect_s is None:
        return True, holder.since_s
    return False, holder.since_s + holder.expect_s


def kept(slots: Mapping[str, int], uid: int, counted: Mapping[str, int]) -> dict[str, int]:
    """The slots as the broker keeps them. ``counted``: the administrator's limits."""
    return {name if name in counted else _own(uid) + name: count for name, count in slots.items()}


def kept_limits(
    slots: Mapping[str, int], said: Mapping[str, int], uid: int, counted: Mapping[str, int]
) -> dict[str, int]:
    """The limits of these slots: the administrator's, else the user's."""
    return {
        name if name in counted else _own(uid) + name: counted.get(name, said.get(name, 0)) for name in slots
    }


def shown_name(name: str, viewer: int) -> str:
    """A slot's name as this user knows it; "" for another user's own. Root sees all, with their uid."""
    own = _own(viewer)
    if name.startswith(own):
        return name[len(own) :]
    return "" if viewer and is_private(name) else name


def shown(slots: Mapping[str, int], viewer: int) -> dict[str, int]:
    """The slots as this user knows them, without those of other users."""
    return {known: count for name, count in slots.items() if (known := shown_name(name, viewer))}


def is_private(name: str) -> bool:
    head, dot, _ = name.partition(".")
    return bool(dot) and head[:1] == "u" and head[1:].isdigit()


def _own(uid: int) -> str:
    return f"u{uid}."
