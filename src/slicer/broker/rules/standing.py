"""How each user stands: what it holds, may hold and has used; and why another one goes first. Pure."""

from __future__ import annotations

from slicer.broker.protocol.messages import UserStanding
from slicer.broker.rules.allowance import Taken, taken
from slicer.broker.rules.resolve import caps_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicer.broker.rules.policy import Policy
    from slicer.broker.rules.shares import Shares
    from slicer.model import Lease, Ticket
    from slicer.placement.capacity import Device


def standings(
    policy: Policy, gids: Mapping[int, Sequence[int]], shares: Shares, leases: Sequence[Lease],
    tickets: Sequence[Ticket], devices: tuple[Device, ...] | None,
) -> tuple[UserStanding, ...]:  # fmt: skip
    """Of each user that holds or waits for something, the largest share first."""
    held = taken(leases, devices)
    waiting: dict[int, int] = {}
    for ticket in tickets:
        waiting[ticket.uid] = waiting.get(ticket.uid, 0) + 1
    found = []
    for uid in sorted({*held, *waiting}):
        caps = caps_of(policy, uid, gids.get(uid, ()))
        has = held.get(uid, Taken())
        standing = UserStanding(
            uid=uid, gpus=has.gpus, max_gpus=caps.max_gpus, vram_mib=has.vram_mib,
            max_vram_mib=caps.max_vram_mib, slots=has.slots, max_slots=caps.max_cpu_slots,
            waiting=waiting.get(uid, 0), share=shares.share(uid), due=shares.due(uid),
        )  # fmt: skip
        found.append(standing)
    return tuple(sorted(found, key=lambda each: (-each.share, each.uid)))


def why_behind(ticket: Ticket, queue: Sequence[Ticket], shares: Shares, name: str) -> str:
    """Why requests of others that arrived later go before this one, in words; "" if none does.

    As in "alice has used 0.60 of the GPU time lately, 0.25 is due: another user goes first". ``queue`` is in
    its order. Of other users only the number is told.
    """
    if not ticket.gpus:
        return ""
    passing: set[int] = set()
    for each in queue:
        if each.job == ticket.job:
            break
        if each.gpus and each.priority == ticket.priority and each.arrived_s > ticket.arrived_s:
            passing.add(each.uid)
    passing.discard(ticket.uid)
    if not passing:
        return ""
    others = "another user goes" if len(passing) == 1 else f"{len(passing)} other users go"
    share, due = shares.share(ticket.uid), shares.due(ticket.uid)
    return f"{name} has used {share:.2f} of the GPU time lately, {due:.2f} is due: {others} first"
