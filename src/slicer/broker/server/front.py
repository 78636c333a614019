"""The front of the queue: whose turn is near has its scope started, and the grant is only a word.

Such a scope has all that the job's scope has, and a fence that opens no GPU. At the grant systemd is told of
the job's GPUs, and only then the job. It is an ordinary user's right to have processes in such a scope: a
request for nothing gives one, too. But nobody may come into it out of a job that holds GPUs, nor leave it for
another job.
"""

from __future__ import annotations

from slicer import faults
from slicer.broker.protocol import messages
from slicer.broker.rules import turns
from slicer.broker.server import keepers
from slicer.broker.server.book import Claim, EarlyScope
from slicer.broker.server.early import Early
from slicer.broker.server.refusal import Refusal, refusal_of
from slicer.broker.server.register import Holding
from slicer.broker.server.requests import draft_of
from slicer.broker.server.wishes import NO_CAP_ASKED
from slicer.errors import BackendError, SlicerError
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.protocol.messages import Start
    from slicer.broker.server.connections import Call, Connection
    from slicer.broker.server.decided import Decided
    from slicer.broker.server.loop import Due, Loop
    from slicer.broker.server.register import Register, Waiter
    from slicer.broker.server.rulebook import Rulebook
    from slicer.broker.server.scopes import Scopes
    from slicer.broker.server.wishes import Wish, Wishes
    from slicer.model import Property

# The kernel moves a process between cgroups under a lock that every fork needs. So the next in line starts
# its scope a moment after the one before it was granted. At once, it delays that one's command by 2 ms; 10 ms
# later, it comes too late for who waits behind short jobs.
PAUSE_S = 0.002
_MOST_EACH = 4  # scopes of one user before their leases; those that are being stopped count
_LOOKED_AT = 64  # of the queue, from its front
_COUNTS = "a time limit counts from the scope's start"
_LEAVES_S = 5.0  # how long a keeper whose ticket has gone has to leave by itself


