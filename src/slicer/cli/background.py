"""``slicer run --detach``, ``--after`` and ``--begin``: a job goes on without its terminal, or begins later.

The caller checks what was asked for, starts the same command line again (:mod:`slicer.detach`), and shows
what that says until it waits or runs. The detached process is an ordinary ``slicer run`` whose output is the
log.
"""

from __future__ import annotations

import os
import sys
import time

from slicer import faults
from slicer.backend import has_systemd
from slicer.cli import say
from slicer.detach import handover, service, starting
from slicer.errors import EX_OK, EX_SLICER, StateError, UsageError
from slicer.job.again import Again, Reruns
from slicer.job.job import Follower
from slicer.job.launch import open_ledger
from slicer.job.launch import run as run_job
from slicer.job.plan import Invocation, plan_of
from slicer.job.scope import label
from slicer.kernel.signals import block_interrupts, block_only_interrupts, signal, unblock_interrupts
from slicer.kernel.sleep import until_moment, until_readable
from slicer.ledger.ledger import Ledger
from slicer.model import Outcome
from slicer.outcome import history, job_files
from slicer.record import replace
from slicer.state.directory import find
from slicer.state.statedir import first_time
from slicer.state.statefile import is_job_id
from slicer.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from slicer.job.plan import Plan
    from slicer.model import Busy

    ToItsEnd = Callable[[say.Messages, Callable[[], Outcome]], int]
    Told = Callable[[Callable[[], int]], int]


def run(options: dict[str, Any], invocation: Invocation, to_its_end: ToItsEnd, told: Told) -> int:
    """Do what the command line asks for; the exit code. ``told`` says what is raised.

    ``to_its_end`` runs a job and tells how that ended. Raises SlicerError.
    """
    if options["detached"]:
        return _Detached(options, invocation).run(to_its_end, told)
    awaits, begins_at = asked(options, invocation)
    messages = say.Messages(options["verbosity"])
    if options["detach"]:
        ledger = open_ledger(service.environment(os.environ), messages, invocation.backend)
        named = replace(invocation, job=os.urandom(6).hex())
        return detach(sys.argv[2:], options, named, awaits, begins_at, ledger) or _print_id(named.job)
    plan_of(invocation, os.environ, None)  # what cannot be right is refused before the wait
    job = replace(invocation, job=os.urandom(6).hex())
    return _Noted(options["verbosity"], job, awaits, begins_at).run(to_its_end, told)


def asked(options: dict[str, Any], invocation: Invocation) -> tuple[tuple[str, ...], float | None]:
    """The jobs that it follows, as in ``--awaits``, and when it begins. Raises UsageError."""
    if options["log_to"] and not options["detach"]:
        hint = "without --detach the output goes where slicer's does: > FILE"
        raise UsageError("goes with --detach", where="--output", hint=hint)
    if options["retry"] and not options["detach"]:
        hint = "slicer run -d --retry …, then slicer logs -f"
        message = "goes with --detach: here a second run would find its input read"
        raise UsageError(message, where="--retry", hint=hint)
    which = next((name for name in ("detach", "after", "begin") if options[name]), "")
    if invocation.exec and which:
        raise UsageError(f"--{which} cannot go with --exec: nobody stays to do it", where="--exec")
    awaits: tuple[str, ...] = ()
    if options["after"]:
        from slicer.cli import after

        awaits = after.by_ids(options["after"])
    begins = options["begin"]
    if begins is None:
        return awaits, None
    from slicer.cli.common import coming

    return awaits, coming(begins, time.time(), "--begin")


def begins(options: dict[str, Any], invocation: Invocation) -> tuple[str, ...]:
    """When the job would begin, in words; none: at once. Raises UsageError."""
    from slicer import moments
    from slicer.cli import after

    awaits, begins_at = asked(options, invocation)
    found = [f"after {quote(known.name or known.job)} ({how})" for known, how in after.resolved(awaits)]
    return (*found, *([] if begins_at is None else [moments.words(begins_at, time.time())]))


# -- the caller ---------------------------------------------------------------------------------------------


