"""One ``slicer route``: measures the input, decides, and runs the job to its end. Prints nothing."""

from __future__ import annotations

import os
import stat
import time

from slicer import faults
from slicer.config.route_values import STDIN
from slicer.errors import BusyError, ProbeError, SlicerError, StateError, TooLargeError
from slicer.job import launch
from slicer.job.job import OWN_OUTPUT, Follower, Job, tell
from slicer.kernel.proc import now_s
from slicer.kernel.signals import block_interrupts, block_only_interrupts, signal, unblock_interrupts
from slicer.record import record, replace
from slicer.route import deciding
from slicer.route.deciding import RouteAttempt, RouteDecision, after_ran_out, cpu_choices, decide, on_error
from slicer.route.inside import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from slicer.config.profiles import Config
    from slicer.config.routes import OnBusy, Route
    from slicer.job.job import Job, RunListener
    from slicer.job.plan import Invocation
    from slicer.model import Busy, Lease, Outcome
    from slicer.outcome.decisions import DecisionRow, Result
    from slicer.route.relay import OutputWatch, Written

    class RouteListener(RunListener, Protocol):
        """Gets messages for people about a job and its destination."""

        def finished(self, outcome: Outcome) -> None:
            """An attempt is over, and another one follows."""


_STDIN = 0
_REMEMBERS_S = 86400.0  # for this long, an input that ran out of GPU memory is not tried there again


class BlockedError(SlicerError):
    """The destinations are busy, and the route says not to wait. The exit code is the first one's.

    ``busy`` is what the first destination lacks. ``waited_s`` is None if the job did not wait.
    """

    kind = "blocked"

    def __init__(self, decision: RouteDecision, tried: tuple[RouteAttempt, ...], failure: BusyError) -> None:
        to = tried[0].destination
        super().__init__(f"{to.name} is busy")
        self.exit_code = to.exit_code
        self.decision = decision
        self.tried = tried
        self.busy: Busy = failure.busy
        self.waited_s = failure.waited_s


@record
class Order:
    """The user's request. ``asked`` is the job before a destination changes it."""

    config: Config
    route: Route
    asked: Invocation
    on_busy: OnBusy | None  # overrides the destinations' own
    environ: Mapping[str, str]


class TooLarge(TooLargeError):
    """A :class:`TooLargeError` with the decision."""

    def __init__(self, decision: RouteDecision) -> None:
        super().__init__(decision.why, where=f"route {decision.route.name}")
        self.decision = decision


def measured(order: Order) -> RouteDecision:
    """Measure the input, and decide by the metrics and by what happened to it before.

    Signals that end a program act meanwhile. Raises ProbeError, SpoolError and TooLargeError.
    """
    from slicer.route.probing import measure

    route = order.route
    unblock_interrupts()
    try:
        if route.input == STDIN:
            from slicer.route.source import keep_stdin

            keep_stdin(order.environ.get("TMPDIR") or "/tmp")
        decision = decide(route, *measure(route, order.asked.command, _STDIN))
    except ProbeError as error:
        error.where = error.where or f"route {route.name}"  # a user may not know that the program is wrapped
        decision = on_error(route, error)
    finally:
        block_interrupts()
    if not decision.choices:
        raise TooLarge(decision)
    return _remembered(order, decision)


def _remembered(order: Order, decision: RouteDecision) -> RouteDecision:
    """The decision, but for the CPU if this very input recently ran out of GPU memory.

    Otherwise each retry of a caller that finds the CPU busy would run out of memory again. Inputs without a
    name cannot be told apart.
    """
    first = decision.choices[0]
    if first.mode != "gpu" or decision.input in ("", "-") or not cpu_choices(decision):
        return decision
    from slicer.outcome import decisions, history

    now_s = time.time()
    row = deciding.row(decision, None, order.asked.command, now_s, "started")
    try:
        at = decisions.ran_out_at(row, first.vram_mib, history.default_path(order.environ))
    except StateError as error:  # a broken history stops no job
        return replace(decision, why=f"{decision.why} (past GPU memory failures are unknown: {error})")
    if at is None or now_s - at > _REMEMBERS_S:
        return decision
    return after_ran_out(decision, max(0.0, now_s - at))


