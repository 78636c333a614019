"""From a job's needs to the broker's lease: the request, the wait, and the user's own ledger.

A connection is a ticket. If it breaks because the broker was killed or replaced, the same request is sent
again over a new connection and regains its place. It is tried for as long as the broker is switched on. A
grant is written into the user's own ledger, where nothing is decided then, so that every reader of that
ledger finds the job.
"""

from __future__ import annotations

import os
import time

from slicer import faults
from slicer.broker.client.calls import ask
from slicer.broker.client.connection import ANSWER_S, AWAY_S, HINT, Connection, Lost
from slicer.broker.protocol.messages import Acquire, Granted, Preview, Release, Waiting
from slicer.errors import BackendError, BrokerError, BusyError, GoneError, RequestCancelled, SlicerError
from slicer.kernel.sleep import soonest, until_readable
from slicer.model import PREEMPTIBLE
from slicer.record import fields_for, replace
from slicer.state import BROKER
from slicer.state.statefile import SECONDS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from slicer.broker.protocol.messages import Binding, Previewed
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.leasing import PreparedRequest
    from slicer.ledger.ledger import Ledger
    from slicer.ledger.waiting import ReachesFront
    from slicer.model import Busy

_BACK_S = 30.0  # after this time without the broker, a waiting request says so
_PAUSES_S = (0.05, 2.0)  # between these attempts: the first pause and the longest
_GIVE_BACK_S = 2.0  # how long to wait for the confirmation that a lease was taken back


def acquire_of(
    prepared: PreparedRequest, binding: Binding, inside: tuple[str, ...] = ()
) -> Acquire:
    needs, draft, ticket = prepared.needs, prepared.draft, prepared.ticket
    program = draft.command.partition(" ")[0].rpartition("/")[2]  # others may read no more of a command
    said = {
        **fields_for(Acquire, needs), **fields_for(Acquire, ticket), "name": draft.name or program,
        "gpu_choice": needs.gpu_choice if needs.gpus else (), "priority": needs.priority,
        "inside": inside,
    }  # fmt: skip
    if needs.priority == PREEMPTIBLE:  # the policy has the last word on how long "never" is
        least_s = SECONDS_MAX if draft.min_run_s is None else draft.min_run_s
        said |= {"min_run_s": least_s, "stop_s": draft.stop_s}
    runs_anyway, for_parent = needs.runs_anyway and not needs.gpus, draft.pid != ticket.pid
    return Acquire(
        **said, binding=binding, ahead_of=prepared.ahead_of, runs_anyway=runs_anyway,
        for_parent=for_parent,
    )  # fmt: skip


