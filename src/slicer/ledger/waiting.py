"""Waiting for a lease. A change wakes one process, however many wait.

Each ticket sleeps on its own bell and on the death of the ticket just ahead (a pidfd). It removes that ticket
if its owner is dead. Two tickets lead: the first, and the first that wants GPUs. They watch the leases as
well. The second also checks the GPUs from time to time while foreign processes use them, because these send
no event.

A ticket need not be told that it leads. It comes to the front when the one just ahead leaves, and that one
rings the next bell, or is dead. A newcomer with a higher priority may slip in between. The ticket ahead then
leaves first, and the ticket behind still looks again in time.
"""

from __future__ import annotations

import os

from slicer import faults
from slicer.errors import BackendError, LedgerGone, RequestCancelled
from slicer.kernel import proc
from slicer.kernel.sleep import soonest
from slicer.ledger import tickets
from slicer.ledger.files import ANSWER_WITHIN_S
from slicer.ledger.ledger import Ledger, Queued, lease_of
from slicer.placement.devices import reserved_mib
from slicer.placement.order import rank_of
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from slicer.gpu.observer import GpuObserver
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.watch import LedgerWatch
    from slicer.model import Busy, Lease, Request, Ticket
    from slicer.placement.decision import Book

    ReachesFront = Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, dict[str, Any]]]

_LOOK_AT_GPUS_S = 1.0

# The pauses between looks (s), first and at most, if the owner ahead cannot be watched. It may have just
# died, while a child still holds its ticket. Or it is in another pid namespace, hence the growing pauses.
_UNSEEN_S = (0.01, 2.0)


@record
class _Place:
    """A ticket's place in the queue. It determines the events that the ticket has to watch."""

    is_first: bool
    ahead: Ticket | None  # the next one ahead whose owner lives
    leads: bool
    looks_at_gpus: bool
    is_stale: bool  # there were dead tickets ahead, or the GPUs are seen only from now on: decide again


