"""From a lease to its scope, and its owner's control of it.

The lease names keeper, unit and cgroup before systemd is asked. So a broker that replaces a killed one finds
what that did. Only once the keeper was seen in the scope does the scope alone hold the lease.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from slicer import faults
from slicer.broker.protocol import messages
from slicer.broker.protocol.messages import Start
from slicer.broker.rules import units
from slicer.broker.server.connections import CallerConnection, ReceivedCall
from slicer.broker.server.lease_files import Claim
from slicer.broker.server.leases import Holding, Leases, Waiter
from slicer.broker.server.limits_asked import LimitsAsked, ScopeLimits, device_rules
from slicer.broker.server.peers import check_keeper
from slicer.broker.server.queueing import Queueing
from slicer.broker.server.requests import Refusal
from slicer.broker.server.scopes import Scopes
from slicer.config.properties import FENCE_DIRECTIVES
from slicer.errors import BackendError, GoneError, SlicerError
from slicer.kernel import cgroup, proc
from slicer.model import Property, ScopeSpec, detached_unit, is_in_job, lease_from, slice_around, unit_name
from slicer.record import replace


class Scoping:
    """Starts scopes and controls them. Each call is answered when systemd has answered."""

    def __init__(
        self, leases: Leases, scopes: Scopes, limits_asked: LimitsAsked, queueing: Queueing,
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._leases = leases
        self._scopes = scopes
        self._limits_asked = limits_asked
        self._queueing = queueing
        self._log = log
        self._asking: dict[str, CallerConnection] = {}  # the connections that await a starting scope, by job
        self._moving: set[int] = set()  # processes on their way into a scope that no lease has

    # -- starting ----------------------------------------------------------------------------------------

    def start(self, call: ReceivedCall) -> None:
        asked, connection = call.message, call.connection
        waiter = self._leases.waiters.get(asked.job)
        if waiter is not None and waiter.ticket.uid == connection.peer.uid:
            self._start_ahead(call, waiter)
            return
        holding = own(self._leases, asked.job, connection.peer.uid)
        if holding.claim.binding != "scope":
            raise Refusal("BadProcess", "this lease is bound to a process: it has no scope")
        with opened_keeper(call) as pidfd:
            self._start(asked, holding, pidfd, connection)

    def _start(self, asked: Start, holding: Holding, pidfd: int, connection: CallerConnection) -> None:
        if self._is_under_way(asked, holding, connection):
            return
        pid, before = asked.keeper, holding.lease
        check_keeper_free(self._leases, self._moving, asked.job, pid)
        self._note_outer(asked, holding, pid)
        limits = self._limits_asked.of(asked, holding)
        spec = scope_of(asked, before.uid, limits.properties)
        there = self._scopes.cgroup_for(spec)
        # Since before its turn, or an earlier broker was killed, perhaps with somebody still to be moved.
        is_there = cgroup.of(pid) == there and not asked.adopts
        is_ahead = is_there and before.keeper != pid
        if is_ahead and self._limits_asked.has_time_limit(asked, before.uid, holding.claim.gids):
            raise Refusal("BadProcess", "its scope was started before it had a time limit")
        whole = os.path.dirname(there) if spec.within else there
        self._leases.rewrite(holding, replace(before, keeper=pid, unit=spec.whole, cgroup=whole))
        faults.point("broker-starting")
        rules = device_rules(limits.properties)
        if is_there and not before.gpus and rules == device_rules(self._limits_asked.of_no_lease()):
            self._note_started(holding, connection, limits)
            return
        self._asking[before.job] = connection

        def done(answer: str | BackendError) -> None:
            self._started(holding, self._asking.pop(before.job), limits, answer)

        holding.is_starting = True
        if is_there:
            self._scopes.set_properties(spec.whole, rules, lambda error: done(error or there))
        else:
            self._scopes.start(spec, before.uid, pidfd, done)
        faults.point("broker-asked")

    def _start_ahead(self, call: ReceivedCall, waiter: Waiter) -> None:
        """Start the scope of a request that waits, so that in its turn the keeper is there.

        No lease names this scope, and none ends with it: no GPU may be opened there, and nothing is written
        down. The request asks for its scope once more when it has its lease.
        """
        asked, ticket = call.message, waiter.ticket
        with opened_keeper(call) as pidfd:
            check_keeper_free(self._leases, self._moving, asked.job, asked.keeper)
            if not self._may_be_ahead(asked, waiter):
                raise GoneError(f"{asked.job} waits, and its scope has to follow its lease")
            claim = Claim(ticket.job, "", "scope", 0, 0.0, waiter.gids, (), asked.slice, 0.0, 0)
            limits = self._limits_asked.of(asked, Holding(lease_from(ticket, (), proc.now_s()), claim))
            others = [each for each in limits.properties if each.name not in FENCE_DIRECTIVES]
            spec = scope_of(asked, ticket.uid, (*others, *self._limits_asked.of_no_lease()))
            there = self._scopes.cgroup_for(spec)
            whole = os.path.dirname(there) if spec.within else there
            told = messages.StartedScope(spec.whole, whole, limits.words, limits.is_fenced, "")
            self._start_without_lease(call, spec, pidfd, told)

    def _start_without_lease(self, call: ReceivedCall, spec: ScopeSpec, pidfd: int, told: object) -> None:
        """Start a scope that no lease has. ``told``: the answer to its caller once it is there."""
        keeper, connection = call.message.keeper, call.connection

        def done(answer: str | BackendError) -> None:
            self._moving.discard(keeper)
            if isinstance(answer, BackendError):
                connection.fail(answer)
            else:
                connection.send(told)

        self._moving.add(keeper)
        self._scopes.start(spec, connection.peer.uid, pidfd, done)

    def _may_be_ahead(self, asked: Start, waiter: Waiter) -> bool:
        """Whether a request's scope may be started before its turn.

        Not with a time limit, which systemd counts from the start, nor with the driver's cap, which needs the
        GPUs. A process that comes out of a job may have its GPUs open, and only a lease accounts for that.
        """
        wish, uid = waiter.asked, waiter.ticket.uid
        if wish is None or wish.binding != "scope" or wish.inside or waiter.ticket.inside or asked.share_cap:
            return False
        is_outside = not self._leases.inside_of(asked.keeper, uid)
        return is_outside and not self._limits_asked.has_time_limit(asked, uid, waiter.gids)

    def _is_under_way(self, asked: Start, holding: Holding, connection: CallerConnection) -> bool:
        """Whether this scope is starting: the caller's connection broke before the answer.

        Raises Refusal if another keeper has the scope.
        """
        is_same = holding.lease.keeper == asked.keeper
        if holding.is_starting and is_same:
            self._asking[holding.lease.job] = connection
            return True
        is_in = is_same and is_in_job(cgroup.of(asked.keeper), holding.lease)
        if not is_in and (holding.claim.held or holding.is_starting):
            raise Refusal("JobExists", f"{holding.lease.job} already has a scope")
        return False

    def _note_outer(self, asked: Start, holding: Holding, pid: int) -> None:
        """Keep the leases around the keeper for as long as this one: it may have their GPUs open."""
        inside = self._leases.inside_of(pid, holding.lease.uid)
        outer = [lease.job for lease in inside if lease.job != holding.lease.job]
        both = tuple(dict.fromkeys((*holding.claim.inside, *outer)))
        claim = replace(holding.claim, slice=asked.slice, inside=both)
        self._leases.files.claim(claim)
        holding.claim = claim

    def _started(
        self, holding: Holding, connection: CallerConnection, limits: ScopeLimits, answer: str | BackendError
    ) -> None:
        faults.point("broker-started")
        holding.is_starting = False
        if isinstance(answer, BackendError):
            self._log(f"<4>uid {holding.lease.uid}: {holding.lease.unit} was not started: {answer}")
            connection.fail(answer)
            self._unstart(holding)
        else:
            self._note_started(holding, connection, limits)

    def _note_started(self, holding: Holding, connection: CallerConnection, limits: ScopeLimits) -> None:
        is_populated = self._leases.watch_scope(holding)
        self._leases.note_held(holding)
        faults.point("broker-held")
        cap = self._limits_asked.driver_cap(holding, limits.has_cap)
        lease = holding.lease
        connection.send(messages.StartedScope(lease.unit, lease.cgroup, limits.words, limits.is_fenced, cap))
        if not is_populated:
            self._leases.look_again(holding)  # its keeper has ended in the meantime

    def _unstart(self, holding: Holding) -> None:
        """Let its owner try again, unless there are processes in the scope that is being stopped."""
        self._leases.look_again(holding)
        if holding.claim.held or holding.lease.job not in self._leases.holdings:
            return
        try:
            self._leases.rewrite(holding, replace(holding.lease, keeper=0, unit="", cgroup=""))
        except SlicerError as error:
            self._log(f"<4>{holding.lease.job}: {error}")

    def detach(self, call: ReceivedCall) -> None:
        """Put a process into a scope that no lease has. It has never been in one that a lease has."""
        asked, uid = call.message, call.connection.peer.uid
        with opened_keeper(call) as pidfd:
            check_keeper_free(self._leases, self._moving, "", asked.keeper)
            if self._leases.inside_of(asked.keeper, uid):
                raise Refusal("BadProcess", "it is in a job, with which it ends")
            fence, unit = self._limits_asked.of_no_lease(), detached_unit(asked.job)
            spec = ScopeSpec(unit, units.slice_of("cpu", uid), asked.description, fence, "system")
            self._start_without_lease(call, spec, pidfd, messages.Done())

    # -- acting on what runs -----------------------------------------------------------------------------

    def stop(self, call: ReceivedCall) -> None:
        """Stop a scope, or take a ticket off the queue."""
        waiter = self._leases.waiters.get(call.message.job)
        if waiter is not None and call.connection.peer.uid in (0, waiter.ticket.uid):
            self._queueing.dismiss(waiter, GoneError("it was taken out of the queue"))
            call.connection.send(messages.Done())
            return
        holding = self._running(call)
        self._scopes.stop(holding.lease.unit, self._answer(call))

    def freeze(self, call: ReceivedCall) -> None:
        self._scopes.freeze(self._running(call).lease.unit, self._answer(call))

    def thaw(self, call: ReceivedCall) -> None:
        lease = self._running(call).lease
        self._scopes.thaw(lease.unit, cgroup.path_of(lease.cgroup), self._answer(call))

    def set(self, call: ReceivedCall) -> None:
        """Change a scope's limits until it ends."""
        holding = self._running(call)
        properties = self._limits_asked.changes(call.message, call.connection.peer.uid)
        self._scopes.set_properties(holding.lease.unit, properties, self._answer(call))

    def _answer(self, call: ReceivedCall) -> Callable[[BackendError | None], None]:
        def done(error: BackendError | None) -> None:
            if error is None:
                call.connection.send(messages.Done())
            else:
                call.connection.fail(error)

        return done

    def _running(self, call: ReceivedCall) -> Holding:
        """The caller's holding with a running scope; root may control all. Raises GoneError."""
        holding = own(self._leases, call.message.job, call.connection.peer.uid, roots_too=True)
        if not holding.claim.held:
            raise GoneError(f"{holding.lease.job} has no scope yet")
        return holding