class Asking:
    """One request to the broker, from the call to the lease: :class:`slicer.ledger.leasing.Waits`."""

    def __init__(
        self, path: str, prepared: PreparedRequest, ledger: Ledger, binding: Binding,
        take_connection: Callable[[Connection], None] | None,
    ) -> None:  # fmt: skip
        self.ticket = prepared.ticket
        self.busy: Busy | None = None  # why it waits, once it waits
        self.reaches_front: ReachesFront | None = None
        self.until_s: float | None = None
        self.is_unsettled = False
        self._take_connection = take_connection
        self._path = path
        self._draft = prepared.draft
        self._call = acquire_of(prepared, binding, tuple(ledger.joined))
        self._ledger = ledger
        self._connection: Connection | None = None
        self._bell = -1  # wakes this object from another thread
        self._files: tuple[int, int] | None = None  # of the lease, if something has been prepared
        self._guard = -1  # the descriptor from reaches_front
        self._began = time.monotonic()
        # The next three are monotonic times.
        self._answer_by: float | None = None  # a new request fails without an answer by then, another says so
        self._again_at: float | None = None  # when to reconnect
        self._ends_at: float | None = None  # when even a broker that does not answer has let it wait too long
        self._pause_s = _PAUSES_S[0]

    def begin(self, meanwhile: Callable[[], None] | None = None) -> HeldLease | None:
        """Ask for the lease. Returns None if the request has to wait; then ``busy`` is the reason.

        ``meanwhile`` is called once the request has been sent. Raises BrokerError if the broker does not
        answer, or the error that it answers with.
        """
        self._answer_by = time.monotonic() + ANSWER_S
        try:
            self._speak()
        except Lost:  # it was killed at this very moment
            self._disconnected()
        if meanwhile is not None:
            meanwhile()
        while True:
            held = self.look()
            if held is None and self.busy is not None:
                self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if held is not None or self.busy is not None:
                return held
            descriptors, limit_s = self.watched()
            until_readable(descriptors, limit_s, self._ledger.mask)

    def look(self) -> HeldLease | None:
        """Take the broker's messages; returns the lease once it is granted. Raises as :meth:`begin`."""
        self._silence()
        self._allow_for_absence()
        try:
            if self._connection is None:
                self._try_again()
            while self._connection is not None and (reply := self._connection.receive(0.0)) is not None:
                self._answer_by = None
                self._pause_s = _PAUSES_S[0]
                if isinstance(reply.message, Granted):
                    return self._granted(reply.message)
                assert isinstance(reply.message, Waiting)
                said = reply.message
                self.busy = replace(said.busy, why=said.why or said.busy.why)
                if self._call.max_wait_s is not None:
                    self._ends_at = self._began + self._call.max_wait_s + _BACK_S
        except Lost:
            self._disconnected()
        except SlicerError as error:
            raise self._refusal(error) from None
        now = time.monotonic()
        if self._ends_at is not None and now >= self._ends_at:
            raise self._failed(now - self._began)
        if self._answer_by is not None and now >= self._answer_by:
            self._unanswered()
        self.is_unsettled = self._has_reached_front()  # it may have been granted meanwhile
        return None

    def _refusal(self, error: SlicerError) -> SlicerError:
        self._hang_up()
        if isinstance(error, GoneError):
            return RequestCancelled()
        if isinstance(error, BusyError) and self._call.wait:
            return BusyError(error.busy, waited_s=time.monotonic() - self._began)
        return error

    # -- being heard -------------------------------------------------------------------------------------

    def _speak(self) -> None:
        """Connect and send the request. Raises BrokerError."""
        self._again_at = None
        connection = Connection(self._path, self._ledger.mask)
        connection.send(self._call, more=True)
        self._connection = connection

    def _disconnected(self) -> None:
        """The connection broke. The next connection starts the broker again."""
        self._hang_up()
        faults.point("broker-client-lost")
        now = time.monotonic()
        if self._pause_s == _PAUSES_S[0] and self._answer_by is None:  # not a break of many in a row
            self._answer_by = now + _BACK_S
        self._again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])

    def _try_again(self) -> None:
        if self._again_at is None or time.monotonic() < self._again_at:
            return
        try:
            self._speak()
        except BrokerError:
            if self._answer_by is None and not self._is_switched_on():
                raise
            self._disconnected()

    def _unanswered(self) -> None:
        """Give up, or say that this goes on. The connection stays: another one would only fill the queue of a
        broker that stands still."""
        if self.busy is None:
            raise self._failed(ANSWER_S)
        self._answer_by = None
        if self._connection is not None or self._is_switched_on():
            self._ledger.warn(f"the broker has not answered for {_BACK_S:g} s; the job waits on ({HINT})")

    def _failed(self, waited_s: float) -> BrokerError:
        self._hang_up()
        return BrokerError(f"the broker has not answered for {waited_s:.3g} s", where=self._path, hint=HINT)

    def _is_switched_on(self) -> bool:
        from slicer.backend.broker_left import is_switched_on

        return is_switched_on() if self._path == BROKER else os.path.exists(self._path)

    def _allow_for_absence(self) -> None:
        """After a time in which this process did not run, nor perhaps the broker, wait for it once more."""
        now = time.monotonic()
        due = soonest(self._answer_by, self._again_at, self._ends_at)
        if due is not None and now > due + AWAY_S:
            self._answer_by = self._answer_by and max(self._answer_by, now + ANSWER_S)
            self._ends_at = self._ends_at and max(self._ends_at, now + ANSWER_S)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- waiting -----------------------------------------------------------------------------------------

    def why(self) -> Busy:
        assert self.busy is not None
        return self.busy

    def watched(self) -> tuple[list[int], float | None]:
        """The descriptors to wait for, and the longest wait in seconds."""
        descriptors = [fd for fd in (self._bell, self._guard) if fd >= 0]
        if self._connection is not None:
            descriptors.append(self._connection.fileno())
        due = soonest(self._answer_by, self._again_at, self._ends_at)
        return descriptors, None if due is None else max(0.0, due - time.monotonic())

    def woken(self, ready: Collection[int]) -> None:
        """:meth:`look` reads the messages. Raises BackendError if the preparation at the front is lost."""
        if self._guard in ready:
            raise BackendError("its scope was stopped while the job waited", where=self._draft.unit)

    def _has_reached_front(self) -> bool:
        """Have what needs no lease prepared if nobody is ahead any more; whether that was just done."""
        if self.reaches_front is None or self.why().ahead or self._connection is None:
            return False
        prepare, self.reaches_front = self.reaches_front, None
        fd, writer = self._files = self._ledger.unlisted()
        self._guard, known = prepare((fd,), (writer, self._bell, self._connection.fileno()))
        self._draft = replace(self._draft, **known)
        return True

    def interrupt(self) -> None:
        """Make a wait in another thread look again."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def _silence(self) -> None:
        if self._bell >= 0:
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass

    def give_up(self, *, force: bool) -> Busy:
        """Leave, with the reason for the wait. The broker itself forces a lease after ``max_wait_s``."""
        self.leave()
        return self.why()

    def leave(self) -> None:
        """Leave the queue, or return a lease that was granted in the meantime. Safe to repeat."""
        if self._connection is not None or self._again_at is not None:
            self._hang_up()
            self._again_at = None
            give_back(self._path, self._draft.job, self._ledger.warn)
        self.close()

    def close(self) -> None:
        """Close the descriptors. Safe to repeat."""
        self._hang_up()
        for fd in (self._bell, self._guard, *(self._files or ())):
            if fd >= 0:
                os.close(fd)
        self._bell = self._guard = -1
        self._files = None

    # -- the lease ---------------------------------------------------------------------------------------

    def _granted(self, said: Granted) -> HeldLease:
        """Write the lease into the user's own ledger."""
        faults.point("broker-client-granted")
        path, job, theirs = self._path, self._draft.job, said.lease
        self._again_at = None
        lease = replace(
            self._draft, gpus=theirs.gpus, gpu_indices=theirs.gpu_indices, vram_mib=theirs.vram_mib,
            slots=theirs.slots, priority=theirs.priority, forced=theirs.forced, since_s=theirs.since_s,
            idle_warn_s=soonest(self._draft.idle_warn_s, theirs.idle_warn_s),
            idle_end_s=soonest(self._draft.idle_end_s, theirs.idle_end_s), min_run_s=theirs.min_run_s,
            stop_s=theirs.stop_s,
        )  # fmt: skip
        files, self._files = self._files or self._ledger.unlisted(), None
        try:
            held = self._ledger.note_granted(lease, files)
        except BaseException:
            self._hang_up()
            give_back(path, job, self._ledger.warn)
            raise
        if self._take_connection is not None and self._connection is not None:
            self._take_connection(self._connection)
            self._connection = None
        self.close()
        held.gives_back = lambda: give_back(path, job, self._ledger.warn)
        return held


