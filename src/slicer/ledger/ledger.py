"""All leases and tickets of this machine, on disk, and the one lock that guards the decision.

A lease and a ticket are one file each (:mod:`slicer.ledger.entries`), flocked by their owner for as long as
they count. A lease also counts while the scope that it names is populated, whatever became of its file
descriptors. Everything is read and changed under the ledger's lock; nobody sleeps while holding it.

Whoever comes by decides for all that it can see, with the same pure function over the same files: it takes
what it is granted itself, and rings the bell of every other ticket that could go. A grant is not written
down anywhere; who is rung decides again for itself. So nothing of a decision can be lost with its maker.
"""

from __future__ import annotations

import os
import time

from slicer import faults
from slicer.errors import BusyError, DeadlockError, LedgerGone, StateError
from slicer.ledger import entries, tickets
from slicer.ledger.files import LedgerFiles, lives_on
from slicer.ledger.lock import Locked
from slicer.model import Lease, Ticket
from slicer.placement import decision
from slicer.record import record, replace
from slicer.state import statefile
from slicer.state.statedir import StateDir, open_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.gpu.observer import GpuObserver
    from slicer.ledger.plain_lock import PlainLock
    from slicer.ledger.waiting import Waiting
    from slicer.model import Busy, Request
    from slicer.placement.decision import Device, Policy, Verdict