class WaitingTicket:
    """A queued request: :class:`slicer.ledger.leasing.Waits`."""

    def __init__(
        self, ledger: Ledger, ticket: Ticket, draft: Lease, observer: GpuObserver, queued: Queued
    ) -> None:
        self._ledger = ledger
        self.ticket = ticket
        self.busy = queued.busy  # why it had to wait
        self.reaches_front: ReachesFront | None = None  # see slicer.ledger.leasing.Hooks
        self.until_s: float | None = None  # the end of the wait, on the ledger's clock
        self._name = tickets.name_of(ticket)
        self._draft = draft
        self._observer = observer
        self._fd, self._writer = queued.files
        self._bell = queued.bell
        self._guard = -1  # the descriptor from reaches_front
        self._watch: LedgerWatch | None = None
        self._unseen_s = _UNSEEN_S[0]
        self._place: _Place | None = None  # at the last look
        self._found: Book | None = None  # at the last look
        self._answers_due_s: float | None = None  # when to check whether others that were rung have looked
        self._pidfd = -1  # of the owner just ahead, while asleep
        self.is_unsettled = True  # the ledger may have changed since the last look: do not sleep

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that hold the ticket and later the lease, also in a process that inherits them."""
        return (self._fd,)

    @property
    def private(self) -> tuple[int, ...]:
        """The descriptors that nobody else may inherit."""
        return (self._bell, self._writer)

    def leave(self) -> None:
        """Leave the queue. Safe to repeat."""
        if self._fd < 0:
            return
        try:
            with self._ledger.locked():
                self._ledger.discard(self._name, self.ticket.job)
                self._close()
        except LedgerGone:
            self._close()

    def _close(self) -> None:
        for fd in (self._bell, self._fd, self._writer, self._guard, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._bell = self._fd = self._writer = self._guard = self._pidfd = -1
        if self._watch is not None:
            self._watch.close()

    def _convert(self, gpus: tuple[str, ...], *, forced: bool = False) -> HeldLease:
        lease = lease_of(self.ticket, self._draft, gpus, self._observer, forced=forced)
        held = self._ledger.convert(self._name, (self._fd, self._writer), lease)
        self._fd = self._writer = -1
        held.postponed_slow.append(self._close)  # closing an inotify instance takes the kernel 15 ms
        return held

    def why(self) -> Busy:
        """Why the request waits, as of the last look."""
        return self.busy if self._found is None else self._found.busy(self.ticket)

    def interrupt(self) -> None:
        """Make a wait in another thread look again."""
        self._ledger.ring(self.ticket.job)

    def look(self) -> HeldLease | None:
        """Look once: the lease, if it is granted now. For callers that wait for several things at a time.

        Look again at once if :attr:`is_unsettled`. Otherwise look when one of :meth:`watched` is readable or
        its time is over, and call :meth:`woken` before. Raises BackendError if the preparation at the front
        is lost, RequestCancelled if the request was taken out of the queue.
        """
        tickets.silence(self._bell)
        self._observer.look()
        with self._ledger.locked():
            found = self._decide()
            gpus = found.verdict.grants.get(self.ticket.job)
            if gpus is not None:
                return self._convert(gpus)
            place = self._find_place(found)
            self._answers_due_s = self._seconds_to_answer(found)
        self._place, self._found = place, found
        self.is_unsettled = place.is_stale or self._has_to_look_again(place)
        return None

    def give_up(self, *, force: bool) -> HeldLease | Busy:
        """Leave after too long a wait: with a lease on what is not free (``force``), or with the reason."""
        self._observer.look()
        with self._ledger.locked():
            found = self._decide()
            gpus = found.verdict.grants.get(self.ticket.job)
            if gpus is not None:
                return self._convert(gpus)
            if force:
                return self._convert(found.roomiest(self.ticket), forced=True)
            busy = found.busy(self.ticket)
        self.leave()
        return busy

    def _decide(self) -> Book:
        """Raises RequestCancelled if the ticket was removed (:meth:`Ledger.withdraw`)."""
        found = self._ledger.decide_and_ring(self.ticket, self._observer)
        if not self._ledger.is_queued(self._name):
            raise RequestCancelled
        return found

    def _find_place(self, found: Book) -> _Place:
        """Find our place among the living. Dead owners' tickets just ahead are removed."""
        names = self._ledger.names_by_job()
        line = sorted(found.queue, key=rank_of)
        ahead: list[Request] = line[: [each.job for each in line].index(self.ticket.job)]
        is_stale = False
        while ahead:
            name = names[ahead[-1].job]
            if not self._ledger.is_waiting(name):
                self._ledger.discard(name, ahead.pop().job)
                is_stale = True
            elif self._ledger.is_idle(name):
                ahead.pop()  # it does nothing, so it rings nobody
            else:
                break
        rivals = [names[request.job] for request in ahead if request.gpus] if self.ticket.gpus else []
        is_first_gpu = bool(self.ticket.gpus) and all(self._ledger.is_idle(name) for name in rivals)
        return _Place(
            is_first=not ahead,
            ahead=self._ledger.ticket(names[ahead[-1].job]) if ahead else None,
            leads=not ahead or is_first_gpu,
            looks_at_gpus=is_first_gpu and _is_restless(found),
            is_stale=is_stale or self._sees_more_gpus(ahead),
        )

    def _seconds_to_answer(self, found: Book) -> float | None:
        """The seconds until a request that was rung counts as idle; None: none was rung."""
        others = found.served - {self.ticket.job}
        rung = [since_s for job in others if (since_s := self._ledger.unanswered_s(job)) is not None]
        return max(0.0, ANSWER_WITHIN_S - max(rung)) if rung else None

    def _sees_more_gpus(self, ahead: list[Request]) -> bool:
        """Open the GPUs if the order depends on them. Returns whether more can be seen than before."""
        is_mixed = any(request.gpus and request.slots for request in ahead)
        return bool(self.ticket.slots) and is_mixed and self._observer.try_open()

    def _has_to_look_again(self, place: _Place) -> bool:
        """Begin the necessary watches. Returns whether a change may have come just before."""
        if place.leads and self.reaches_front is not None:
            prepare, self.reaches_front = self.reaches_front, None
            self._guard, known = prepare(self.descriptors, self.private)
            self._draft = replace(self._draft, **known)
            return True
        if not place.leads:
            return False
        if self._watch is None:
            from slicer.ledger.watch import LedgerWatch

            self._watch = LedgerWatch(self._ledger.directory)
            return True
        return self._watch.follow(self._ledger.orphans())

    def watched(self) -> tuple[list[int], float | None]:
        """The descriptors to wait for, and the longest wait in seconds."""
        place = self._place
        if place is None:
            return [self._bell], 0.0
        descriptors = [self._bell]
        limits = [_LOOK_AT_GPUS_S if place.looks_at_gpus else None, self._answers_due_s]
        if place.leads and self._watch is not None:
            descriptors += self._watch.descriptors()
            limits += [self._watch.due_s(), None if self._found is None else self._found.verdict.again_s]
        if self._guard >= 0:
            descriptors.append(self._guard)
        self._close_pidfd()
        self._pidfd = _pidfd_of(place.ahead)
        if self._pidfd >= 0:
            descriptors.append(self._pidfd)
            self._unseen_s = _UNSEEN_S[0]
        elif not place.is_first:
            limits.append(self._unseen_s)
            self._unseen_s = min(2 * self._unseen_s, _UNSEEN_S[1])
        return descriptors, soonest(*limits)

    def woken(self, ready: Collection[int]) -> None:
        """Take note of the readable descriptors. Raises BackendError if the preparation is lost."""
        faults.point("waiting-woken")
        self._close_pidfd()
        if self._guard in ready:
            raise BackendError("its scope was stopped while the job waited", where=self._draft.unit)
        if self._place is not None and self._place.leads and self._watch is not None:
            self._watch.take()

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _is_restless(found: Book) -> bool:
    """Whether GPUs are used, or out of service, in ways that change without an event."""
    leases, policy = found.leases, found.policy
    return any(
        device.out or device.foreign_pids or device.used_mib > reserved_mib(device, leases, policy)
        for device in found.devices or ()
    )


def _pidfd_of(ticket: Ticket | None) -> int:
    """A pidfd of the ticket's owner; -1 if there is none."""
    try:
        found = None if ticket is None else proc.open_process(ticket.pid, ticket.pid_start)
    except OSError:  # no descriptors are left
        found = None
    return -1 if found is None else found