def own(leases: Leases, job: str, uid: int, *, roots_too: bool = False) -> Holding:
    """The holding of that job, if it is this user's. Raises GoneError, which does not reveal the owner."""
    holding = leases.holdings.get(job)
    if holding is None or (holding.lease.uid != uid and not (roots_too and uid == 0)):
        raise GoneError(f"you have no job {job} here", hint="see slicer status")
    return holding


@contextmanager
def opened_keeper(call: ReceivedCall) -> Iterator[int]:
    """A pidfd of the keeper that a Start names. Raises Refusal unless it belongs wholly to the caller."""
    asked = call.message
    pidfd = proc.open_process(asked.keeper, asked.keeper_start)
    if pidfd is None:
        message = f"there is no process {asked.keeper} that started at {asked.keeper_start}"
        raise Refusal("BadProcess", message, hint="has it ended, or is it in a PID namespace (a container)?")
    try:
        check_keeper(pidfd, call.connection.peer.uid)
        yield pidfd
    finally:
        os.close(pidfd)


def check_keeper_free(leases: Leases, moving: Collection[int], job: str, pid: int) -> None:
    """Refuse a keeper that is on its way into another scope. Raises Refusal.

    It could open a job's GPUs in there, and take them along when it is moved. Once it has arrived, the leases
    say that it came out of that scope. ``moving``: who is on the way into a scope that no lease has.
    """
    starting = (each.lease for each in leases.holdings.values() if each.is_starting)
    if pid in moving or any(lease.keeper == pid and lease.job != job for lease in starting):
        raise Refusal("BadProcess", "the process is on its way into the scope of another job")


def scope_of(asked: Start, uid: int, properties: tuple[Property, ...]) -> ScopeSpec:
    slice_name = units.slice_of("gpu" if asked.slice == "gpu" else "cpu", uid)
    within = slice_around(slice_name, asked.job) if asked.own_slice and asked.slice == "gpu" else ""
    return ScopeSpec(
        unit_name(asked.job), slice_name, asked.description, properties, "system", within=within,
        adopts=asked.adopts,
    )  # fmt: skip