def now_s() -> float:
    """Seconds since boot, suspended time included: the ledger's only clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@record
class Snapshot:
    """The live leases and the tickets in their order."""

    leases: tuple[Lease, ...]
    tickets: tuple[Ticket, ...]


@record
class Judgement:
    """What one look at the ledger gave: the decision for all, and what it was made from."""

    verdict: Verdict
    queue: tuple[Request, ...]
    leases: tuple[Lease, ...]
    devices: tuple[Device, ...] | None
    policy: Policy

    def why_not(self, request: Request) -> Busy:
        """What stands in the way of a request that was not granted."""
        return decision.explain(request, self.queue, self.devices, self.leases, self.policy, now_s())

    def answer(self, request: Request) -> tuple[str, ...] | Busy:
        """The GPUs that the request was granted, or what stands in its way."""
        gpus = self.verdict.grants.get(request.job)
        return self.why_not(request) if gpus is None else gpus


class HeldLease:
    """A lease of ours: the flocked file that proves it. ``fd`` may be handed on to the job, which can only
    read it.

    Without a file (``fd`` -1) it stands for what the jobs around us hold already. ``writer`` is the file
    opened to be written; -1: it is opened here.
    """

    def __init__(self, ledger: Ledger, lease: Lease, fd: int = -1, writer: int = -1) -> None:
        self._ledger = ledger
        self.lease = lease
        self.fd = fd
        self._writer = writer
        if fd >= 0 and writer < 0:
            try:
                self._writer = entries.open_writer(ledger.directory.leases, lease.job)
            except StateError:
                pass  # the ledger was removed under us: no reason not to run; who writes to it is told
        self.is_handed_on = False  # to a job that runs: others hold it too, and may go on when we leave
        self.is_outlived = False  # the job lives on without us: its end frees the lease, not ours
        self.beside: PlainLock | None = None  # held along with it, for scripts that know only that
        self.put_off: list[Callable[[], None]] = []  # what can wait until the command runs
        self.put_off_long: list[Callable[[], None]] = []  # what is slow, and can wait for a quiet moment

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What proves that it is held: to be inherited by the job."""
        own = (self.fd,) if self.fd >= 0 else ()
        return own if self.beside is None else (*own, self.beside.fd)

    @property
    def private(self) -> tuple[int, ...]:
        """What nobody else may inherit, to be closed in a forked child that is no holder."""
        return (self._writer,) if self._writer >= 0 else ()

    def update(self, **changes: Any) -> None:
        """Record what became known after the grant (the cgroup, the pid). Raises StateError."""
        self.lease = replace(self.lease, **changes)
        if self.fd < 0:
            return
        if self._writer < 0:
            raise StateError("is gone", where=f"{self._ledger.directory.leases.path}/{self.lease.job}")
        with self._ledger.locked():
            faults.point("ledger-updating")
            self._ledger.write(self._writer, self.lease)

    def note_peaks(self, peaks_mib: tuple[int, ...]) -> None:
        """Record the most that the job was seen to use of its GPUs, where that is news. Raises StateError."""
        if self.fd >= 0 and self.lease.vram_peak_mib != peaks_mib:
            self.update(vram_peak_mib=peaks_mib)

    def forget(self) -> None:
        """Somebody else who holds it gives it back: only close what is ours. Safe to repeat."""
        self.catch_up()
        self._close()
        if self.beside is not None:
            self.beside.release()
        self.clean_up()

    def _close(self) -> None:
        for fd in (self.fd, self._writer):
            if fd >= 0:
                os.close(fd)
        self.fd = self._writer = -1

    def catch_up(self) -> None:
        """Do what was put off until the command runs. Safe to repeat."""
        while self.put_off:
            self.put_off.pop(0)()

    def clean_up(self) -> None:
        """Do what was put off for longer. Safe to repeat."""
        while self.put_off_long:
            self.put_off_long.pop(0)()

    def release(self) -> None:
        """Give the resources back, or only let go when the job outlives us. Safe to repeat.

        From the moment that the job has its order until the last of it is known to have ended
        (:attr:`is_handed_on`), the lease goes only where really nobody holds it any more. Raises StateError.
        """
        self.catch_up()
        if self.fd < 0:
            return
        if self.beside is not None:
            self.beside.release()
        try:
            with self._ledger.locked():
                self._give_back()
            self._ledger.nudge()
        except LedgerGone:  # and so there is nothing to give back
            self._close()
        self.clean_up()

    def _give_back(self) -> None:
        faults.point("ledger-releasing")
        self._ledger.tidy()
        if self.is_handed_on and not self.is_outlived:
            self.is_outlived = self._has_others()
        if not self.is_outlived:
            self._ledger.drop_lease(self.lease.job)
        faults.point("ledger-unlinked")
        self._close()
        faults.point("ledger-closed")

    def alert(self) -> None:
        """Some time after :meth:`release`: see to it that somebody has taken notice."""
        self._ledger.alert()

    def find_out(self) -> bool:
        """Whether others hold the lease too: a process of the job, or (its scope) the job as a whole.

        Raises StateError.
        """
        if self.fd >= 0 and not self.is_outlived:
            with self._ledger.locked():
                self.is_outlived = self._has_others()
        return self.is_outlived

    def _has_others(self) -> bool:
        """Under the ledger's lock. We let go for it, and hold on again where nobody else does."""
        folder = self._ledger.directory.leases
        try:
            again = folder.open(self.lease.job, os.O_RDONLY)
        except FileNotFoundError:
            return False  # somebody took it off the ledger: there is nothing left to be held
        except OSError as error:
            where = f"{folder.path}/{self.lease.job}"
            raise StateError(f"cannot be read: {error.strerror}", where=where) from error
        os.close(self.fd)
        self.fd = again
        return not entries.take(again) or lives_on(self.lease)


