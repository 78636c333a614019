"""Requests that wait for a job, and what that job itself waits for. Pure.

A job that runs inside of another one keeps that one's lease from ending while it waits. Whoever cannot be
served beside such leases has to wait for one of them to end, and could keep from the inner jobs what they
need: then nobody would ever be served. So such a request steps behind the inner ones, and loses nothing by
it. All others keep their places: an inner job goes ahead of nobody who need not wait for it.
"""

from __future__ import annotations

from slicer.placement.capacity import Capacity, Device, limits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicer.model import Lease, Ticket
    from slicer.placement.capacity import Policy


def in_order(
    queue: Sequence[Ticket], devices: tuple[Device, ...] | None, leases: Sequence[Lease], policy: Policy,
    now_s: float,
) -> tuple[Ticket, ...]:  # fmt: skip
    """The queue, with each request behind the last inner one if it has to wait for outer jobs anyway."""
    outer = {job for ticket in queue for job in ticket.inside}
    held = tuple(lease for lease in leases if lease.job in outer)
    empty = devices and tuple(Device(each.uuid, each.total_mib, 0, {}, 0, ()) for each in devices)
    capacity = Capacity(empty, held, policy, now_s, limits_of(queue))
    last = max((place for place, ticket in enumerate(queue) if ticket.inside), default=0)
    before = [*queue[: last + 1]]
    stepping = [each for each in before if not each.inside and capacity.fit(each) is None]
    if not stepping:
        return tuple(queue)
    jobs = {each.job for each in stepping}
    return (*(each for each in before if each.job not in jobs), *stepping, *queue[last + 1 :])