def run(order: Order, listener: RouteListener) -> Outcome:
    """Decide, and run the job to its end. Raises BlockedError and other SlicerErrors; then nothing runs.

    Signals are as in :func:`slicer.job.launch.run`. The interrupts must be blocked.
    """
    try:
        decision = measured(order)
    except TooLarge as failure:
        _Run(order, failure.decision, listener).tell_refused("too-large", failure)
        raise
    except SlicerError as failure:
        nothing = RouteDecision(order.route, getattr(failure, "input", ""), (), (), str(failure))
        _Run(order, nothing, listener).tell_refused("probe-error", failure)
        raise
    return _Run(order, decision, listener).run()


class _Run:
    def __init__(self, order: Order, decision: RouteDecision, listener: RouteListener) -> None:
        self._order = order
        self._decision = decision
        self._listener = listener
        self._environ = environment(order.environ, order.route)
        self._said: set[str] = set()

    def run(self) -> Outcome:
        order, decision = self._order, self._decision
        tries = deciding.attempts(decision, order.on_busy)
        stdin_at = _stdin_offset()
        attempt, outcome, watch = self._first_free(tries, "started", "")
        faults.point("route-attempt-ended")
        if watch is None:
            return outcome
        try:
            written = watch.written()
        finally:
            watch.close()
        if not self._runs_again(outcome, written):
            return outcome
        faults.point("route-falls-back")
        if not _take_late_signals():
            return outcome
        if stdin_at is not None:
            os.lseek(_STDIN, stdin_at, os.SEEK_SET)  # the same job has the same input
        self._listener.finished(outcome)
        tries = deciding.fallback(decision, order.on_busy, attempt.destination)
        return self._first_free(tries, "fallback", outcome.job)[1]

    def _first_free(
        self, tries: tuple[RouteAttempt, ...], result: Result, after: str
    ) -> tuple[RouteAttempt, Outcome, OutputWatch | None]:
        """Run the job to its end at the first destination that is not busy. Raises BlockedError.

        ``after``: the job that ran out of GPU memory.
        """
        failure: BusyError | None = None
        for attempt in tries:
            try:
                return attempt, *self._attempt(attempt, result, after)
            except BusyError as busy:
                failure = failure or busy
        assert failure is not None
        blocked = BlockedError(self._decision, tries, failure)
        self.tell_refused("blocked", blocked, after)
        raise blocked

    def _attempt(
        self, attempt: RouteAttempt, result: Result, after: str
    ) -> tuple[Outcome, OutputWatch | None]:
        watch = self._watch(attempt) if result == "started" else None
        output = watch.output if watch else OWN_OUTPUT
        said = deciding.overrides_for(self._order.config, attempt.destination)
        invocation = deciding.invocation(self._order.asked, self._decision, attempt, said, output)
        told = _Told(self._listener, f"{self._order.route.name}: {attempt.why}", self._said)

        def granted(job: Job, lease: Lease, waited_s: float) -> None:
            told.say_why()
            self._tell_start(attempt, result, after, job, lease, waited_s)
            faults.point("route-recorded")

        try:
            return launch.run(invocation, self._environ, told, _Starts(granted)), watch
        except BaseException as failure:
            if watch is not None:
                watch.close(waits=isinstance(failure, BusyError))
            raise

    def _watch(self, attempt: RouteAttempt) -> OutputWatch | None:
        """The watch on the output of an attempt that the CPU may follow. Raises BackendError."""
        if not deciding.fallback(self._decision, self._order.on_busy, attempt.destination):
            return None
        from slicer.route.relay import OutputWatch

        return OutputWatch(must_know_stdout=not self._order.route.idempotent)

    def _runs_again(self, outcome: Outcome, written: Written | None) -> bool:
        """Whether the job runs again, on the CPU. Reports what prevents it."""
        failed = deciding.is_out_of_gpu_memory(outcome)
        if written is None:
            if failed:
                self._listener.warning("what the job wrote is unknown, so it is not run again on the CPU")
            return False
        if written.lost:
            self._listener.warning(f"some of the job's output could not be passed on: {written.lost}")
        again = failed and deciding.may_run_again(self._order.route, written)
        if failed and written.tells_of_oom and not again:
            why = "it has written to stdout (idempotent = false)"
            self._listener.notice(f"{self._order.route.name}: out of GPU memory, but {why}: not run again")
        return again

    # -- reports -------------------------------------------------------------------------------------------

    def _tell_start(
        self, attempt: RouteAttempt, result: Result, after: str, job: Job, lease: Lease, waited_s: float
    ) -> None:
        row = deciding.row(
            self._decision, attempt, self._order.asked.command, time.time(), result, job=job.id, after=after,
            waited_s=waited_s,
        )  # fmt: skip
        tell(job, "routed", lease=lease, message=attempt.why, **deciding.event_fields(row, job.command))
        self._keep(row)

    def tell_refused(self, result: Result, failure: SlicerError, after: str = "") -> None:
        """Report a job that does not run to the journal and the history."""
        from slicer.outcome import journal

        attempt, reason, holders = None, str(failure), None
        if isinstance(failure, BlockedError):
            from slicer.job.words import describe_busy
            attempt = failure.tried[0]
            reason = f"blocked: {describe_busy(failure.busy, now_s(), in_public=True)}"
            holders = ", ".join(lease.unit or lease.job for lease in failure.busy.holders)
        order, decision = self._order, self._decision
        row = deciding.row(
            decision, attempt, order.asked.command, time.time(), result, after=after, reason=reason
        )
        name = order.asked.name or deciding.job_name(order.route, decision.input)
        told = deciding.event_fields(row, order.asked.command)
        fields = {**told, "holder": holders, "exit_code": failure.exit_code}
        journal.event("routed", job="", name=name, message=f"{name}: {reason}", fields=fields)
        self._keep(row)

    def _keep(self, row: DecisionRow) -> None:
        """Add the row to the history. A failure stops no job."""
        from slicer.outcome import decisions, history

        try:
            warning = decisions.append(row, history.default_path(self._order.environ))
        except SlicerError as error:
            warning = str(error)
        except Exception as error:
            warning = f"internal error: {type(error).__name__}: {error}"
        if warning:
            self._listener.warning(warning)