class Ledger(LedgerFiles):
    """The ledger in one state directory. Instances are cheap and hold only the lock file's descriptor."""

    def __init__(self, directory: StateDir, warn: Callable[[str], None]) -> None:
        super().__init__(directory, warn)
        # The signal mask while asleep (None: as it is), so that a caller who holds signals back can still be
        # interrupted there, and only there.
        self.mask: frozenset[int] | None = None
        self.patience_s: float | None = None  # how long to wait for who is deciding; None: for ever
        self._lock_fd = open_lock(directory.base)

    def close(self) -> None:
        """Give up the descriptors, for callers who live on."""
        os.close(self._lock_fd)
        self.directory.close()

    def descriptors(self) -> tuple[int, ...]:
        """What is kept open."""
        return (self._lock_fd, *self.directory.descriptors())

    def after_fork(self) -> None:
        """In a child: a flock belongs to what was opened, and so to both. Raises StateError."""
        os.close(self._lock_fd)
        self._lock_fd = open_lock(self.directory.base)

    def write(self, writer: int, lease: Lease) -> None:
        """Write a lease's file anew. Under the lock. Raises StateError."""
        entries.write(self.spare(lease.job), writer, statefile.encode(lease))

    def locked(self) -> Locked:
        path = f"{self.directory.path}/lock"
        return Locked(self._lock_fd, path, self.mask, self.patience_s, self._warn)

    # -- for everybody -----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The ledger as of now. Dead owners' files are removed on the way."""
        with self.locked():
            return Snapshot(self.leases(), tuple(self.live_tickets()))

    def acquire(self, request: Request, draft: Lease, view: GpuObserver) -> HeldLease | Busy:
        """Grant the request now or say what stands in its way.

        ``draft`` is the lease to be written, still without its GPUs. Raises InfeasibleError when waiting
        could never help.
        """
        view.look()
        with self.locked():
            found = self.attempt(request, view)
            gpus = found.verdict.grants.get(request.job)
            if gpus is None:
                return found.why_not(request)
            return self._grant(request, draft, gpus)

    def acquire_or_queue(self, ticket: Ticket, draft: Lease, view: GpuObserver) -> HeldLease | Waiting:
        """As :meth:`acquire`, but take a ticket in the same breath when it has to wait.

        Raises DeadlockError when it would wait for jobs that wait for it.
        """
        request = tickets.request_of(ticket)
        view.look()
        with self.locked():
            found = self.attempt(request, view)
            gpus = found.verdict.grants.get(request.job)
            if gpus is not None:
                return self._grant(request, draft, gpus)
            busy = found.why_not(request)
            if ticket.inside:
                self._refuse_deadlock(ticket, found)
            name = tickets.name_of(ticket)
            held = entries.create(self.directory.tickets, name, statefile.encode(ticket))
            try:
                bell = tickets.make_bell(self.directory.bells, ticket.job)
            except StateError:
                entries.remove(self.directory.tickets, name)
                for fd in held:
                    os.close(fd)
                raise
            from slicer.ledger.waiting import Waiting  # not for those who need not wait

            return Waiting(self, ticket, draft, view, held, bell, busy)

    def foresee(self, request: Request, view: GpuObserver) -> tuple[str, ...] | Busy:
        """The GPUs that ``request`` would be granted now, or what stands in its way."""
        with self.locked():
            return self.judge(request, view).answer(request)

    def bury(self, job: str, descriptors: tuple[int, ...]) -> None:
        """Take a dead process's job, which never began, off the ledger: perhaps nobody else comes by.

        ``descriptors`` are ours of its ticket or its lease.
        """
        try:
            with self.locked():
                self.drop_lease(job)
                for fd in descriptors:
                    os.close(fd)
                self.tidy()
            self.nudge()
        except LedgerGone:
            return

    # -- under the lock ----------------------------------------------------------------------------------

    def attempt(self, request: Request, view: GpuObserver) -> Judgement:
        """Decide for all, and ring whoever but ``request`` could go."""
        found = self.judge(request, view)
        faults.point("ledger-judged")
        for job in found.verdict.grants:
            if job != request.job:
                self.ring(job)
                faults.point("ledger-rung")
        return found

    def judge(self, request: Request, view: GpuObserver) -> Judgement:
        """Who could go now. Raises InfeasibleError when ``request`` never can."""
        leases = self.leases()
        devices = _feasible_devices(request, leases, view)
        stopped: set[str] = set()
        while True:
            queue = tuple(each for each in self._queue(request) if each.job not in stopped)
            verdict = decision.decide(queue, devices, leases, view.policy, now_s())
            others = {job for job in (*verdict.grants, *verdict.reserving) if job != request.job}
            names = self.names_by_job() if others else {}
            dead = {job for job in others if not self.is_waiting(names[job])}
            for job in dead:
                self.discard(names[job], job)
            idle = {job for job in others - dead if self.is_idle(names[job])}
            if not dead and not idle:
                return Judgement(verdict, queue, leases, devices, view.policy)
            stopped |= idle

    def _grant(self, request: Request, draft: Lease, gpus: tuple[str, ...]) -> HeldLease:
        lease = lease_of(request, draft, gpus)
        created = entries.create(self.directory.leases, lease.job, statefile.encode(lease))
        return HeldLease(self, lease, *created)

    def convert(self, name: str, held: tuple[int, int], lease: Lease) -> HeldLease:
        """Make the ticket of that name the lease: the same file, under another name.

        ``held``: what :func:`slicer.ledger.entries.create` gave for the ticket.

        So whoever inherited the ticket has inherited the lease. Who comes next is woken when the job has
        started, for it would be busy in its way; should we die before that, it will see us die. Raises
        StateError.
        """
        folder = self.directory.tickets
        self.write(held[1], lease)
        faults.point("ledger-converting")
        entries.remove(self.directory.bells, lease.job)  # no bell without its ticket, wherever we are killed
        faults.point("ledger-bell-unlinked")
        try:
            folder.rename(name, self.directory.leases, lease.job)
        except OSError as error:
            where = f"{folder.path}/{name}"
            raise StateError(f"cannot become a lease: {error.strerror}", where=where) from error
        faults.point("ledger-converted")
        found = HeldLease(self, lease, *held)
        found.put_off.append(lambda: self.wake_next(name))
        return found

    def _refuse_deadlock(self, ticket: Ticket, found: Judgement) -> None:
        stuck = decision.deadlocked(
            tickets.request_of(ticket), ticket.inside, self.live_tickets(), found.devices, found.leases,
            found.policy, now_s(),
        )  # fmt: skip
        if stuck:
            raise DeadlockError(
                f"would wait for ever: {', '.join(stuck)} has what is missing, and waits for us",
                hint="ask for everything in the outer job",
            )

    def _queue(self, own: Request) -> tuple[Request, ...]:
        """All requests in their order, ``own`` among them, whether it has a ticket or not."""
        queue = [request for _, request in self.requests()]
        if tickets.name_of(own) not in self._parsed:
            queue.append(own)
            queue.sort(key=_order)
        return tuple(queue)


