"""The ledger: all leases and tickets of this user on this machine, and the decision who is next.

Leases and tickets are files (:mod:`slicer.ledger.entries`), flocked by their owners for as long as they
count. A lease also counts while its scope is populated, whatever became of its file descriptors. Everything
is read and changed under the ledger's lock. Nobody sleeps while holding it.

Each process decides for all tickets that it sees, with the same pure function over the same files. It takes
its own grant, and rings the bell of every other ticket that could go. Grants are not written down: a process
whose bell rings decides again for itself. So no decision is lost with its maker.
"""

from __future__ import annotations

import os

from slicer import faults
from slicer.errors import BrokerError, DeadlockError, StateError
from slicer.kernel import on_host
from slicer.kernel.proc import now_s, text_of
from slicer.ledger import entries, tickets
from slicer.ledger.files import LedgerFiles
from slicer.ledger.held_lease import HeldLease
from slicer.model import Busy, Lease, Request, Ticket
from slicer.record import record, replace
from slicer.state import statefile
from slicer.state.directory import failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.gpu.observer import GpuObserver
    from slicer.placement.decision import Book
    from slicer.placement.devices import Device
    from slicer.placement.settings import Policy


@record
class Snapshot:
    """The live leases and the tickets in their order."""

    leases: tuple[Lease, ...]
    tickets: tuple[Ticket, ...]

    @property
    def entries(self) -> tuple[Lease | Ticket, ...]:
        return (*self.leases, *self.tickets)


@record
class Queued:
    """The ticket and the bell of a request that has to wait. The receiver closes them."""

    files: tuple[int, int]  # the ticket, from slicer.ledger.entries.create
    bell: int
    busy: Busy  # why it had to wait