class Front:
    """All scopes that stand before their leases."""

    def __init__(
        self, register: Register, scopes: Scopes, wishes: Wishes, rulebook: Rulebook, on: Loop,
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._register = register
        self._scopes = scopes
        self._wishes = wishes
        self._rulebook = rulebook
        self._loop = on
        self._log = log
        self._found: Decided | None = None  # the last decision, if somebody may be near its turn by it
        self._offer_due: Due | None = None
        self._ending: dict[str, int] = {}  # the uids of scopes that are being stopped, by job
        for record in register.early_scopes:
            self._take_over(record)

    def _take_over(self, record: EarlyScope) -> None:
        """See what became of a scope that an earlier broker asked for."""
        holding = self._register.holdings.get(record.job)
        waiter = self._register.waiters.get(record.job)
        early = Early(record)
        if holding is not None:
            holding.early = early
        elif waiter is not None:
            waiter.may_start = True
            self._stand(waiter, early)
        else:
            self._see_off(early)

    @property
    def is_busy(self) -> bool:
        """Whether something is not done."""
        return bool(self._ending)

    # -- who may -----------------------------------------------------------------------------------------

    def offer_soon(self, found: Decided) -> None:
        """Tell those whose turn is near, by this decision, in a moment."""
        self._found = found
        if found.queue and self._offer_due is None:
            self._offer_due = self._loop.after(PAUSE_S, self._offer)

    def _offer(self) -> None:
        self._offer_due = None
        found, self._found = self._found, None
        if found is None:
            return
        balance = self._rulebook.allowance().balance(found.leases, found.devices)
        waiting = [each for each in found.queue[:_LOOKED_AT] if each.job in self._register.waiters]
        for ticket in turns.nearest(waiting, lambda each: balance.within(each) is None):
            waiter = self._register.waiters[ticket.job]
            if not waiter.may_start and waiter.news is not None and self._may(waiter):
                waiter.may_start = True
                waiter.news = replace(waiter.news, may_start=True)
                if waiter.connection is not None:
                    waiter.connection.send(waiter.news, continues=True)

    def _may(self, waiter: Waiter) -> bool:
        ticket, asked = waiter.ticket, waiter.asked
        if asked is None or asked.binding != "scope" or ticket.inside or self._has_limit(waiter):
            return False
        uids = [each.ticket.uid for each in self._register.waiters.values() if each.may_start]
        return [*uids, *self._ending.values()].count(ticket.uid) < _MOST_EACH

    def _has_limit(self, waiter: Waiter) -> bool:
        """Whether the policy ends the job after a time, which systemd counts from the scope's start."""
        uid = waiter.ticket.uid
        return self._rulebook.caps(uid, self._rulebook.groups(uid, waiter.gids)).max_hold_s is not None

    # -- starting ----------------------------------------------------------------------------------------

    def start(self, call: Call, waiter: Waiter) -> None:
        """Put the keeper into the scope of a ticket. Raises Refusal, SlicerError."""
        asked, job = call.message, waiter.ticket.job
        if not waiter.may_start or job in self._ending:
            raise Refusal("NotAllowed", f"the turn of {job} is not near", hint="wait for the lease")
        if self._has_limit(waiter):
            raise Refusal("NotAllowed", _COUNTS, hint="wait for the lease")
        with keepers.opened(call) as pidfd:
            if waiter.early is not None:
                self._tell_again(waiter.early, asked, waiter, call.connection)
            else:
                self._start(asked, waiter, pidfd, call.connection)

    def _start(self, asked: Start, waiter: Waiter, pidfd: int, connection: Connection) -> None:
        pid = asked.keeper
        wish = self._wishes.of(asked, self._draft(waiter, asked))
        self._check(asked, waiter, pid, wish.words)
        if wish.has_fence and waiter.ticket.gpus and not self._wishes.knows_nodes():
            raise Refusal("NotAllowed", "the fence around its GPUs cannot be set later")
        spec = keepers.scope_of(asked, waiter.ticket.uid, wish.properties)
        record = EarlyScope(
            asked.job, waiter.ticket.uid, pid, self._scopes.cgroup_for(spec), asked.slice, asked.fence,
            asked.devices, int(wish.has_fence),
        )  # fmt: skip
        self._register.book.add_early(record)
        faults.point("broker-early-noted")
        early = waiter.early = Early(record, connection)
        early.told = _told(early, wish)
        self._scopes.start(spec, record.uid, pidfd, lambda answer: self._started(early, answer))
        faults.point("broker-early-asked")

    def _draft(self, waiter: Waiter, asked: Start) -> Holding:
        """The lease to come, without its GPUs."""
        lease = draft_of(waiter.ticket, (), (), waiter.ticket.arrived_s)
        return Holding(lease, Claim(asked.job, "", "scope", 0, 0.0, waiter.gids, (), asked.slice, 0.0, 0))

    def _check(self, asked: Start, waiter: Waiter, pid: int, words: tuple[str, ...]) -> None:
        problem = ""
        if "RuntimeMaxSec" in words:
            problem = _COUNTS
        elif asked.share_cap or any("," in each for each in asked.devices):
            problem = "what the job asks for of its GPUs is set up once it has them"
        elif self._register.inside_of(pid, waiter.ticket.uid):
            problem = "its keeper is in the scope of another job"
        if problem:
            raise Refusal("NotAllowed", problem, hint="wait for the lease")
        keepers.check_free(self._register, asked.job, pid)

    def _tell_again(
        self, early: Early, asked: Start, waiter: Waiter, connection: Connection
    ) -> None:
        """The caller's connection broke before it heard. Raises Refusal for another keeper."""
        if early.record.keeper != asked.keeper:
            raise Refusal("JobExists", f"{asked.job} has its scope already")
        if early.told is None:  # an earlier broker asked
            early.told = _told(early, self._wishes.of(asked, self._draft(waiter, asked)))
        early.connection = connection
        if not early.is_starting:
            _tell_started(early)

    def _started(self, early: Early, answer: str | BackendError) -> None:
        faults.point("broker-early-started")
        early.is_starting = False
        job = early.record.job
        holding, waiter = self._register.holdings.get(job), self._register.waiters.get(job)
        if holding is not None and holding.early is not early:
            holding = None
        if waiter is not None and waiter.early is not early:
            waiter = None
        if isinstance(answer, BackendError):
            self._log(f"<4>uid {early.record.uid}: {early.unit} was not started: {answer}")
            _fail(early.connection, answer)
            self._give_up(early, holding, waiter)
        elif holding is not None:  # it was granted meanwhile
            holding.is_starting = False
            _tell_started(early)
            is_populated = self._register.start_watching(holding)
            self._register.note_held(holding)
            if not is_populated:
                self._register.look_again(holding)  # its keeper has ended meanwhile
            self._open(holding, early)
        elif waiter is not None:
            _tell_started(early)
            self._stand(waiter, early)
        else:
            _fail(early.connection, Refusal("NoSuchJob", "it has left the queue"))
            self._see_off(early)

    def _stand(self, waiter: Waiter, early: Early) -> None:
        """The scope stands for the ticket, for as long as somebody is in it."""
        waiter.early = early
        if not early.watch(self._loop, lambda: self._emptied(waiter)):
            self._emptied(waiter)

    def _emptied(self, waiter: Waiter) -> None:
        """Its keeper has ended. The ticket still counts, and may have another."""
        if waiter.early is not None:
            waiter.early.close()
            waiter.early = None
            self._register.book.drop_early(waiter.ticket.job)

    def _give_up(self, early: Early, holding: Holding | None, waiter: Waiter | None) -> None:
        """It was not started, and is being stopped. The lease, if there is one, is still its caller's."""
        job = early.record.job
        self._ending.pop(job, None)
        if waiter is not None:
            waiter.early = None
        if holding is not None:
            holding.is_starting, holding.early = False, None
        try:
            self._register.book.drop_early(job)
            if holding is not None:
                self._register.rewrite(holding, replace(holding.lease, keeper=0, unit="", cgroup=""))
        except SlicerError as error:
            self._log(f"<4>{job}: {error}")
        if holding is not None:
            self._tell_granted(holding, early)
            self._register.look_again(holding)

    # -- granting ----------------------------------------------------------------------------------------

    def standing(self, waiter: Waiter) -> Early | None:
        """The scope of a ticket that is granted now, or about to stand; None: there is none."""
        early = waiter.early
        if early is not None and not early.is_starting and not early.is_populated():
            self._emptied(waiter)
        return waiter.early

    def grant(self, holding: Holding, connection: Connection) -> None:
        """The lease is written down: open its GPUs to the scope, and tell its owner. Safe to repeat."""
        early = holding.early
        assert early is not None
        early.granted = connection
        early.close()
        if early.is_starting:
            holding.is_starting = True  # it is told as soon as the scope stands
        elif holding.claim.held:
            if not self._register.start_watching(holding):
                self._register.look_again(holding)  # its keeper has just ended
            self._open(holding, early)
        else:  # the broker was killed before it stood: its owner starts it again, or it has none
            self._loop.after(_LEAVES_S, lambda: self._give_up_late(holding, early))

    def stands(self, holding: Holding) -> None:
        """The scope of a lease was started after all, which was begun before its lease."""
        if holding.early is not None:
            self._open(holding, holding.early)

    def _give_up_late(self, holding: Holding, early: Early) -> None:
        if holding.early is early and not holding.claim.held and not holding.is_starting:
            self._give_up(early, holding, None)

    def _open(self, holding: Holding, early: Early) -> None:
        properties: tuple[Property, ...] = ()
        if early.record.has_fence and holding.lease.gpus:
            try:
                properties = self._wishes.fence(early.record, holding)
            except SlicerError as error:
                self._fail(holding, early, error)
                return
        if not properties:
            self._tell_granted(holding, early)
            return
        faults.point("broker-early-granted")
        self._scopes.set_properties(early.unit, properties, lambda error: self._opened(holding, early, error))

    def _opened(self, holding: Holding, early: Early, error: BackendError | None) -> None:
        faults.point("broker-early-opened")
        if error is None:
            self._tell_granted(holding, early)
        else:
            self._fail(holding, early, error)

    def _tell_granted(self, holding: Holding, early: Early) -> None:
        connection, early.granted = early.granted, None
        if connection is None:
            return
        if self._register.holdings.get(early.record.job) is not holding:
            connection.fail(Refusal("NoSuchJob", "its scope was stopped while it waited"))
            return
        connection.send(holding.granted())

    def _fail(self, holding: Holding, early: Early, error: SlicerError) -> None:
        self._log(f"<4>uid {early.record.uid}: {early.unit} does not get its GPUs: {error}")
        _fail(early.granted, error)
        early.granted = None
        self.end(holding)

    # -- ending ------------------------------------------------------------------------------------------

    def left(self, waiter: Waiter) -> None:
        """A ticket is off the queue, and has no lease: its scope goes, too."""
        early, waiter.early = waiter.early, None
        if early is None:
            return
        if early.is_starting:  # it is seen off as soon as it stands
            self._ending[early.record.job] = early.record.uid
        else:
            self._see_off(early)

    def _see_off(self, early: Early) -> None:
        """Have a scope end. Its keeper leaves by itself; with --exec the job itself has still to say why.

        Only a scope that somebody stays in is stopped.
        """
        self._ending[early.record.job] = early.record.uid
        if early.watch(self._loop, lambda: self._gone(early)):
            self._loop.after(_LEAVES_S, lambda: self._stop(early))
        else:
            self._gone(early)

    def end(self, holding: Holding) -> None:
        """Have the scope of a lease stopped."""
        self._scopes.stop(holding.lease.unit, lambda _: None)

    def _stop(self, early: Early) -> None:
        if early.is_populated():
            self._scopes.stop(early.unit, lambda error: self._gone(early, error))

    def _gone(self, early: Early, error: BackendError | None = None) -> None:
        early.close()
        job = early.record.job
        self._ending.pop(job, None)
        if error is not None:
            self._log(f"<4>uid {early.record.uid}: {early.unit}: {error}")
        elif job not in self._register.holdings:
            self._register.book.drop_early(job)


def _told(early: Early, wish: Wish) -> messages.StartedScope:
    """What its owner is told of it. The driver caps no scope that has no GPUs yet."""
    return messages.StartedScope(early.unit, early.record.cgroup, wish.words, wish.is_fenced, NO_CAP_ASKED)


def _tell_started(early: Early) -> None:
    """Tell whoever asked that the scope stands."""
    connection, early.connection = early.connection, None
    if connection is not None:
        connection.send(early.told)


def _fail(connection: Connection | None, error: SlicerError | Refusal) -> None:
    if connection is not None:
        connection.fail(error if isinstance(error, Refusal) else refusal_of(error))
