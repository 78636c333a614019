"""Judges the end of an attempt, for its job, the next attempt and the queue's exit code. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from slicer.errors import EX_TIMEOUT
from slicer.model import GAVE_WAY
from slicer.outcome.result import result_of
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.file.shell import Background
from slicer.queue.model import ENOUGH_LOOKS, GPU_FAILED, LEFT, JobState, Status, Verdict
from slicer.record import record
from slicer.retry import NEVER, Retry, pause_after, used_up

EXIT_CODE_MAX = 255
_START_S = 10.0  # a guess: helpers and daemons alike may have their own session, and be busy or idle

_INTERRUPTIONS = {
    "slicer queue": "it was stopped with the queue",
    "shutdown": "the machine was shut down, or you logged out",
    GAVE_WAY: "it gave way to another job",
}


@record
class Case:
    """What is known of a job besides the end of its attempt."""

    declared_mib: int | None
    peak_mib: tuple[int, ...]  # one figure per GPU; () unknown
    looks: int  # the peak is from so many
    tolerance: float  # a fraction
    has_oom_text: bool = False  # its log tells of CUDA's "out of memory"
    cancelling: bool = False  # it was asked to end because its line has "cancel"
    ooms: int = 0  # earlier attempts that ended with that; it runs again while they are fewer than
    oom_retries: int = 0
    fails: int = 0  # earlier ones that failed, and those whose GPU failed; likewise, by ``retry``
    gpu_fails: int = 0
    retry: Retry = NEVER
    background: Background = ""  # what the line leaves there


@record
class Judged:
    """The meaning of an end. ``again``: the job runs once more, after ``pause_s`` seconds."""

    status: Status
    verdict: Verdict
    exit_code: int
    again: bool
    pause_s: float = 0.0
    reason: str = ""  # if it is another than the attempt's
    leftovers: int = 0  # as in JobState


def why_interrupted(ended: EndedAttempt) -> str:
    """Why the job must run again: the cause of the end also ends queues. "": no such cause."""
    return _INTERRUPTIONS.get(ended.ended_by, "") if ended.reason == "stopped" else ""


def judge(ended: EndedAttempt, case: Case) -> Judged:
    """Judge an attempt."""
    status, exit_code = _status(ended, case)
    reason, leftovers = "", 0
    if status == "ok" and case.background != "beside":
        leftovers = ended.leftovers
        if has_left_work(ended, case.background):
            status, exit_code, reason = "failed", 1, LEFT
    kind = used_up(ended.reason, ended.ended_by) if status in ("failed", "timeout", "oom") else ""
    if kind == "gpu":
        status, reason = "failed", GPU_FAILED
    verdict = _verdict(case)
    if verdict == "over-declared" and (status != "ok" or case.looks < ENOUGH_LOOKS):
        verdict = "unknown"  # it may have ended early, or used more between two looks
    again, pause_s = status == "oom" and case.ooms < case.oom_retries, 0.0
    if kind and not again:
        fails = case.gpu_fails if kind == "gpu" else case.fails
        pause_s = pause_after(fails, getattr(case.retry, kind))
        again = pause_s > 0
    return Judged(status, verdict, exit_code, again, pause_s, reason, leftovers)


def has_left_work(ended: EndedAttempt, background: Background) -> bool:
    """Whether what a command left, and what was ended with it, was the job's work rather than a helper.

    It was if the line put its last command into the background. If the line does not show any (a daemon,
    ``setsid -f``, a program's child), then it was after a command that took no longer than a start takes.
    """
    return ended.leftovers > 0 and (background == "last" or (not background and ended.wall_s < _START_S))


def _status(ended: EndedAttempt, case: Case) -> tuple[Status, int]:
    code = ended.exit_code
    is_stopped = ended.reason == "stopped" and result_of(1, ended.reason, ended.ended_by) == "stopped"
    if case.cancelling or is_stopped:
        return "cancelled", code
    match ended.reason:
        # An interrupted command has not finished, even if it exits with 0.
        case "timeout":
            return "timeout", EX_TIMEOUT
        case "stopped":
            return "failed", code or 128 + signal.SIGTERM
        case "oom-kill":  # main memory: more of a GPU would not help
            return "failed", code or 128 + signal.SIGKILL
        case "exited" | "signal":
            if code == 0:
                return "ok", 0
            return ("oom" if case.has_oom_text else "failed"), code
        case _:
            return "failed", code or 1


def measured(peak_mib: tuple[int, ...], looks: int) -> tuple[int, ...]:
    """The peaks; () for zeros from a few looks, which prove nothing."""
    return peak_mib if any(peak_mib) or looks >= ENOUGH_LOOKS else ()


def _verdict(case: Case) -> Verdict:
    largest = max(case.peak_mib, default=0)
    if case.declared_mib is None or not largest:  # 0: it ended before a look, or used no GPU
        return "unknown"
    if largest > case.declared_mib * (1 + case.tolerance):
        return "under-declared"
    if largest < case.declared_mib * (1 - case.tolerance):
        return "over-declared"
    return "within"


def raised(
    declared_mib: int | None, peak_mib: tuple[int, ...], largest_mib: int, margin_mib: int
) -> int | None:
    """The declaration after "out of memory": a quarter more than the job declared or used (E9).

    It is never lower than before, nor higher than a GPU allows: ``largest_mib`` is the largest GPU's memory,
    and ``margin_mib`` of it must stay free. None, a whole GPU, stays None.
    """
    if declared_mib is None:
        return None
    base_mib = max((declared_mib, *peak_mib))
    wanted_mib = -(-base_mib * 5 // 4)
    return max(declared_mib, min(wanted_mib, largest_mib - margin_mib))


def has_failed(state: JobState) -> bool:
    """Whether the job failed, so that it counts for the queue's exit code."""
    return state.is_final and state.status not in ("ok", "cancelled")


def exit_code_of(states: Iterable[JobState]) -> int:
    """The queue's exit code (E12): the largest of the failed jobs, at least 1; 0 if none failed."""
    codes = [max(1, state.exit_code) for state in states if has_failed(state)]
    return min(max(codes, default=0), EXIT_CODE_MAX)
