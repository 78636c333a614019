"""One door for all calls: who may ask for what, and what they are told."""

from __future__ import annotations

from slicer.broker.protocol import messages
from slicer.broker.rules import views
from slicer.broker.server import requests
from slicer.broker.server.looking import Looking
from slicer.broker.server.refusal import Refusal, refusal_of
from slicer.broker.server.rows import Rows
from slicer.broker.server.scoping import own
from slicer.errors import SlicerError
from slicer.kernel import cgroup, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.server.connections import Call
    from slicer.broker.server.deciding import Decider
    from slicer.broker.server.queueing import Queueing
    from slicer.broker.server.register import Register
    from slicer.broker.server.rulebook import Rulebook
    from slicer.broker.server.scoping import Scoping


# What the administrator's files decide about: with bad ones it is not done.
_GIVEN = (messages.Acquire, messages.Start, messages.Preview, messages.Set)


class Service:
    """Serves calls. What cannot be served is refused with a reason."""

    def __init__(
        self, register: Register, decider: Decider, rulebook: Rulebook, queueing: Queueing, scoping: Scoping
    ) -> None:
        self._register = register
        self._decider = decider
        self._rulebook = rulebook
        self._queueing = queueing
        self._rows = Rows(views.lease), Rows(views.ticket)
        self._serves: dict[type, Callable[[Call], None]] = {
            messages.Acquire: queueing.acquire,
            messages.Start: scoping.start,
            messages.Release: self._release,
            messages.Finished: self._finished,
            messages.Preview: self._preview,
            messages.Status: self._status,
            messages.Look: Looking(register, decider).look,
            messages.Usage: self._usage,
            messages.Stop: scoping.stop,
            messages.Freeze: scoping.freeze,
            messages.Thaw: scoping.thaw,
            messages.Set: scoping.set,
        }

    def call(self, call: Call) -> None:
        """Serve one call, or refuse it."""
        if self._rulebook.refresh():
            self._queueing.unsettle()
        trouble = self._rulebook.trouble
        try:
            if trouble is not None and isinstance(call.message, _GIVEN):
                raise Refusal("Broken", trouble.message, where=trouble.where, hint=trouble.hint)
            self._serves[type(call.message)](call)
        except Refusal as refusal:
            call.connection.fail(refusal)
        except SlicerError as error:
            call.connection.fail(refusal_of(error))

    def _release(self, call: Call) -> None:
        job, uid = call.message.job, call.connection.peer.uid
        waiter = self._register.waiters.get(job)
        if waiter is not None and waiter.ticket.uid == uid:
            self._queueing.dismiss(waiter, Refusal("NoSuchJob", "it has left the queue"))
        else:
            self._register.release(own(self._register, job, uid))
        call.connection.send(messages.Done())

    def _finished(self, call: Call) -> None:
        told = call.message
        holding = own(self._register, told.job, call.connection.peer.uid)
        self._register.book.finish(told)
        holding.told = told
        if holding.lease.cgroup:
            holding.usage = cgroup.usage(cgroup.path_of(holding.lease.cgroup))
        call.connection.send(messages.Done())

    def _preview(self, call: Call) -> None:
        asked, caller = requests.as_acquire(call.message), self._queueing.caller(call)
        inside = self._register.inside_of(caller.pid, caller.uid)
        ticket = requests.ticket_of(
            asked, caller, self._queueing.choice(asked, inside), inside, self._rulebook.slots,
            self._rulebook.priority(asked, caller, inside), proc.now_s(),
        )  # fmt: skip
        self._decider.check_feasible(ticket)
        self._rulebook.check(ticket, caller.gids, self._decider.devices_seen())
        found = self._decider.decide(ticket)
        if ticket.gpus and found.devices is None and self._decider.no_gpus is not None:
            raise self._decider.no_gpus
        gpus = found.grants.get(ticket.job)
        if gpus is not None:
            call.connection.send(messages.Previewed(gpus, None, ""))
            return
        reasons = self._queueing.reasons(found)
        busy = views.busy(reasons.busy(ticket), caller.uid)
        call.connection.send(messages.Previewed((), busy, self._rulebook.why(ticket, found)))

    def _usage(self, call: Call) -> None:
        holdings = self._register.holdings.values()
        call.connection.send(self._rulebook.usage(call.message, call.connection.peer.uid, holdings))

    def _status(self, call: Call) -> None:
        viewer = call.connection.peer.uid
        leases = sorted(self._register.leases, key=lambda lease: lease.since_s)
        found = self._decider.decide(is_fresh=False, sees_gpus=any(lease.gpus for lease in leases))
        users, groups = self._rulebook.standings(found, self._register.holdings.values())
        why = {ticket.job: self._rulebook.why(ticket, found) for ticket in found.everybody}
        leases_shown, tickets_shown = self._rows
        call.connection.send(
            messages.Standing(
                leases=leases_shown.of(leases, viewer),
                tickets=tickets_shown.of(found.everybody, viewer),
                held_back={job: text for job, text in why.items() if text},
                users=users,
                groups=groups,
                slot_limits=dict(self._rulebook.slots),
            )
        )
