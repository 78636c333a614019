"""The future of the queue: when each request should start, and which would wait for ever. Pure.

Separate from :mod:`slicer.placement.decision`, because a job that starts at once does not need it.
"""

from __future__ import annotations

from slicer.model import Lease, Ticket, lease_from
from slicer.placement.capacity import Capacity, limits_of
from slicer.placement.decision import decide, go_through, gpu_holders, slot_holders
from slicer.placement.devices import emptied, without
from slicer.placement.lengths import likely_s
from slicer.placement.order import expected_end
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicer.placement.decision import Book

_FORECAST_DEPTH = 100  # requests; beyond that, estimates mean little
_MOST_WORK = 5000  # leases and requests to examine, over all steps: some ten milliseconds


def start_times(book: Book) -> dict[str, float | None]:
    """In how many seconds each ticket of the book's queue should become a lease, by job.

    This uses the expected ends of leases (:func:`slicer.placement.order.expected_end`) and the estimates of
    tickets. None: the start depends on a job without an estimate, or too many others have to end before.
    """
    found: dict[str, float | None] = dict.fromkeys((request.job for request in book.queue), None)
    waiting: Sequence[Ticket] = book.queue[:_FORECAST_DEPTH]
    running, devices = list(book.leases), book.devices
    ends_s: dict[str, float] = {}
    for lease in running:
        _note_end(ends_s, lease, book.now_s)
    at_s, steps = book.now_s, 1 + _MOST_WORK // (1 + len(running) + len(book.queue))
    while waiting and steps:
        steps -= 1
        grants = decide(waiting, devices, tuple(running), book.policy, at_s, book.allowance).grants
        for ticket in [each for each in waiting if each.job in grants]:
            found[ticket.job] = at_s - book.now_s
            running.append(lease := lease_from(ticket, grants[ticket.job], at_s))
            _note_end(ends_s, lease, at_s)
        waiting = [ticket for ticket in waiting if ticket.job not in grants]
        if not ends_s:
            break
        at_s = min(ends_s.values())
        ended = {job for job, end_s in ends_s.items() if end_s == at_s}
        ends_s = {job: end_s for job, end_s in ends_s.items() if job not in ended}
        running = [lease for lease in running if lease.job not in ended]
        devices = None if devices is None else tuple(without(device, ended) for device in devices)
    return found


def _note_end(ends_s: dict[str, float], lease: Lease, now_s: float) -> None:
    """Note when the lease should end, if its length is known."""
    length_s = likely_s(lease)
    if length_s is not None or lease.gives_way_by_s is not None:
        ends_s[lease.job] = expected_end(replace(lease, est_s=length_s), now_s)


def deadlocked(ticket: Ticket, waiting: Sequence[Ticket], book: Book) -> tuple[str, ...]:
    """The jobs for which ``ticket`` would wait for ever; () for none.

    ``waiting``: all tickets in their order, this one and those that can do nothing now included.

    A job that waits inside another keeps the outer job's lease from ending. All other leases will end. Then
    some inner jobs can be served, so their outer jobs end, too, and so on (the banker's argument). A request
    that has a reservation and still cannot be served keeps its share from those behind it.
    """
    devices = emptied(book.devices)
    while True:
        outer = {job for each in waiting for job in each.inside}
        held = tuple(lease for lease in book.leases if lease.job in outer)
        balance = None if book.allowance is None else book.allowance.balance(held, devices)
        capacity = Capacity(devices, held, book.policy, book.now_s, limits_of(waiting))
        found = go_through(waiting, capacity, balance, takes=False)
        if ticket.job in found.grants:
            return ()
        if not found.grants:
            break
        waiting = [each for each in waiting if each.job not in found.grants]
    holders = gpu_holders(ticket, held) if ticket.gpus else ()
    holders += slot_holders(held, ticket.slots)
    jobs = [lease.job for lease in holders if lease.job not in ticket.inside]
    order = [each.job for each in waiting]
    jobs += [job for job in found.reserving if order.index(job) < order.index(ticket.job)]
    return tuple(dict.fromkeys(jobs)) or ticket.inside
