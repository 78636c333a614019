"""What one user may see of leases, tickets and reasons. Pure.

Commands are their owner's and root's. Slots are shown by the names that the viewer knows.
"""

from __future__ import annotations

from slicer.broker.rules.slots import shown, shown_name
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Busy, Lease, Ticket

_MOST_HOLDERS = 8  # of one reason: a message is small, and nobody reads more


def lease(found: Lease, viewer: int) -> Lease:
    """The lease for this user's eyes."""
    command = found.command if viewer in (0, found.uid) else ""
    return replace(found, command=command, slots=shown(found.slots, viewer))


def ticket(found: Ticket, viewer: int) -> Ticket:
    """The ticket for this user's eyes."""
    return replace(
        found, command=found.command if viewer in (0, found.uid) else "",
        slots=shown(found.slots, viewer), slot_limits=shown(found.slot_limits, viewer),
    )  # fmt: skip


def busy(found: Busy, viewer: int) -> Busy:
    """The reason for this user's eyes. Of many holders, those that should end first."""
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
