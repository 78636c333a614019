"""Which jobs give way to a request that waits: those that said they would (``preemptible``). Pure.

A job is asked only for a request of a higher priority that begins as soon as it, and the others that are
asked, have ended; and not if the request should begin soon anyway. The fewest are asked, and among as many
those that began last: they lose least. (With very many such jobs, none is asked that could be left out, but
another choice might be smaller.)
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain, combinations, islice

from slicer.placement.decision import Book, gpu_holders, slot_holders
from slicer.placement.devices import without
from slicer.placement.forecast import start_times

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from slicer.model import Lease, Ticket

_SOON_S = 60.0
_DEPTH = 20  # requests; those behind wait for them anyway
_MOST_TRIES = 200  # decisions: some ten milliseconds
_TIMES = 5  # after each so many the job runs for twice as long


def least_run_s(min_run_s: float, times: int) -> float:
    """How long a job runs before it gives way, if it has done so ``times`` times."""
    return min_run_s * 2.0 ** min(times // _TIMES, 20)


def asked(book: Book, unaware: Collection[str] = ()) -> dict[str, Ticket]:
    """The jobs that are to give way now, each with the request for which; it is the same for all.

    The book's queue has tickets. What gives way already counts as gone, unless it takes much too long.
    ``unaware``: jobs that would not notice that they are asked.
    """
    able = {lease.job for lease in book.leases if _is_able(lease, book.now_s)}.difference(unaware)
    if not able:
        return {}
    gone = {lease.job for lease in book.leases if _is_going(lease, book.now_s)}
    left = _left(book, gone, book.queue[:_DEPTH])
    soon = {job for job, at_s in start_times(left).items() if at_s is not None and at_s <= _SOON_S}
    for place, ticket in enumerate(left.queue):
        if ticket.job in left.verdict.grants or ticket.job in soon:
            continue
        before = _left(left, (), left.queue[: place + 1])
        if chosen := _fewest(ticket, before, _candidates(ticket, before, able)):
            return dict.fromkeys(chosen, ticket)
    return {}


def _is_able(lease: Lease, now_s: float) -> bool:
    is_asked = lease.gives_way_by_s is not None
    return not is_asked and lease.min_run_s is not None and now_s - lease.since_s >= lease.min_run_s


def _is_going(lease: Lease, now_s: float) -> bool:
    return lease.gives_way_by_s is not None and now_s < lease.gives_way_by_s + _SOON_S


def _candidates(ticket: Ticket, book: Book, able: set[str]) -> list[str]:
    """The jobs that could give way to the request, those that began last first."""
    holders = [*(gpu_holders(ticket, book.leases) if ticket.gpus else ())]
    holders += slot_holders(book.leases, ticket.slots)
    could = able & {lease.job for lease in holders if lease.priority < ticket.priority} - {*ticket.inside}
    found = [lease for lease in book.leases if lease.job in could]
    found.sort(key=lambda lease: (-lease.since_s, len(lease.gpus), lease.job))
    return [lease.job for lease in found]


def _fewest(ticket: Ticket, book: Book, jobs: list[str]) -> tuple[str, ...]:
    """The fewest of the jobs without which the request begins, the first ones if possible; () for none."""

    def is_enough(chosen: Iterable[str]) -> bool:
        return ticket.job in _left(book, chosen, book.queue).verdict.grants

    if not jobs or not is_enough(jobs):
        return ()
    sets = chain.from_iterable(combinations(jobs, count) for count in range(1, len(jobs)))
    for chosen in islice(sets, _MOST_TRIES):
        if is_enough(chosen):
            return chosen
    least = bisect_left(range(1, len(jobs)), True, key=lambda count: is_enough(jobs[:count])) + 1
    kept = jobs[:least]
    for job in kept[::-1][:_MOST_TRIES]:
        others = [each for each in kept if each != job]
        if is_enough(others):
            kept = others
    return tuple(kept)


def _left(book: Book, gone: Iterable[str], queue: tuple[Ticket, ...]) -> Book:
    """The book with this queue, once the jobs ``gone`` have ended."""
    jobs, devices = {*gone}, book.devices
    return Book(
        queue, None if devices is None else tuple(without(device, jobs) for device in devices),
        tuple(lease for lease in book.leases if lease.job not in jobs), book.policy, book.now_s,
        book.allowance,
    )  # fmt: skip