def detach(
    said: Sequence[str], options: dict[str, Any], invocation: Invocation, awaits: tuple[str, ...],
    begins_at: float | None, ledger: Ledger,
) -> int:  # fmt: skip
    """Start the job of that command line, behind "run", and wait until it waits or runs; the exit code."""
    from slicer.cli import placing  # the job's own process needs none of it
    from slicer.cli.common import check_directory

    check_directory()
    plan, job = plan_of(invocation, service.environment(os.environ), None), invocation.job
    log = _log(options["log_to"], job, plan, ledger)
    more = [word for each in awaits for word in ("--awaits", each)]
    more += [] if begins_at is None else ["--begins-at", repr(begins_at)]
    more += ["--runs-in", invocation.directory] if invocation.copy else []
    arguments = ("run", "--detached", job, *more, *said)
    handed = starting.handed_by_us(arguments, os.environ, log, 0o666 if options["log_to"] else 0o600)
    mask = block_interrupts()  # as it was for the caller
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unblock_interrupts()
    has_handed_over = False
    try:
        with starting.HandOver() as hand_over:
            what = f"slicer run --detach: {label(invocation.name, invocation.command)}"
            placed = placing.start(
                hand_over, job, what, plan.broker, mask, unit=service.job_unit(job),
                settings=service.job_properties(hand_over.given.fileno()),
            )  # fmt: skip
            hand_over.send(handed)
            has_handed_over = True
            state = hand_over.hear(_show)
    except KeyboardInterrupt:
        if has_handed_over:
            say.line(f"{job} goes on in the background: slicer show {job}, or slicer stop {job}")
        return 128 + signal.SIGINT
    if isinstance(state, int):  # and its own messages were shown
        return state
    if options["verbosity"] >= 0:
        where = f"{placed.unit}, " if placed.unit else ""
        say.line(f"{state} in the background ({where}log {quote(log)}): slicer logs -f {job}")
        if placed.ends and first_time(ledger.directory, "logout-noticed"):
            say.line(f"{placed.ends} (shown once per boot)")
    return EX_OK


def _print_id(job: str) -> int:
    try:
        os.write(1, f"{job}\n".encode())
    except OSError as error:  # nobody reads it, and the job goes on
        say.line(f"{job}: its id cannot be printed: {error.strerror}")
    return EX_OK


def _show(text: str) -> None:
    say.line(text.removeprefix(say.PREFIX).rstrip("\n"))


def _log(asked: str, job: str, plan: Plan, ledger: Ledger) -> str:
    """The path of the log, which can be written. Removes logs that are too old. Raises StateError."""
    from slicer.cli.common import failing

    files = job_files.opened(os.environ)
    try:
        with failing("cannot be read", files.log_of(""), kind=StateError):
            held = {lease.job for lease in ledger.snapshot().leases}
            files.prune(plan.config.log_keep_s, held.__contains__, say.line)
        if not asked:
            return os.path.realpath(files.log_of(job))
    finally:
        files.close()
    from slicer.state.named_file import RULES

    with failing("cannot be written", f"--output {asked}", kind=UsageError):
        folder, name = find(os.path.abspath(asked), RULES, follows=False)
    folder.close()
    path = os.path.join(folder.path, name)
    with failing("cannot be written", f"--output {asked}", kind=UsageError):
        os.close(handover.open_log(path))
    return path


# -- the job ------------------------------------------------------------------------------------------------


class _Noted(say.Messages, Follower):
    """A job with a file, by which others find it while it waits. In the foreground, it has no log."""

    def __init__(
        self, verbosity: int, invocation: Invocation, awaits: tuple[str, ...], begins_at: float | None
    ) -> None:
        super().__init__(verbosity)
        self._awaits = awaits
        self._begins_at = begins_at
        self._invocation = invocation
        self._files: job_files.JobFiles | None = None
        self._file = job_files.new(
            invocation.job, invocation.name, invocation.command, invocation.profile or "", invocation.log,
            after=awaits, begins_at=begins_at,
        )  # fmt: skip
        self._last = ""  # said
        say.hears = self._hear

    def _hear(self, text: str) -> bool:
        if text.startswith(say.PREFIX):  # else it is for a script
            self._last = text.removeprefix(say.PREFIX).strip()
        return False

    def begun(self) -> None:
        self._be_ready("runs")

    def _be_ready(self, state: str) -> None:
        """The job waits, or runs. Then its lease tells of it, and later the history."""
        if state == "runs":
            self._remove()

    def _remove(self) -> None:
        try:
            if self._files is not None:
                self._files.remove(self._file.job)
        except OSError as error:
            say.line(f"{self._file.job}.json beside the history cannot be removed: {error.strerror}")
        self._files = None

    def run(self, to_its_end: ToItsEnd, told: Told) -> int:
        outcomes: list[Outcome] = []

        def act() -> int:
            try:
                self._files = job_files.opened(os.environ)
                self._files.write(self._file)
            except StateError as error:
                if self._file.log:
                    raise
                say.line(str(error))  # only others miss the file
            faults.point("detached-noted")
            return to_its_end(self, job)

        def job() -> Outcome:
            outcomes.append(self._run_job())
            return outcomes[0]

        code = EX_SLICER
        try:
            code = told(act)
        except BaseException as error:
            signo = getattr(error, "signo", 0)  # that ended its wait
            code = 128 + signo if signo else EX_SLICER
            raise
        finally:
            self._end(code, has_run=bool(outcomes))
        return code

    def _run_job(self) -> Outcome:
        return run_job(self._invocation, os.environ, self, self, wait_first=self._wait_first)

    def _wait_first(self, mask: frozenset[int]) -> None:
        if self._awaits:
            from slicer.cli import after

            awaited = after.resolved(self._awaits)
            self._be_ready("waits")
            names = ", ".join(quote(known.name or known.job) for known, _ in awaited)
            self.notice(f"begins after {names}")
            after.wait(awaited, mask)
        if self._begins_at is not None and self._begins_at > time.time():
            from slicer import moments

            self._be_ready("waits")
            self.notice(f"begins {moments.words(self._begins_at, time.time())}")
            until_moment(self._begins_at, mask)

    def _end(self, code: int, *, has_run: bool) -> None:
        try:
            if self._files is not None:
                self._files.write(replace(self._file, exit_code=code, why="" if has_run else self._last))
        except StateError as error:  # the disk is full; perhaps the history has it
            say.line(str(error))


