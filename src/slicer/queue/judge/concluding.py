"""The end of an attempt: what it means for its job, as records and as events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from slicer.errors import StateError
from slicer.queue.judge import judging, oom
from slicer.queue.judge.judging import Judged
from slicer.queue.model import ENOUGH_LOOKS
from slicer.queue.show.log_tail import last_line
from slicer.queue.state import folding
from slicer.queue.state.folding import Ending

if TYPE_CHECKING:
    from slicer.queue.events import Events
    from slicer.queue.model import Entry, JobState
    from slicer.queue.options import Options
    from slicer.queue.run.ended_attempt import Ended, EndedAttempt
    from slicer.queue.state.register import Register

_FAILURES = ("exited", "signal")
_LOST_CODE = 1


class Conclusions:
    """Draws them. ``largest_mib``: the memory of the largest GPU that the queue may use."""

    def __init__(
        self, register: Register, options: Options, margin_mib: int, largest_mib: Callable[[], int],
        news: Events,
    ) -> None:  # fmt: skip
        self._register = register
        self._options = options
        self._margin_mib = margin_mib
        self._largest_mib = largest_mib
        self._news = news

    def conclude(self, landing: EndedAttempt, entry: Entry | None, *, is_ending: bool) -> bool:
        """Settle what became of the attempt; whether the job is to run again.

        ``entry``: the job's line, if it still has one. ``is_ending``: the queue had its jobs ended.
        """
        state = self._register.states[landing.key]
        if state.job != landing.job_id or state.status != "running":
            return False
        if landing.ended is not None:
            stopped = landing.ended.reason == "stopped" and is_ending and not state.cancelling
            if not stopped:
                return self._judge(state, landing, landing.ended, entry)
            self._register.do(folding.interrupted(state.key, state.job, "it was stopped with the queue"))
        elif landing.how == "lost":
            self._lose(state, landing)
            return False
        elif landing.how == "interrupted":
            self._register.do(folding.interrupted(state.key, state.job, landing.why))
        else:
            self._register.do(folding.unbegun(state.key, state.job))
        self._news.tell("requeued", state, why=landing.why or "it was stopped with the queue")
        return True

    def _lose(self, state: JobState, landing: EndedAttempt) -> None:
        how = self._ending(landing, Judged("lost", "unknown", _LOST_CODE, False), landing.why)
        self._register.do(folding.ended(state.key, state.job, "lost", **how))
        self._news.tell("lost", state, **self._log_of(state))

    def _judge(self, state: JobState, landing: EndedAttempt, ended: Ended, entry: Entry | None) -> bool:
        peak_mib, looks = _peaks(landing), _looks(landing)
        judged = judging.judge(
            ended,
            declared_mib=state.vram_mib,
            peak_mib=peak_mib,
            looks=looks,
            tolerance=self._options.tolerance,
            has_oom_text=self._has_oom_text(state, ended),
            cancelling=state.cancelling,
            ooms=state.ooms,
            retries=self._retries(entry),
        )
        how = self._ending(landing, judged, ended.reason)
        if not judged.again:
            self._register.do(folding.ended(state.key, state.job, judged.status, **how))
            self._news.tell("finished", state, **self._log_of(state))
            return False
        next_mib = judging.raised(state.vram_mib, peak_mib, self._largest_mib(), self._margin_mib)
        self._register.do(folding.oom(state.key, state.job, next_vram_mib=next_mib, **how))
        self._news.tell(
            "retry", state, declared_mib=state.vram_mib, next_mib=next_mib, attempt=state.attempts,
            attempts=self._retries(entry) + 1, log=state.log,
        )  # fmt: skip
        return True

    def _log_of(self, state: JobState) -> dict[str, object]:
        """Where the log is, and how it ends where that may tell what went wrong."""
        found: dict[str, object] = {
            "log": state.log, "log_path": os.path.join(self._options.log_dir, state.log)
        }  # fmt: skip
        if state.status not in ("ok", "cancelled"):
            found["last_line"] = last_line(self._register.log_dir.directory, state.log)
        return found

    def _retries(self, entry: Entry | None) -> int:
        own = entry.attributes.retries if entry is not None else None
        return self._options.oom_retries if own is None else own

    def _has_oom_text(self, state: JobState, ended: Ended) -> bool:
        """Only the attempt's own log counts, and only where it failed by itself."""
        if not state.gpus or not ended.exit_code or ended.reason not in _FAILURES:
            return False
        try:
            return oom.tells_of_oom(state.log, self._register.log_dir.directory.fd)
        except StateError as error:
            self._news.warning(str(error))
            return False

    def _ending(self, landing: EndedAttempt, judged: Judged, reason: str) -> Ending:
        looks = _looks(landing)
        # The driver's figure is of the second before the look: of an average of few, much is not the job's.
        busy = landing.use.utilisation if landing.use is not None and looks >= ENOUGH_LOOKS else None
        return Ending(
            exit_code=judged.exit_code,
            signal=landing.ended.signal if landing.ended is not None else None,
            reason=reason,
            wall_s=round(landing.wall_s, 3),
            vram_peak_mib=_peaks(landing),
            utilisation=None if busy is None else round(busy, 1),
            looks=looks,
            verdict=judged.verdict,
            memory_peak_bytes=landing.memory_peak_bytes,
            at=time.time(),
        )


def _looks(landing: EndedAttempt) -> int:
    return landing.use.looks if landing.use is not None else 0


def _peaks(landing: EndedAttempt) -> tuple[int, ...]:
    """The larger of what the queue saw and what the outcome says; () where nobody looked, or too seldom."""
    seen = landing.use.peak_mib if landing.use is not None else ()
    peaks = seen or landing.vram_peak_mib
    if seen and landing.vram_peak_mib:
        peaks = tuple(map(max, seen, landing.vram_peak_mib))
    return judging.measured(peaks, _looks(landing))
