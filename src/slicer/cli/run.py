"""``slicer run``: the hot path. Imports no click."""

from __future__ import annotations

import os

from slicer.cli import say
from slicer.config.profiles import Overrides
from slicer.errors import EX_SLICER, BusyError, SlicerError, StateError, UsageError
from slicer.job.job import NOBODY, Follower
from slicer.job.launch import run
from slicer.job.plan import Invocation
from slicer.kernel.signals import INTERRUPTS, signal, unblock_interrupts
from slicer.quantity import INFINITY, QuantityError, parse_duration
from slicer.state.statefile import is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from slicer.model import Outcome

_LONGEST_NAME = 200  # other users read it on one line
_AFTERWARDS = ("outcome", "journal", "snapshot")  # the options that leave something to do after the command
_OTHER_FILE = "name a file of your own"


class _Interrupted(BaseException):
    """A signal arrived before the job ran. slicer exits cleanly."""

    def __init__(self, signo: int) -> None:
        self.signo = signo


def perform(options: dict[str, Any], command: tuple[str, ...]) -> int:
    """Perform a parsed command line. Returns slicer's exit code."""
    return reported("run", options, lambda: _run(options, command))


def reported(program: str, options: dict[str, Any], act: Callable[[], int]) -> int:
    """Show help, or call ``act`` and report its errors. Returns the exit code."""
    try:
        if options["help"]:
            from slicer.cli.app import main

            unblock_interrupts()
            return main([program, options["help"]])
        return _told(options, act)
    except _Interrupted as interrupted:  # perhaps while an error was being reported: signals act again
        return _die_of(interrupted.signo)


def _told(options: dict[str, Any], act: Callable[[], int]) -> int:
    """Call ``act`` and report its errors, as JSON if ``slicer route`` was asked to. Returns the exit code."""
    try:
        return act()
    except BusyError as failure:
        busy, as_json = failure.busy, options.get("json", False)
        messages = say.Messages(options["verbosity"])
        messages.blocked(busy, failure.waited_s, say.busy_dict(busy), as_json=as_json)
        return failure.exit_code
    except SlicerError as failure:
        return say.error_json(failure) if options.get("json") else say.error(failure)
    except Exception as failure:
        from slicer.cli.app import report

        return report(failure)


def fields(options: dict[str, Any], command: tuple[str, ...]) -> dict[str, Any]:
    """The fields of an :class:`Invocation` that ``hold`` and ``route`` share. Raises UsageError."""
    if len(options["name"]) > _LONGEST_NAME:
        raise UsageError(f"at most {_LONGEST_NAME} characters", where="--name")
    if options["outcome"]:
        _check_outcome(options["outcome"])
    if clash := options["exec"] and next((f"--{name}" for name in _AFTERWARDS if options[name]), ""):
        raise UsageError(f"{clash} cannot be combined: no slicer process stays to do it", where="--exec")
    if options["max_wait"] is not None and not options["wait"]:
        hint = "leave one of them out"
        raise UsageError("cannot be combined with --no-wait", where="--max-wait", hint=hint)
    # An option that is called as a field is that field.
    said = {name: options[name] for name in Invocation.__annotations__ if name in options}
    changes = {name: options[name] for name in Overrides.__annotations__ if name in options}
    return {
        **said,
        "command": command,
        "overrides": Overrides(assignments=options["set"], slots=options["slot"], **changes),
        "expect_s": seconds(options["expect"], "--expect"),
        "outcome_path": options["outcome"],
        "hints": options["verbosity"] >= 0,
        "adopts": tuple(map(int, filter(None, options["adopts"].split(":")))),
    }


def _run(options: dict[str, Any], command: tuple[str, ...]) -> int:
    if not command:
        raise UsageError("no command given", hint="slicer run [OPTIONS] -- COMMAND [ARGUMENTS]")
    if options["job"] and not is_job_id(options["job"]):
        raise UsageError(f"{options['job']!r:.40} is no job's id", where="--job")
    invocation = Invocation(**fields(options, command), hold=False)
    if options["dry_run"]:
        from slicer.cli.app import guarded
        from slicer.cli.dryrun import show

        unblock_interrupts()
        return guarded(lambda: show(invocation, options))
    if not options["snapshot"]:
        return _begin(options, invocation)
    from slicer.cli import snapshot

    _take_interrupts()
    return snapshot.run(options, invocation, _begin)


def _begin(options: dict[str, Any], invocation: Invocation) -> int:
    if any(options[name] for name in ("detach", "detached", "after", "begin", "log_to", "retry")):
        from slicer.cli import background

        return background.run(options, invocation, to_its_end, lambda act: _told(options, act))
    follower = NOBODY
    if options["follower"]:
        from slicer.job.following import by_descriptor

        follower = by_descriptor(options["follower"])
    return run_job(invocation, say.Messages(options["verbosity"]), follower)


def run_job(invocation: Invocation, messages: say.Messages, follower: Follower = NOBODY) -> int:
    """Run the job to its end and report it. Returns the exit code."""
    return to_its_end(messages, lambda: run(invocation, os.environ, messages, follower))


def to_its_end(messages: say.Messages, act: Callable[[], Outcome]) -> int:
    """Call ``act``, which runs a job, and report how it ended. Returns the exit code."""
    _take_interrupts()
    try:
        outcome = act()
    except _Interrupted:
        messages.interrupted()
        raise
    messages.finished(outcome)
    # A shell ends its loop on Ctrl-C only if its child dies of SIGINT.
    if outcome.reason == "signal" and outcome.signal == signal.SIGINT:
        return _die_of(signal.SIGINT)
    return outcome.exit_code


def _take_interrupts() -> None:
    for signo in INTERRUPTS:
        if signal.getsignal(signo) != signal.SIG_IGN:
            signal.signal(signo, _interrupt)


def _interrupt(signo: int, frame: FrameType | None) -> None:
    # A second exception would interrupt the handling of the first. (Python warns if a handler is removed
    # while its signal is pending.)
    for each in INTERRUPTS:
        if signal.getsignal(each) is _interrupt:
            signal.signal(each, lambda signo, _: _die_of(signo))
    raise _Interrupted(signo)


def _die_of(signo: int) -> int:
    """Die of the signal as if it had not been handled."""
    signal.signal(signo, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signo})
    os.kill(os.getpid(), signo)
    return EX_SLICER  # not reached


def seconds(text: str | None, option: str) -> float | None:
    """The value of an option that is a duration; None: not given, or for ever. Raises UsageError."""
    if text is None:
        return None
    try:
        found = parse_duration(text)
    except QuantityError as error:
        raise UsageError(str(error), where=option) from error
    return None if found == INFINITY else found / 1e6  # there is nothing to expect


def _check_outcome(path: str) -> None:
    """Raises UsageError if the outcome cannot be written there: better now than after hours of work."""
    from slicer.outcome.outcome_file import check

    where = f"--outcome {path}"
    try:
        os.path.abspath(path)
    except OSError as error:  # the working directory was removed
        hint = "give an absolute path"
        raise UsageError(f"cannot be found: {error.strerror}", where=where, hint=hint) from error
    try:
        check(path)
    except StateError as error:
        raise UsageError(error.message, where=where, hint=error.hint or _OTHER_FILE) from error
    except OSError as error:
        raise UsageError("cannot be written there", where=where, hint=_OTHER_FILE) from error
