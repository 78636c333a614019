"""One decision, as those who tell of it need it."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.broker.rules.shares import Shares
    from slicer.model import Lease, Ticket
    from slicer.placement.capacity import Device, Policy


@record
class Decided:
    """One decision, and what it was made from."""

    grants: dict[str, tuple[str, ...]]
    queue: tuple[Ticket, ...]  # in order, without those that cannot go now
    everybody: tuple[Ticket, ...]  # in order, the stopped ones too
    leases: tuple[Lease, ...]
    devices: tuple[Device, ...] | None
    policy: Policy
    shares: Shares
    wishes: Mapping[str, int]  # priorities that count among requests of one user, by job
    must_look: bool  # no event will tell when another decision is due
