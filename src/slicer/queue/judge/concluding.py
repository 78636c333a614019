"""Turns the end of an attempt into records and events of its job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from slicer.errors import StateError
from slicer.model import GAVE_WAY
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.events import Events
from slicer.queue.file.shell import Shell
from slicer.queue.judge import judging, streaks
from slicer.queue.judge.judging import Judged
from slicer.queue.judge.log import last_line, tells_of_oom
from slicer.queue.model import (
    ENOUGH_LOOKS,
    GPU_FAILED,
    Attributes,
    Entry,
    JobState,
    QueueOptions,
    Status,
    Streak,
)
from slicer.queue.state import folding
from slicer.queue.state.folding import Ending
from slicer.queue.state.register import Register
from slicer.retry import Retry

_FAILURES = ("exited", "signal")
_LOST_CODE = 1


class Conclusions:
    """Records the ends of attempts. ``largest_mib``: the memory of the largest GPU the queue may use.

    ``retry_of``: how often a line's job runs again.
    """

    def __init__(
        self, register: Register, options: QueueOptions, margin_mib: int, largest_mib: Callable[[], int],
        events: Events, shell: Shell, retry_of: Callable[[Entry | None], Retry],
    ) -> None:  # fmt: skip
        self._register = register
        self._options = options
        self._margin_mib = margin_mib
        self._largest_mib = largest_mib
        self._events = events
        self._shell = shell
        self._retry_of = retry_of

    def conclude(self, attempt: EndedAttempt, entry: Entry | None) -> bool:
        """Record the attempt's end; whether to run the job again. ``entry``: its line, if it still exists."""
        state = self._register.states[attempt.key]
        if state.job != attempt.job_id or state.status != "running":
            return False
        if attempt.how == "lost":
            how = self._ending(attempt, Judged("lost", "unknown", _LOST_CODE, False), attempt.why)
            self._register.do(folding.ended(state.key, state.job, "lost", **how))
            self._count(state, "lost", attempt.wall_s)
            self._events.add("lost", state, **self._log_of(state))
            return False
        has_ended = attempt.how == "ended"
        why = judging.why_interrupted(attempt) if has_ended else attempt.why
        # The queue may have been killed before it recorded the cancellation.
        says_cancel = bool(why) and entry is not None and entry.attributes.cancel
        is_cancelled = state.cancelling or says_cancel
        if has_ended and (is_cancelled or not why):
            return self._judge(state, attempt, entry, is_cancelled=is_cancelled)
        if has_ended or attempt.how == "interrupted":
            times = state.gave_way + (attempt.ended_by == GAVE_WAY)
            self._register.do(folding.interrupted(state.key, state.job, why, times))
        else:
            self._register.do(folding.unbegun(state.key, state.job))
        self._events.add("requeued", state, why=why)
        return True

    def _judge(
        self, state: JobState, attempt: EndedAttempt, entry: Entry | None, *, is_cancelled: bool
    ) -> bool:
        said, options = entry.attributes if entry is not None else Attributes(), self._options
        retries = options.oom_retries if said.retries is None else said.retries
        retry = self._retry_of(entry)
        peak_mib = _peaks(attempt)
        case = judging.Case(
            state.vram_mib, peak_mib, _looks(attempt), options.tolerance,
            has_oom_text=self._has_oom_text(state, attempt), cancelling=is_cancelled, ooms=state.ooms,
            oom_retries=retries, fails=state.fails, gpu_fails=state.gpu_fails, retry=retry,
            background=self._shell.background(state.command)[0],
        )  # fmt: skip
        judged = judging.judge(attempt, case)
        how = self._ending(attempt, judged, judged.reason or attempt.reason)
        if judged.reason != GPU_FAILED:  # that says nothing about the command
            self._count(state, judged.status, attempt.wall_s)
        if not judged.again:
            self._register.do(folding.ended(state.key, state.job, judged.status, **how))
            self._events.add("finished", state, **self._log_of(state))
            return False
        left = retry.gpu - state.gpu_fails if judged.reason == GPU_FAILED else retry.any - state.fails
        next_mib, most = state.next_vram_mib, state.attempts + left
        if judged.status == "oom":
            next_mib = judging.raised(state.vram_mib, peak_mib, self._largest_mib(), self._margin_mib)
        if judged.pause_s:
            again = folding.again(state.key, state.job, time.time() + judged.pause_s, next_mib, **how)
        else:
            again, most = folding.oom(state.key, state.job, next_vram_mib=next_mib, **how), retries + 1
        self._register.do(again)
        self._events.add(
            "retry", state, status=judged.status, again_in_s=judged.pause_s, declared_mib=state.vram_mib,
            next_mib=next_mib, attempt=state.attempts, attempts=most, **self._log_of(state),
        )  # fmt: skip
        return True

    def _count(self, state: JobState, status: Status, wall_s: float) -> None:
        """Count the attempt's end in its group. ``wall_s``: 0 if nobody measured it."""
        group = streaks.group_of(state.command)
        before = self._register.streaks.get(group, Streak())
        lasted_s = wall_s or time.time() - state.started_at
        now = streaks.after(before, state.key, status, lasted_s, self._options.hold_back)
        if now != before:
            self._register.do(folding.streak(group, now))

    def _log_of(self, state: JobState) -> dict[str, str]:
        """The log's path, and its last line if that may explain the failure."""
        found = {"log": state.log, "log_path": os.path.join(self._options.log_dir, state.log)}
        if judging.has_failed(state) or state.status == "pending":
            found["last_line"] = last_line(self._register.log_dir.directory, state.log)
        return found

    def _has_oom_text(self, state: JobState, ended: EndedAttempt) -> bool:
        """Only the attempt's own log counts, and only if the attempt failed by itself."""
        if not state.gpus or not ended.exit_code or ended.reason not in _FAILURES:
            return False
        try:
            return tells_of_oom(state.log, self._register.log_dir.directory.fd)
        except StateError as error:
            self._events.warning(str(error))
            return False

    def _ending(self, attempt: EndedAttempt, judged: Judged, reason: str) -> Ending:
        looks = _looks(attempt)
        # The driver's figure covers the second before the look, so an average of a few may not be the job's.
        busy = attempt.use.utilisation if attempt.use is not None and looks >= ENOUGH_LOOKS else None
        return Ending(
            exit_code=judged.exit_code, signal=attempt.signal, reason=reason,
            wall_s=round(attempt.wall_s, 3), vram_peak_mib=_peaks(attempt),
            utilisation=None if busy is None else round(busy, 1), looks=looks, verdict=judged.verdict,
            memory_peak_bytes=attempt.memory_peak_bytes, leftovers=judged.leftovers, at=time.time(),
        )  # fmt: skip


def _looks(attempt: EndedAttempt) -> int:
    return attempt.use.looks if attempt.use is not None else 0


def _peaks(attempt: EndedAttempt) -> tuple[int, ...]:
    """The larger of the queue's and the outcome's peaks; () without enough looks."""
    seen = attempt.use.peak_mib if attempt.use is not None else ()
    peaks = seen or attempt.vram_peak_mib
    if seen and attempt.vram_peak_mib:
        peaks = tuple(map(max, seen, attempt.vram_peak_mib))
    return judging.measured(peaks, _looks(attempt))
