"""Requests: how they come, wait and are granted.

The user of a process comes from the kernel (:mod:`.peers`), never from the message. Nothing here waits. All
requests of one turn of the loop are decided on together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from slicer.broker.protocol import messages
from slicer.broker.protocol.messages import MOST_BYTES, Acquire
from slicer.broker.rules import order
from slicer.broker.server import requests
from slicer.broker.server.cleanup import Overtime
from slicer.broker.server.connections import CallerConnection, ReceivedCall
from slicer.broker.server.deciding import AGAIN_S, Decided, Decider
from slicer.broker.server.lease_files import Claim
from slicer.broker.server.leases import Leases, Waiter
from slicer.broker.server.loop import Due, Loop
from slicer.broker.server.peers import parent_of
from slicer.broker.server.policy_state import PolicyState
from slicer.broker.server.requests import Caller, Refusal
from slicer.errors import BusyError, DeadlockError, NotAllowedError, SlicerError, StateError, TooManyError
from slicer.kernel import proc
from slicer.ledger.leasing import gpus_named
from slicer.ledger.nesting import OuterJobs
from slicer.model import Lease, Ticket, lease_from
from slicer.record import replace

SETTLES_S = 2.0  # after a start: how long requests with broken connections may take to come back first
RETURNS_S = 30.0  # a request that is not back by then loses its place
_MOST_EACH = 1024  # leases of one user, and tickets: each takes a few KiB of memory
_MOST_TEXT_EACH = 1 << 20  # characters in all of these together
_TELLS_S = 1.0  # between two rounds of updates for waiting requests
_FIRST_S = 0.02  # after a grant: a job that has just begun comes before the scope of the next one
_TELLING_S = 0.01  # of CPU time, for new requests and for a round of updates; the rest comes later
_FINENESS_S = 10.0  # of an expected start: a smaller change is not reported


class Queueing:
    """The requests of all users. Call :meth:`settle` whenever :attr:`is_unsettled`."""

    def __init__(
        self, leases: Leases, decider: Decider, policy_state: PolicyState, overtime: Overtime, on: Loop,
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._leases = leases
        self._decider = decider
        self._policy_state = policy_state
        self._overtime = overtime
        self._loop = on
        self._log = log
        self.is_unsettled = True
        self._came: list[Waiter] = []  # since the last decision
        self._again: Due | None = None
        self._again_in_s = 0.0  # as it was asked for
        self._news: Due | None = None
        self._first: Due | None = None
        self._had_news: set[str] = set()  # jobs of users that have others still to be updated
        absent = list(leases.waiters.values())
        self._waits_for_absent = bool(absent)
        if absent:
            on.after(SETTLES_S, self._settle_without_absent)
        for waiter in absent:
            self._expect_back(waiter)

    # -- coming and going --------------------------------------------------------------------------------

    def gone(self, connection: CallerConnection) -> None:
        """A waiting connection has ended. Its process may reconnect for as long as it lives."""
        waiter: Waiter | None = connection.waiter
        if waiter is None or self._leases.waiters.get(waiter.ticket.job) is not waiter:
            return
        if waiter.unbind(connection):
            self._expect_back(waiter)
            self.is_unsettled = True

    def _expect_back(self, waiter: Waiter) -> None:
        waiter.absence = self._loop.after(RETURNS_S, lambda: self._leases.leave(waiter))

    def _settle_without_absent(self) -> None:
        self._waits_for_absent = False
        self.is_unsettled = True

    def unsettle(self) -> None:
        self.is_unsettled = True

    def dismiss(self, waiter: Waiter, error: SlicerError) -> None:
        connection = waiter.connection
        self._leases.leave(waiter)
        if connection is not None:
            connection.fail(error)

    # -- asking for a lease ------------------------------------------------------------------------------

    def acquire(self, call: ReceivedCall) -> None:
        """Take a request. :meth:`settle` answers it."""
        asked, caller = call.message, self._user(call)
        known = self._leases.holdings.get(asked.job)
        if known is not None:
            if not _is_same(known.lease, caller) or known.claim.held or known.is_starting:
                raise Refusal("JobExists", f"there is a job {asked.job} already")
            call.connection.send(known.granted())  # its connection broke before the grant arrived
            return
        waiter = self._leases.waiters.get(asked.job)
        if waiter is None:
            waiter = self._new_waiter(asked, caller, call.connection)
        elif not _is_same(waiter.ticket, caller):
            raise Refusal("JobExists", f"there is a job {asked.job} already")
        elif waiter.connection is not None:
            waiter.connection.close()
        self._take_up(waiter, call)

    def _take_up(self, waiter: Waiter, call: ReceivedCall) -> None:
        asked = call.message
        waiter.asked, waiter.told = asked, None
        waiter.bind(call.connection)
        waiter.waits = asked.wait and call.connection.more
        ticket = waiter.ticket
        pidfd = proc.open_process(ticket.pid, ticket.pid_start) if asked.for_parent else None
        self._leases.watch_waiter(waiter, os.dup(call.connection.peer.pidfd) if pidfd is None else pidfd)
        for due in (waiter.absence, waiter.patience):
            if due is not None:
                due.cancel()
        if asked.max_wait_s is not None and waiter.waits:
            end_s = waiter.ticket.arrived_s + asked.max_wait_s
            waiter.patience = self._loop.when(end_s, lambda: self._lose_patience(waiter))
        self._came.append(waiter)
        self.is_unsettled = True

    def _new_waiter(self, asked: Acquire, caller: Caller, connection: CallerConnection) -> Waiter:
        own = [each for each in self._leases.waiters.values() if each.ticket.uid == caller.uid]
        self._check_room(asked, caller, own)
        if asked.runs_anyway and asked.gpus:
            raise NotAllowedError("only a job without GPUs may run while nothing is free")
        self._leases.check_inside(asked.inside, caller.uid)
        ticket, moved = order.put_ahead(
            self.ticket_of(asked, caller), asked.ahead_of, [each.ticket for each in own],
            self._policy_state.configuration.slots,
        )  # fmt: skip
        self._decider.check_feasible(ticket)
        self._policy_state.check(ticket, caller.gids, self._decider.devices_seen())
        self._leases.move(moved)
        waiter = Waiter(ticket, asked, connection)
        waiter.gids = caller.gids
        self._leases.waiters[asked.job] = waiter
        return waiter

    def _check_room(self, asked: Acquire, caller: Caller, own: list[Waiter]) -> None:
        problem = self._policy_state.too_many_waiting(caller, len(own)) if asked.wait else ""
        if problem:
            raise TooManyError(problem, hint="wait until one of them has been served")
        held = [each for each in self._leases.holdings.values() if each.lease.uid == caller.uid]
        if max(len(held), len(own)) >= _MOST_EACH:
            raise TooManyError(f"you have {max(len(held), len(own))} jobs, the most for one user")
        if len(held) + len(own) < _MOST_TEXT_EACH // MOST_BYTES:
            return  # these cannot have that much text
        text = sum(_text_in(each.lease) for each in held) + sum(_text_in(each.ticket) for each in own)
        if text > _MOST_TEXT_EACH:
            raise TooManyError("the names and commands of your jobs are too long", hint="shorten them")

    def ticket_of(self, asked: Acquire, caller: Caller) -> Ticket:
        """The ticket of a new request. Raises UsageError, GpuError."""
        inside = self._leases.inside_of(caller.pid, caller.uid)
        ticket = requests.ticket_of(
            asked, caller, self._choice(asked, inside), inside, self._policy_state.configuration.slots,
            self._policy_state.priority(asked, caller), proc.now_s(),
        )  # fmt: skip
        return self._policy_state.accounts.runs.estimated(ticket, asked.limit_s)

    def _choice(self, asked: Acquire, inside: tuple[Lease, ...]) -> tuple[str, ...]:
        """The GPUs that the request names, less those of its outer jobs. Raises UsageError, GpuError."""
        if not asked.gpus or not asked.gpu_choice:
            return ()
        held = OuterJobs(inside, False).gpus_for(asked.vram_mib)
        named = gpus_named(asked.gpu_choice, self._decider.gpus())
        return tuple(uuid for uuid in named if uuid not in held)

    def caller(self, call: ReceivedCall) -> Caller:
        peer = call.connection.peer
        gids = self._policy_state.groups(peer.uid, peer.gids)
        return requests.Caller(peer.pid, peer.start, peer.uid, gids, self._policy_state.boot_id)

    def _user(self, call: ReceivedCall) -> Caller:
        """The process that the lease is for: the caller, or its parent, if that is wholly the same user's."""
        caller = self.caller(call)
        if not call.message.for_parent or call.message.binding != "process":
            return caller
        found = parent_of(caller.pid, caller.uid)
        return caller if found is None else replace(caller, pid=found[0], start=found[1])

    # -- deciding ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decide, grant what is free, and tell new requests why they wait."""
        self.is_unsettled = False
        if self._waits_for_absent:
            if any(each.connection is None for each in self._leases.waiters.values()):
                return  # those that are back wait a moment for the others
            self._waits_for_absent = False
        came, self._came = self._came, []
        if not self._leases.waiters:
            return  # a lease has ended, and nobody waits for it
        found = self._decider.decide()
        self._grant_all(found)
        left = [each for each in came if self._is_waiting(each)]
        if left and found.book.verdict.grants:
            found = self._decider.decide(is_fresh=False)  # to include what was just granted
        self._came += self._answer_new(left, found)
        self.is_unsettled = bool(self._came)
        if found.again_s is not None:
            self.look_again(found.again_s)
        if found.book.queue and self._news is None:
            self._news = self._loop.after(_TELLS_S, self._tell_news)
        if found.book.verdict.grants and self._first is None:
            self._first = self._loop.after(_FIRST_S, self._tell_first)

    def _grant_all(self, found: Decided) -> None:
        for job, gpus in found.book.verdict.grants.items():
            waiter = self._leases.waiters.get(job)
            if waiter is None or waiter.connection is None:
                continue  # it left while others were answered
            try:
                self._grant(waiter, gpus, is_forced=False)
            except StateError as error:
                self._log(f"<4>nothing can be granted: {error}")
                self.look_again()
                return
            except Refusal as refusal:
                self.dismiss(waiter, refusal)

    def _grant(self, waiter: Waiter, gpus: tuple[str, ...], *, is_forced: bool) -> None:
        ticket, asked, process, connection = waiter.ticket, waiter.asked, waiter.process, waiter.connection
        assert asked is not None
        assert process is not None
        assert connection is not None
        self._leases.check_inside(asked.inside, ticket.uid)  # one may have ended while it waited
        now_s = proc.now_s()
        indices = self._decider.observer.indices(gpus)
        warn_s, end_s = self._policy_state.idle_limits(ticket.uid, waiter.gids) if gpus else (None, None)
        lease = lease_from(
            ticket, gpus, now_s, gpu_indices=indices, forced=int(is_forced), idle_warn_s=warn_s,
            idle_end_s=end_s, **self._policy_state.way_of(ticket, asked),
        )  # fmt: skip
        claim = Claim(
            ticket.job, ticket.command, asked.binding, 0, max(0.0, now_s - ticket.arrived_s),
            waiter.gids, asked.inside, "",
            *self._policy_state.measure(gpus, ticket.vram_mib, self._decider.devices_seen()),
        )  # fmt: skip
        holding = self._leases.add(lease, claim, process)
        waiter.process = None  # ownership was passed on
        self._leases.leave(waiter)
        self._overtime.expect(holding)
        self._log(f"<6>uid {lease.uid}: {lease.job} has {_words(lease)} (pid {lease.pid})")
        connection.send(holding.granted())

    def _answer_new(self, came: list[Waiter], found: Decided) -> list[Waiter]:
        """Tell each new request that got nothing why; drop those that will not wait.

        Returns those for which there was no time. Each user's first request comes before anybody's second.
        """
        end_s = time.process_time() + _TELLING_S
        waiting = order.interleaved(came, lambda each: each.ticket.uid)
        for done, waiter in enumerate(waiting):
            if done and time.process_time() > end_s:
                return waiting[done:]
            self._answer(waiter, found)
        return []

    def _answer(self, waiter: Waiter, found: Decided) -> None:
        if self._is_waiting(waiter):  # otherwise it left while others were answered
            try:
                if waiter.ticket.gpus and found.book.devices is None and self._decider.no_gpus is not None:
                    raise self._decider.no_gpus
                if gpus := self._decider.adopted(waiter.ticket, waiter.asked):
                    self._grant(waiter, gpus, is_forced=False)
                    return
                if not waiter.waits:
                    raise BusyError(found.told(waiter.ticket))
                if waiter.ticket.inside and (stuck := self._decider.deadlocked(waiter.ticket, found)):
                    holders = ", ".join(stuck)
                    raise DeadlockError(
                        f"would wait for ever: {holders} has what is missing, and waits for this job",
                        hint="ask for it in the outer job, or run this one outside of it",
                    )
                self._leases.write_ticket(waiter)
            except SlicerError as error:
                self.dismiss(waiter, error)
            else:
                self._tell(waiter, found)

    def _is_waiting(self, waiter: Waiter) -> bool:
        return self._leases.waiters.get(waiter.ticket.job) is waiter and waiter.connection is not None

    def _tell(self, waiter: Waiter, found: Decided) -> None:
        """Tell a waiting request why it waits, unless it knows."""
        if waiter.connection is None:
            return
        job, busy = waiter.ticket.job, found.told(waiter.ticket)
        starts_in_s = found.starts_in_s.get(job)
        starts_s = None if starts_in_s is None else round((proc.now_s() + starts_in_s) / _FINENESS_S)
        if waiter.told != (busy, starts_s):
            waiter.told = busy, starts_s
            waiter.connection.send(messages.Waiting(job, busy, starts_in_s, busy.why), continues=True)

    def _tell_news(self) -> None:
        """Tell waiting requests what has changed: one of each user in turn, until the time is up.

        The next round continues with each user's next request.
        """
        self._news = None
        found = self._decider.decide(is_fresh=False)
        end_s = time.process_time() + _TELLING_S
        waiting = [self._leases.waiters.get(ticket.job) for ticket in found.book.queue]
        there = [each for each in waiting if each is not None]
        told = {each.ticket.job for each in there} & self._had_news
        left = [each for each in there if each.ticket.job not in told]
        for done, waiter in enumerate(order.interleaved(left, lambda each: each.ticket.uid)):
            if done and time.process_time() > end_s:
                self._news = self._loop.after(_TELLS_S, self._tell_news)
                break
            self._tell(waiter, found)
            told.add(waiter.ticket.job)
        unheard = {each.ticket.uid for each in left if each.ticket.job not in told}
        self._had_news = {each.ticket.job for each in there if each.ticket.uid in unheard} & told

    def _tell_first(self) -> None:
        """Tell the first in line that it is, for its scope to be started before its turn."""
        self._first = None
        found = self._decider.decide(is_fresh=False)
        for ticket in found.book.queue[:1]:
            waiter = self._leases.waiters.get(ticket.job)
            if waiter is not None and waiter.asked is not None and waiter.asked.binding == "scope":
                self._tell(waiter, found)

    def look_again(self, in_s: float = AGAIN_S) -> None:
        """Decide again then, because no event will come."""
        if self._again is not None and in_s < self._again_in_s:
            self._again.cancel()
            self._again = None
        if self._again is None:
            self._again, self._again_in_s = self._loop.after(in_s, self._look), in_s

    def _look(self) -> None:
        self._again = None
        self.is_unsettled = True

    def _lose_patience(self, waiter: Waiter) -> None:
        waiter.patience = None
        if waiter.connection is None or waiter.asked is None:
            return
        found = self._decider.decide(is_fresh=False)
        balance = self._policy_state.allowance().balance(self._leases.listed, None)
        may_run = not waiter.ticket.gpus and balance.within(waiter.ticket) is not None
        if waiter.asked.runs_anyway and may_run:
            try:
                self._grant(waiter, (), is_forced=True)
            except SlicerError as error:
                self.dismiss(waiter, error)
        else:
            self.dismiss(waiter, BusyError(found.told(waiter.ticket)))
        self.is_unsettled = True


def _words(lease: Lease) -> str:
    gpus = ", ".join(map(str, lease.gpu_indices or lease.gpus))
    size = f"{lease.vram_mib} MiB of " if gpus and lease.vram_mib is not None else ""
    found = [f"{size}GPU {gpus}"] if gpus else []
    found += [f"{count} x slot {name}" for name, count in sorted(lease.slots.items())]
    return " and ".join(found) or "nothing to hold"


def _text_in(entry: Lease | Ticket) -> int:
    return len(entry.name) + len(entry.command) + len(entry.profile) + sum(map(len, entry.slots))


def _is_same(entry: Lease | Ticket, caller: Caller) -> bool:
    """Whether the process is the one that requested it."""
    return (entry.uid, entry.pid, entry.pid_start) == (caller.uid, caller.pid, caller.start)