class _Detached(_Noted):
    """The job in its own process, whose stderr is the log: that of its command alone.

    Messages go to the caller until it waits or runs, then into a file beside the log, and only without room
    for that into the log itself.
    """

    def __init__(self, options: dict[str, Any], invocation: Invocation) -> None:
        job = options["detached"]
        if not is_job_id(job):
            raise UsageError("is for slicer's own use", where="--detached", hint="--detach")
        self._caller = starting.DetachCaller()
        log = os.readlink("/proc/self/fd/1")
        self._is_ready = False
        is_bounded = not options["log_to"]
        self._reruns = Reruns(self._is_asked, self._note_again)
        self._reruns.is_over = bool(invocation.adopts)  # nobody can begin such a process again
        detached = replace(invocation, job=job, log=log, is_bounded=is_bounded, reruns=self._reruns)
        begins_at = float(options["begins_at"]) if options["begins_at"] else None
        super().__init__(options["verbosity"], detached, options["awaits"], begins_at)

    def _hear(self, text: str) -> bool:
        super()._hear(text)
        if self._caller.hear(text):
            return True
        try:
            if self._files is not None:
                self._files.say(self._file.job, text.removeprefix(say.PREFIX))
                return True
        except (OSError, StateError):
            pass
        return False

    def _run_job(self) -> Outcome:
        outcome = super()._run_job()
        while self._reruns.is_due:
            outcome = self._run_again(outcome, self._reruns.known)
        return outcome

    def _is_asked(self) -> bool:
        try:
            return self._files is not None and self._files.take_again(self._file.job)
        except OSError as error:
            say.line(f"whether the job was asked to run again cannot be read: {error.strerror}")
            return False

    def _note_again(self, again: Again) -> None:
        at = time.time() + again.pause_s if again.pause_s else None
        known = {"attempts": again.attempts, "again": again.next_words}
        self._file = replace(self._file, after=(), begins_at=at, **known)
        self._note()

    def _run_again(self, before: Outcome, again: Again) -> Outcome:
        """If it never begins again, its outcome is that of its last attempt."""
        from slicer import moments

        block_only_interrupts()
        at = self._file.begins_at
        when = "" if at is None else f", {moments.words(at, time.time())}"
        try:
            os.write(1, f"slicer: {again.why}{when}\n".encode())
        except OSError:
            pass  # the disk has no room
        # --no-wait is about its beginning.
        self._invocation = replace(self._invocation, gave_way=again.gave_way, wait=True)
        try:
            return super()._run_job()
        except BaseException:
            say.line(f"{again.next_words} never began")
            self._record(replace(before, attempts=again.attempts))
            raise

    def _record(self, outcome: Outcome) -> None:
        from slicer.outcome import outcome_file

        try:
            history.append(outcome, history.default_path(os.environ))
        except StateError as error:
            say.line(str(error))
        try:
            if self._invocation.outcome_path:
                outcome_file.write(outcome, self._invocation.outcome_path)
        except StateError as error:
            say.line(str(error))

    def _wait_first(self, mask: frozenset[int]) -> None:
        if not self._file.again:
            super()._wait_first(mask)
        elif pause_s := self._reruns.known.pause_s:
            until_readable([], pause_s, mask)

    def _note(self) -> None:
        try:
            if self._files is not None:
                self._files.write(self._file)
        except StateError as error:  # it runs, and only others miss what the file says
            say.line(str(error))

    def begun(self) -> None:
        super().begun()
        if self._file.again:
            self._file = replace(self._file, again="")
            self._note()

    def finished(self, outcome: Outcome) -> None:
        """The history tells how it ended, and ``slicer logs -f`` and ``slicer wait`` say it."""

    def waiting(self, busy: Busy) -> None:
        super().waiting(busy)
        self._be_ready("waits")

    def _be_ready(self, state: str) -> None:
        self._is_ready = True
        self._caller.be_ready(state)

    def _end(self, code: int, *, has_run: bool) -> None:
        if not self._is_ready:  # it leaves nothing but its caller's error
            self._remove()
        elif not has_run and has_systemd():
            from slicer.backend.shutdown import is_shutting_down

            if is_shutting_down("system"):
                self._last = "the machine was shut down before it began"  # the error was its consequence
        super()._end(code, has_run=has_run)
        if not self._is_ready:
            self._caller.fail(code)
