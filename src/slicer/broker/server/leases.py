"""The leases and tickets in memory, and what keeps each alive.

A lease counts while its scope is populated; before its keeper was seen there, while the process lives that
asked for it. Neither a closed connection nor the broker's exit ends it. It also counts while a job that was
started from within its scope counts, because that job may still use the lease's resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slicer.broker.protocol.messages import Acquire, Finished, Granted
from slicer.broker.rules import views
from slicer.broker.server.connection import CallerConnection
from slicer.broker.server.lease_files import Claim, LeaseFiles
from slicer.broker.server.loop import CgroupWatch, Due, Loop, ProcessWatch, watch_cgroup
from slicer.broker.server.requests import Refusal
from slicer.kernel import cgroup, proc
from slicer.model import Busy, Lease, Ticket, Usage, is_in_job
from slicer.record import replace


class Holding:
    def __init__(self, lease: Lease, claim: Claim) -> None:
        self.lease = lease
        self.claim = claim
        self.told: Finished | None = None  # the client's report
        self.usage: Usage | None = None  # its cgroup's figures at that time
        self.rate = claim.rate  # more once its job was seen to use more than it declared
        self.process: ProcessWatch | None = None
        self.scope: CgroupWatch | None = None
        self.is_starting = False  # systemd is starting its scope
        self.limit: Due | None = None  # when the policy ends it; for a scope, systemd does

    def granted(self) -> Granted:
        return Granted(views.lease(self.lease, self.lease.uid), self.claim.waited_s)

    def close(self) -> None:
        for each in (self.process, self.scope):
            if each is not None:
                each.close()
        if self.limit is not None:
            self.limit.cancel()
        self.process = self.scope = None


class Waiter:
    """A ticket, and the connection that waits for it (None: it broke, and may be restored)."""

    def __init__(self, ticket: Ticket, asked: Acquire | None, connection: CallerConnection | None) -> None:
        self.ticket = ticket
        self.asked = asked  # None: read after a restart, and not requested again yet
        self._connection = connection
        self.gids: tuple[int, ...] = ()
        self.is_written = False
        self.waits = True  # False: an immediate refusal is wanted
        self.told: tuple[Busy, int | None] | None = None  # the relevant parts of the last Waiting
        self.patience: Due | None = None
        self.absence: Due | None = None  # when it loses its place, while it is absent
        self.process: ProcessWatch | None = None

    @property
    def connection(self) -> CallerConnection | None:
        """The connection, unless it is closed, which :meth:`.Queueing.gone` may not have learned yet."""
        found = self._connection
        return found if found is not None and found.is_open else None

    def bind(self, connection: CallerConnection) -> None:
        self._connection = connection
        connection.waiter = self

    def unbind(self, connection: CallerConnection) -> bool:
        """Its connection has ended; False: it has another one by now."""
        if self._connection is not connection:
            return False
        self._connection = None
        return True

    def close(self) -> None:
        for due in (self.patience, self.absence):
            if due is not None:
                due.cancel()
        if self.process is not None:
            self.process.close()
        self.patience = self.absence = self.process = None


class Leases:
    """All holdings and waiters by their jobs. Raises StateError if the files cannot be written."""

    def __init__(
        self, files: LeaseFiles, on: Loop, warn: Callable[[str], None], changed: Callable[[], None],
        ended: Callable[[Holding], None], book_ended: Callable[[], None],
    ) -> None:  # fmt: skip
        """``changed``: a request may be granted now. ``ended``: a lease has ended; ``book_ended`` writes that
        to the accounts.
        """
        self.files = files
        self._loop = on
        self._warn = warn
        self._changed = changed
        self._ended = ended
        self._book_ended = book_ended
        self._over: list[str] = []  # jobs whose leases have ended, but are still in a file
        self.holdings: dict[str, Holding] = {}
        self.waiters: dict[str, Waiter] = {}

    @property
    def listed(self) -> tuple[Lease, ...]:
        return tuple(each.lease for each in self.holdings.values())

    # -- after a start -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Load what an earlier broker wrote. Raises StateError."""
        found = self.files.load()
        boot = proc.boot_id()
        for lease, claim, told in found.leases:
            holding = self.holdings[lease.job] = Holding(lease, claim)
            holding.told = told
        for holding in list(self.holdings.values()):
            if holding.lease.boot_id != boot or not self._take_up(holding):
                self._is_over(holding)
        for ticket in found.tickets:
            pidfd = proc.open_process(ticket.pid, ticket.pid_start) if ticket.boot_id == boot else None
            if pidfd is None:
                self.files.drop_ticket(ticket.job)
                continue
            waiter = self.waiters[ticket.job] = Waiter(ticket, None, None)
            waiter.is_written = True
            self.watch_waiter(waiter, pidfd)

    def _take_up(self, holding: Holding) -> bool:
        """Watch what keeps the lease alive; returns whether anything does."""
        if self._watch_if_populated(holding):
            return True
        lease, is_held = holding.lease, holding.claim.held or holding.lease.backend == "inner"
        pidfd = None if is_held else proc.open_process(lease.pid, lease.pid_start)
        if pidfd is not None:
            holding.process = ProcessWatch(self._loop, pidfd, lambda: self._lost_process(holding))
        return pidfd is not None

    # -- leases ------------------------------------------------------------------------------------------

    def add(self, lease: Lease, claim: Claim, process: ProcessWatch) -> Holding:
        """Add a lease that is granted now. Takes ownership of the watch of the requesting ``process``."""
        if lease.job in self._over:
            self.finish()
        self.files.add(lease, claim)
        holding = self.holdings[lease.job] = Holding(lease, claim)
        process.then(lambda: self._lost_process(holding))
        holding.process = process
        return holding

    def rewrite(self, holding: Holding, lease: Lease) -> None:
        self.files.rewrite(lease)
        holding.lease = lease

    def note_held(self, holding: Holding) -> None:
        """Its keeper is in its scope: from now on only the scope counts.

        If this cannot be written, a restarted broker finds it out by itself while the scope lasts.
        """
        holding.claim = replace(holding.claim, held=1)
        if holding.process is not None:
            holding.process.close()
            holding.process = None
        try:
            self.files.claim(holding.claim)
        except Exception as error:
            self._warn(f"{holding.lease.job}: {error}")

    def watch_scope(self, holding: Holding) -> bool:
        """Watch its scope, in which a process was just seen; False: it is empty again."""
        if holding.scope is None:
            holding.scope = watch_cgroup(self._loop, holding.lease.cgroup, lambda: self._lost_scope(holding))
        return holding.scope is not None

    def _watch_if_populated(self, holding: Holding) -> bool:
        """Watch its scope if it is populated; returns whether it is."""
        is_in = bool(holding.lease.cgroup) and self.watch_scope(holding)
        if is_in and not holding.claim.held:
            self.note_held(holding)
        return is_in

    def _lost_scope(self, holding: Holding) -> None:
        holding.scope = None
        if holding.claim.held:
            self.look_again(holding)

    def _lost_process(self, holding: Holding) -> None:
        holding.process = None
        self.look_again(holding)

    def look_again(self, holding: Holding) -> None:
        """End the lease if nothing keeps it alive any more.

        A scope may have started unnoticed: its start was given up, or an earlier broker requested it.
        """
        if holding.is_starting or holding.scope is not None:
            return
        if not self._watch_if_populated(holding) and holding.process is None:
            self._is_over(holding)

    def release(self, holding: Holding) -> None:
        """Its owner returns it. A populated scope keeps it."""
        if holding.process is not None:
            holding.process.close()
            holding.process = None
        if self.nested_in(holding) and holding.claim.binding == "process":
            self.rewrite(holding, replace(holding.lease, backend="inner"))  # its process holds it no longer
        self.look_again(holding)

    def _is_over(self, holding: Holding) -> None:
        job = holding.lease.job
        if self.nested_in(holding):
            return  # jobs inside it go on
        self.holdings.pop(job, None)
        holding.close()
        self._ended(holding)
        self._over.append(job)
        if not holding.claim.held:
            self.finish()  # its process may live on, and a restarted broker would take it for a holder
        for outer in holding.claim.inside:  # they may have lasted only for this one
            around = self.holdings.get(outer)
            if around is not None:
                self.look_again(around)
        self._changed()

    def finish(self) -> None:
        """Write the end of leases. This need not be awaited: an empty scope shows it, too."""
        if self._over:
            self._book_ended()
            for job in self._over:
                self.files.drop(job)
            self._over.clear()

    def inside_of(self, pid: int, uid: int) -> tuple[Lease, ...]:
        """The user's leases in whose scopes a process runs, outermost first."""
        here = cgroup.of(pid)
        found = (lease for lease in self.listed if lease.uid == uid and is_in_job(here, lease))
        return tuple(sorted(found, key=lambda lease: lease.since_s))

    def check_inside(self, jobs: tuple[str, ...], uid: int) -> None:
        """Refuse a request inside anything but leases of that user without a scope. Raises Refusal.

        They are older than the request, and no scope is inside the request. So no two leases keep each other.
        """
        for job in jobs:
            outer = self.holdings.get(job)
            if outer is None or outer.lease.uid != uid or outer.claim.binding != "process":
                raise Refusal(
                    "BadProcess", f"the lease {job} around this process has ended, or has a scope elsewhere",
                    hint="run slicer inside that job, or without its SLICER_LEASE",
                )  # fmt: skip

    def nested_in(self, holding: Holding) -> list[Holding]:
        """The holdings that keep this one."""
        return [each for each in self.holdings.values() if holding.lease.job in each.claim.inside]

    def with_outer(self, holding: Holding) -> list[Holding]:
        """The holding, and those that last as long, because it was started from within their scopes."""
        found = {holding.lease.job: holding}
        left = list(holding.claim.inside)
        while left:
            job = left.pop()
            outer = self.holdings.get(job)
            if outer is not None and job not in found:
                found[job] = outer
                left += outer.claim.inside
        return list(found.values())

    # -- tickets -----------------------------------------------------------------------------------------

    def watch_waiter(self, waiter: Waiter, pidfd: int) -> None:
        """Remove the ticket when its process exits. Takes ownership of ``pidfd``."""
        if waiter.process is not None:
            waiter.process.close()
        waiter.process = ProcessWatch(self._loop, pidfd, lambda: self.leave(waiter))

    def write_ticket(self, waiter: Waiter) -> None:
        if not waiter.is_written:
            self.files.add_ticket(waiter.ticket)
            waiter.is_written = True

    def move(self, tickets: Iterable[Ticket]) -> None:
        """Change the places of waiting requests. Raises StateError."""
        for ticket in tickets:
            waiter = self.waiters[ticket.job]
            if waiter.is_written:
                self.files.add_ticket(ticket)
            waiter.ticket = ticket

    def leave(self, waiter: Waiter) -> None:
        job = waiter.ticket.job
        waiter.close()
        if self.waiters.get(job) is waiter:
            del self.waiters[job]
            if waiter.is_written:
                self.files.drop_ticket(job)
            self._changed()