def _order(request: Request | Ticket) -> tuple[int, float, str]:
    return -request.priority, request.arrived_s, request.job


def lease_of(request: Request, draft: Lease, gpus: tuple[str, ...], *, forced: bool = False) -> Lease:
    """The lease for a request that is granted these GPUs."""
    return replace(
        draft, gpus=gpus, vram_mib=request.vram_mib, cpu_slots=request.cpu_slots,
        priority=request.priority, forced=int(forced), since_s=now_s(),
    )  # fmt: skip


def _feasible_devices(
    request: Request, leases: tuple[Lease, ...], view: GpuObserver
) -> tuple[Device, ...] | None:
    """The GPUs as last looked at. Raises InfeasibleError when they can never serve ``request``."""
    devices = view.devices(leases)
    never = decision.infeasible(request, devices)
    if never is not None:
        from slicer.placement.refusal import refusal

        raise refusal(never, request)
    return devices


def judge_alone(request: Request, view: GpuObserver) -> Judgement:
    """As :meth:`Ledger.judge` where there is no ledger yet."""
    devices = _feasible_devices(request, (), view)
    verdict = decision.decide((request,), devices, (), view.policy, now_s())
    return Judgement(verdict, (request,), (), devices, view.policy)


def raise_if_busy(found: HeldLease | Busy) -> HeldLease:
    """For callers who do not wait: the lease, or BusyError."""
    if isinstance(found, HeldLease):
        return found
    raise BusyError(found)