class _Starts(Follower):
    """Calls a function once the job has its lease."""

    def __init__(self, tell: Callable[[Job, Lease, float], None]) -> None:
        self._tell = tell

    def granted(self, job: Job, lease: Lease, waited_s: float, stand_by: Callable[[], int]) -> None:
        self._tell(job, lease, waited_s)


class _Told:
    """Passes on the messages of one attempt, after the reason for its destination.

    Notices wait for that reason: a blocked job prints only one line of JSON. Messages about this machine that
    an earlier attempt has already printed (``said``) are not repeated.
    """

    def __init__(self, listener: RouteListener, why: str, said: set[str]) -> None:
        self._listener = listener
        self._said = said
        self._why = why
        self._notices: list[str] = []
        self.still_waiting = listener.still_waiting

    def say_why(self) -> None:
        """Give the reason, once it is clear that the job goes there or waits for it."""
        if self._why:
            notices, self._why = [*self._notices, self._why], ""
            for text in notices:
                self.notice(text)

    def notice(self, text: str) -> None:
        if self._why:
            self._notices.append(text)
        elif text not in self._said:
            self._said.add(text)
            self._listener.notice(text)

    def warning(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._listener.warning(text)

    def waiting(self, busy: Busy) -> None:
        self.say_why()
        self._listener.waiting(busy)

    def acquired(self, lease: Lease, waited_s: float) -> None:
        self.say_why()
        self._listener.acquired(lease, waited_s)


def _stdin_offset() -> int | None:
    """The offset in stdin if it is a file; None for anything else, which can be read only once."""
    try:
        return os.lseek(_STDIN, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(_STDIN).st_mode) else None
    except OSError:  # a file system without offsets
        return None


def _take_late_signals() -> bool:
    """Discard signals that were meant for the job that is over. False: slicer has to end."""
    from slicer.route.relay import ENDING

    late = signal.sigpending()
    if late & ENDING:
        return False
    for signo in late - {signal.SIGTSTP}:
        signal.sigtimedwait({signo}, 0)
    block_only_interrupts()
    return True
