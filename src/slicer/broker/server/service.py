"""The entry point for all calls: who may make which, and the answers."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Any

from slicer.broker.protocol import messages, wire
from slicer.broker.protocol.wire import Encoded
from slicer.broker.rules import order, services, views
from slicer.broker.server import policy_file, requests
from slicer.broker.server.connections import ReceivedCall
from slicer.broker.server.deciding import Decider
from slicer.broker.server.leases import Leases
from slicer.broker.server.looking import Looking
from slicer.broker.server.policy_state import PolicyState
from slicer.broker.server.queueing import Queueing
from slicer.broker.server.requests import Refusal
from slicer.broker.server.scoping import Scoping, own
from slicer.errors import GoneError, NotAllowedError, SlicerError
from slicer.kernel import cgroup, proc
from slicer.model import Lease, Ticket
from slicer.record import record

_ASK = "ask the administrator to set it; --backend plain stays in the service, beside all other leases"
# These calls depend on the administrator's files: with invalid ones they are refused.
_GIVEN = (messages.Acquire, messages.Start, messages.Detach, messages.Preview, messages.Set)
_OF_KEEPERS = (messages.Start, messages.Detach)


class Service:
    """Serves calls. It refuses the others with a reason."""

    def __init__(
        self, leases: Leases, decider: Decider, policy: PolicyState, queueing: Queueing, scoping: Scoping,
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._leases = leases
        self._decider = decider
        self._policy_state = policy
        self._queueing = queueing
        self._log = log
        self._rows = Rows(views.lease), Rows(views.ticket)
        self._serves: dict[type, Callable[[ReceivedCall], None]] = {
            messages.Acquire: queueing.acquire,
            messages.Start: scoping.start,
            messages.Detach: scoping.detach,
            messages.Release: self._release,
            messages.Finished: self._finished,
            messages.Sampled: self._sampled,
            messages.Preview: self._preview,
            messages.Status: self._status,
            messages.Look: Looking(leases, decider).look,
            messages.Usage: self._usage,
            messages.Recent: self._recent,
            messages.Stop: scoping.stop,
            messages.Freeze: scoping.freeze,
            messages.Thaw: scoping.thaw,
            messages.Set: scoping.set,
            messages.Reserve: self._reserve,
            messages.Unreserve: self._unreserve,
            messages.SetService: self._set_service,
        }

    def call(self, call: ReceivedCall) -> None:
        if self._policy_state.refresh():
            self._queueing.unsettle()
        trouble = self._policy_state.trouble
        try:
            if trouble is not None and isinstance(call.message, _GIVEN):
                raise Refusal("Broken", trouble.message, where=trouble.where, hint=trouble.hint)
            self._check_place(call)
            self._serves[type(call.message)](call)
        except SlicerError as error:
            call.connection.fail(error)

    def _check_place(self, call: ReceivedCall) -> None:
        """Refuse a scope to a system service: the job would leave its sandbox and limits."""
        asked, peer = call.message, call.connection.peer
        wants_scope = isinstance(asked, messages.Acquire) and asked.binding == "scope"
        if not peer.uid or self._policy_state.policy.allow_services:
            return
        if not wants_scope and not isinstance(asked, _OF_KEEPERS):
            return
        pids = (peer.pid, asked.keeper) if isinstance(asked, _OF_KEEPERS) else (peer.pid,)
        if unit := next(filter(None, map(services.service_of, map(cgroup.of, pids))), ""):
            message = f"{unit} is a system service, and a job would be outside of its sandbox and its limits"
            raise NotAllowedError(message, where=f"{policy_file.PATH}: allow_services", hint=_ASK)
        if proc.has_ended(peer.pidfd):  # a child could ask in its place, and its origin would be unknown
            raise NotAllowedError(f"process {peer.pid}, which has connected, has ended")

    def _release(self, call: ReceivedCall) -> None:
        job, uid = call.message.job, call.connection.peer.uid
        waiter = self._leases.waiters.get(job)
        if waiter is not None and waiter.ticket.uid == uid:
            self._queueing.dismiss(waiter, GoneError("it has left the queue"))
        else:
            self._leases.release(own(self._leases, job, uid))
        call.connection.send(messages.Done())

    def _finished(self, call: ReceivedCall) -> None:
        told = call.message
        holding = own(self._leases, told.job, call.connection.peer.uid)
        self._leases.files.finish(told)
        holding.told = told
        if holding.lease.cgroup:
            holding.usage = cgroup.usage(cgroup.path_of(holding.lease.cgroup))
        call.connection.send(messages.Done())

    def _sampled(self, call: ReceivedCall) -> None:
        told, uid = call.message, call.connection.peer.uid
        holding = self._leases.holdings.get(told.job)
        lease = holding.lease if holding is not None and holding.lease.uid == uid else None
        self._policy_state.accounts.note_series(uid, told.job, lease, binascii.a2b_base64(told.series))
        call.connection.send(messages.Done())

    def _preview(self, call: ReceivedCall) -> None:
        caller = self._queueing.caller(call)
        ticket = self._queueing.ticket_of(requests.as_acquire(call.message), caller)
        self._decider.check_feasible(ticket)
        self._policy_state.check(ticket, caller.gids, self._decider.devices_seen())
        found = self._decider.decide(ticket)
        if ticket.gpus and found.book.devices is None and self._decider.no_gpus is not None:
            raise self._decider.no_gpus
        gpus = found.book.verdict.grants.get(ticket.job)
        busy = found.told(ticket) if gpus is None else None
        call.connection.send(messages.Previewed(gpus or (), busy, busy.why if busy else ""))

    def _reserve(self, call: ReceivedCall) -> None:
        devices = self._decider.decide(sees_gpus=True).book.devices or ()
        made = self._policy_state.reserved(
            call.message, self._queueing.caller(call), self._decider.gpus(), self._leases.listed, devices
        )
        self._log(f"<5>uid {call.connection.peer.uid}: reservation {made.id} for uid {made.uid}")
        self._queueing.unsettle()
        call.connection.send(messages.Reserved(made))

    def _unreserve(self, call: ReceivedCall) -> None:
        uid, asked = call.connection.peer.uid, call.message.id
        found = next((each for each in self._policy_state.reservations.now() if each.id == asked), None)
        if found is None:
            raise GoneError(f"there is no reservation {asked}")
        if uid not in (0, found.uid):
            raise NotAllowedError(f"reservation {asked} is another user's")
        self._policy_state.reservations.remove(found)
        self._log(f"<5>uid {uid}: reservation {found.id} for uid {found.uid} was removed")
        self._queueing.unsettle()
        call.connection.send(messages.Done())

    def _set_service(self, call: ReceivedCall) -> None:
        uid, asked = call.connection.peer.uid, call.message
        self._policy_state.set_service(asked, uid, self._decider.gpus)
        how = f"taken out of service: {asked.why}" if asked.is_out else "put back into service"
        self._log(f"<5>uid {uid}: GPU {', '.join(asked.gpu_choice)} {how}")
        self._queueing.unsettle()
        call.connection.send(messages.Done())

    def _usage(self, call: ReceivedCall) -> None:
        holdings = self._leases.holdings.values()
        call.connection.send(self._policy_state.usage(call.message, call.connection.peer.uid, holdings))

    def _recent(self, call: ReceivedCall) -> None:
        call.connection.send(self._policy_state.recent(call.message, call.connection.peer.uid))

    def _status(self, call: ReceivedCall) -> None:
        viewer = call.connection.peer.uid
        leases = sorted(self._leases.listed, key=lambda lease: lease.since_s)
        found = self._decider.decide(is_fresh=False, sees_gpus=any(lease.gpus for lease in leases))
        users, groups = self._policy_state.standings(
            found.everybody, found.shares, self._leases.holdings.values()
        )
        why = {ticket.job: found.why(ticket) for ticket in found.everybody}
        leases_shown, tickets_shown = self._rows
        rows: list[tuple[Lease | Ticket, Any]] = [
            *zip(leases, leases_shown.of(leases, viewer), strict=True),
            *zip(found.everybody, tickets_shown.of(found.everybody, viewer), strict=True),
        ]
        sizes = [
            (each.uid, (len(row) if row.isascii() else len(row.encode())) + len(why.get(each.job, "")))
            for each, row in rows
        ]
        told = list(compress(rows, fitting(sizes, viewer)))
        call.connection.send(
            messages.Standing(
                leases=tuple(row for each, row in told if isinstance(each, Lease)),
                tickets=tuple(row for each, row in told if isinstance(each, Ticket)),
                held_back={each.job: why[each.job] for each, _ in told if why.get(each.job)},
                users=users,
                groups=groups,
                slot_limits=dict(self._policy_state.configuration.slots),
                reservations=self._policy_state.reservations.now(),
                out_of_service=self._policy_state.reservations.out_of_service,
                suspects=tuple(sorted(self._policy_state.placement.suspects)),
                left_out=len(rows) - len(told),
            )
        )


MOST_BYTES = 2 << 20  # of all rows together: half of a user's unread output
_ROOM = 64  # rows of former entries, before they are removed


@record
class _Row:
    entry: Lease | Ticket
    made: dict[str, Encoded]  # by the kind of viewer: "root", the "owner", "others"


def fitting(found: Sequence[tuple[int, int]], viewer: int, most: int = MOST_BYTES) -> list[bool]:
    """Which rows, given by uid and length, fit in: the viewer's own, then one of each user in turn."""
    own = [index for index, (uid, _) in enumerate(found) if uid == viewer]
    others = [index for index, (uid, _) in enumerate(found) if uid != viewer]
    is_told = [False] * len(found)
    full: set[int] = set()  # users with a row that was too long
    for index in (*own, *order.interleaved(others, lambda index: found[index][0])):
        uid, size = found[index]
        if size > most or uid in full:
            full.add(uid)
            continue
        most -= size
        is_told[index] = True
    return is_told


class Rows:
    """The encoded rows of one kind of entry."""

    def __init__(self, view: Callable[[Any, int], Any]) -> None:
        """``view``: the entry as a user may see it. It may distinguish root, the owner and others."""
        self._view = view
        self._rows: dict[str, _Row] = {}

    def of(self, entries: Collection[Any], viewer: int) -> tuple[Any, ...]:
        """The rows of these entries as a user may see them, encoded."""
        found = tuple(self._row(entry, viewer) for entry in entries)
        if len(self._rows) > len(entries) + _ROOM:
            there = {entry.job for entry in entries}
            self._rows = {job: row for job, row in self._rows.items() if job in there}
        return found

    def _row(self, entry: Any, viewer: int) -> Encoded:
        row = self._rows.get(entry.job)
        if row is None or row.entry is not entry:  # a change creates a new record
            row = self._rows[entry.job] = _Row(entry, {})
        who = "root" if viewer == 0 else "owner" if viewer == entry.uid else "others"
        if who not in row.made:
            row.made[who] = wire.encoded(self._view(entry, viewer))
        return row.made[who]