class Ledger(LedgerFiles):
    """The ledger in one state directory. Cheap to make: it keeps a few descriptors open."""

    # -- for everybody -----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The ledger's present state. Dead owners' files are removed on the way."""
        with self.locked():
            return Snapshot(self.leases(), tuple(self.live_tickets()))

    def acquire(
        self, request: Request, draft: Lease, observer: GpuObserver, *, queues: bool = False
    ) -> HeldLease | Queued | Busy:
        """Grant the request now, or return why it is not granted.

        ``draft`` is the future lease, without its GPUs. ``queues``: the request is a ticket, and takes its
        place under the same lock if it has to wait. Raises InfeasibleError if waiting could never help,
        DeadlockError if it would wait for jobs that wait for it, StateError, GpuError.
        """
        observer.look()
        with self.locked():
            found = self._grant_now(request, draft, observer)
            if isinstance(found, HeldLease):
                return found
            busy = found.busy(request)
            if not queues:
                return busy
            assert isinstance(request, Ticket)
            if request.inside:
                self._refuse_deadlock(request, found)
            name = tickets.name_of(request)
            files = entries.create(self.directory.tickets, name, statefile.encode(request))
            try:
                bell = tickets.make_bell(self.directory.bells, request.job)
            except StateError:
                entries.remove(self.directory.tickets, name)
                for fd in files:
                    os.close(fd)
                raise
            return Queued(files, bell, busy)

    def withdraw(self, ticket: Ticket) -> bool:
        """Take another process's request out of the queue, and ring it; False if it does not wait."""
        name = tickets.name_of(ticket)
        with self.locked():
            if not self.is_waiting(name):
                return False
            self.ring(ticket.job)
            self.discard(name, ticket.job)
            return True

    # -- under the lock ----------------------------------------------------------------------------------

    def decide_and_ring(self, request: Request, observer: GpuObserver) -> Book:
        """Decide for all, and ring the others that could go. Raises BrokerError if a broker decides by now.

        That broker would not know what this ledger granted.
        """
        if not request.is_nothing and self.broker_now():
            raise BrokerError("a broker was switched on in the meantime", hint="run it again")
        found = self.decide(request, observer)
        faults.point("ledger-judged")
        for job in found.verdict.grants:
            if job != request.job:
                self.ring(job)
                faults.point("ledger-rung")
        return found

    def decide(self, request: Request, observer: GpuObserver) -> Book:
        """The present decision, without idle and dead tickets. Raises InfeasibleError for ``request``.

        Raises LedgerLost if jobs run that this ledger does not know.
        """
        leases = self.leases()
        self.directory.check_alone()
        devices = _feasible_devices(request, leases, observer)
        book = self._book(self._queue(request), devices, leases, observer)
        return book.among_able(lambda found: self._idle(found.served - {request.job}))

    def decided(self, observer: GpuObserver) -> Book:
        """The present decision about all who wait, for a job that does not. Its queue has tickets."""
        leases, waiting = self.leases(), self.live_tickets()
        queue = tuple(each for each in waiting if not self.is_idle(tickets.name_of(each)))
        return self._book(queue, observer.devices(leases), leases, observer)

    def _book(
        self, queue: tuple[Request, ...], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
        observer: GpuObserver,
    ) -> Book:  # fmt: skip
        # Imported here: a client of the broker never decides.
        from slicer.placement.decision import Book
        from slicer.placement.order import in_order

        leases += self.closing(tuple(device.uuid for device in devices or ()))
        policy, at_s = self._policy(queue, observer), now_s()
        return Book(in_order(queue, devices, policy, at_s), devices, leases, policy, at_s)

    def _idle(self, jobs: set[str]) -> set[str]:
        """Those of the jobs whose owners are stopped or dead. The tickets of the dead are removed."""
        names = self.names_by_job() if jobs else {}
        dead = {job for job in jobs if not self.is_waiting(names[job])}
        for job in dead:
            self.discard(names[job], job)
        return dead | {job for job in jobs - dead if self.is_idle(names[job])}

    def _policy(self, queue: tuple[Request, ...], observer: GpuObserver) -> Policy:
        """The same for all that decide, apart from their configurations."""
        policy = measured(observer.policy)
        if not any(request.gpus for request in queue):
            return policy
        return replace(policy, mean_job_s=self.lengths().mean_s, suspects=self.suspects())

    def _grant_now(self, request: Request, draft: Lease, observer: GpuObserver) -> HeldLease | Book:
        """The lease, or the decision that it is not granted."""
        if request.is_nothing and not self.has_to_look(request.job):
            return self._grant(request, draft, (), observer)
        found = self.decide_and_ring(request, observer)
        gpus = found.verdict.grants.get(request.job)
        return found if gpus is None else self._grant(request, draft, gpus, observer)

    def _grant(
        self, request: Request, draft: Lease, gpus: tuple[str, ...], observer: GpuObserver
    ) -> HeldLease:
        lease = lease_of(request, draft, gpus, observer)
        created = entries.create(self.directory.leases, lease.job, statefile.encode(lease))
        return HeldLease(self, lease, *created)

    def unlisted(self) -> tuple[int, int]:
        """A file for a lease that the broker may grant. A process that inherits it will hold that lease."""
        return entries.unlisted(self.directory.leases)

    def note_granted(self, lease: Lease, files: tuple[int, int]) -> HeldLease:
        """Write a lease that the broker has granted, for readers of this ledger. ``files``: :meth:`unlisted`.

        Nothing is decided: with a broker, this ledger only records its user's leases. So if it is full, which
        any user can bring about, the lease is only kept in memory.
        """
        data = statefile.encode(lease)
        try:
            with self.locked():
                entries.list_as(self.directory.leases, lease.job, files[1], data)
        except StateError as error:
            self.warn(f"the broker's lease of {lease.job} is not in your own records: {error}")
        held = HeldLease(self, lease, *files)
        held.is_record = True
        held.postponed.append(self.sweep)
        return held

    def sweep(self) -> None:
        """Remove dead owners' files. Without decisions in this ledger, no other call does."""
        with self.locked():
            if self.has_to_look(os.urandom(1).hex()):
                self.leases()

    def convert(self, name: str, held: tuple[int, int], lease: Lease) -> HeldLease:
        """Turn the ticket of that name into the lease: the same file, with another name. Raises StateError.

        ``held`` is the ticket's result from :func:`slicer.ledger.entries.create`. So a process that inherited
        the ticket holds the lease. The next ticket is rung only when the job has started, because its look
        would slow the start down. If we die before that, it notices our death.
        """
        folder = self.directory.tickets
        self.write(held[1], lease)
        faults.point("ledger-converting")
        entries.remove(self.directory.bells, lease.job)  # no bell without its ticket, whenever we are killed
        faults.point("ledger-bell-unlinked")
        with failing(f"{folder.path}/{name}", "cannot become a lease"):
            folder.rename(name, self.directory.leases, lease.job)
        faults.point("ledger-converted")
        found = HeldLease(self, lease, *held)
        found.postponed.append(lambda: self.wake_next(name))
        return found

    def _refuse_deadlock(self, ticket: Ticket, found: Book) -> None:
        from slicer.placement.forecast import deadlocked  # only nested requests look so far ahead
        from slicer.placement.order import rank_of

        stuck = deadlocked(ticket, sorted([*self.live_tickets(), ticket], key=rank_of), found)
        if stuck:
            raise DeadlockError(
                f"would wait for ever: {', '.join(stuck)} has what is missing, and waits for this job",
                hint="ask for everything in the outer job",
            )

    def _queue(self, own: Request) -> tuple[Request, ...]:
        """All requests in their order, including ``own``, whether it has a ticket or not."""
        from slicer.placement.order import rank_of

        queue = [request for _, request in self.requests()]
        if tickets.name_of(own) not in self._parsed:
            queue.append(own)
            queue.sort(key=rank_of)
        return tuple(queue)


def measured(policy: Policy) -> Policy:
    """The policy, with how the machine stalls now."""
    if policy.pressure is None:
        return policy
    from slicer.placement.pressure import stall

    return replace(policy, stall=stall(policy.pressure, text_of(on_host(policy.pressure.path))))


def lease_of(
    request: Request, draft: Lease, gpus: tuple[str, ...], observer: GpuObserver, *, forced: bool = False
) -> Lease:
    """The lease for a request that is granted these GPUs, which ``observer`` has listed."""
    return replace(
        draft, gpus=gpus, gpu_indices=observer.indices(gpus), vram_mib=request.vram_mib,
        slots=request.slots, priority=request.priority, forced=int(forced), since_s=now_s(),
    )  # fmt: skip


def _feasible_devices(
    request: Request, leases: tuple[Lease, ...], observer: GpuObserver
) -> tuple[Device, ...] | None:
    """The GPUs as last seen. Raises InfeasibleError if they can never serve ``request``."""
    from slicer.placement import decision

    devices = observer.devices(leases)
    never = decision.infeasible(request, devices)
    if never is not None:
        from slicer.placement.refusal import refusal

        raise refusal(never, request)
    return devices


def decide_alone(request: Request, observer: GpuObserver) -> Book:
    """As :meth:`Ledger.decide`, if there is no ledger yet."""
    from slicer.placement.decision import Book

    devices = _feasible_devices(request, (), observer)
    return Book((request,), devices, (), measured(observer.policy), now_s())