def queue_up(
    path: str, prepared: PreparedRequest, ledger: Ledger, binding: Binding,
    take_connection: Callable[[Connection], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> HeldLease | Asking:  # fmt: skip
    """The lease from the broker at ``path`` if it is free now, else a place in its queue.

    ``take_connection`` receives the connection for later calls, with the lease. ``meanwhile`` is called while
    the broker decides. Raises BrokerError, BusyError, InfeasibleError, NotAllowedError, TooManyError,
    DeadlockError, NoGpu, StateError.
    """
    asking = Asking(path, prepared, ledger, binding, take_connection)
    try:
        return asking.begin(meanwhile) or asking
    except BaseException:
        asking.leave()
        raise


def give_back(path: str, job: str, warn: Callable[[str], None]) -> None:
    """Return a lease that is bound to our process, or leave the queue. Warns of a failure.

    After a failure the lease lasts until this process ends.
    """
    try:
        ask(path, Release(job), _GIVE_BACK_S)
    except (BrokerError, BackendError) as error:
        if not isinstance(error, GoneError):  # it no longer exists
            warn(f"the broker did not take back the lease of {job}: {error}")


def preview(path: str, prepared: PreparedRequest) -> tuple[str, ...] | Busy:
    """The GPUs that the request would get now, or why it would wait. Takes nothing.

    Raises BrokerError, InfeasibleError, NotAllowedError, NoGpu.
    """
    found: Previewed = ask(path, Preview(**fields_for(Preview, acquire_of(prepared, "process"))))
    return found.gpus if found.busy is None else replace(found.busy, why=found.why or found.busy.why)
