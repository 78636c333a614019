"""Figures of all jobs, kept as their states change: there may be 100,000, and they are drawn often. Pure."""

from __future__ import annotations

import heapq
from bisect import insort
from typing import TYPE_CHECKING

from slicer.queue import folding
from slicer.queue.rows import DONE_SHOWN

if TYPE_CHECKING:
    from slicer.queue.journal import Record
    from slicer.queue.model import JobState, Status


class Tally:
    """``running``: the jobs that run, by their keys. ``walls``: how many jobs have ended well since this was
    made, and ``walls_s``: how long they took together.
    """

    def __init__(self, states: dict[str, JobState]) -> None:
        """``states`` by the jobs' keys; from here on they are only changed by :meth:`apply`."""
        self._states = states
        self._counts: dict[Status, int] = {}
        self.running: dict[str, JobState] = {}
        self._by_job: dict[str, JobState] = {}
        self._last: list[JobState] | None = None  # the last to end comes last; None: to be looked for
        self.walls = 0
        self.walls_s = 0.0
        for state in states.values():
            self._enter(state)

    @property
    def counts(self) -> dict[Status, int]:
        """How many jobs there are of each status."""
        return {status: count for status, count in self._counts.items() if count}

    def by_job(self, job_id: str) -> JobState | None:
        """The job whose current or last attempt has this id."""
        return self._by_job.get(job_id)

    def last(self) -> list[JobState]:
        """The last jobs to end, as many as people are shown; the very last comes last."""
        if self._last is None:
            ended = (state for state in self._states.values() if state.is_final)
            self._last = heapq.nlargest(DONE_SHOWN, ended, key=_end_of)[::-1]
        return list(self._last)

    def apply(self, record: Record) -> None:
        """Do what the record says (:func:`folding.apply`)."""
        key = str(record.get("key"))
        before = self._states.get(key)
        was_running = key in self.running
        if before is not None:
            self._leave(before)
        folding.apply(self._states, record)
        after = self._states.get(key)
        if after is not None:
            self._enter(after)
            if was_running and after.status == "ok":
                self.walls += 1
                self.walls_s += after.wall_s

    def _leave(self, state: JobState) -> None:
        self._counts[state.status] -= 1
        self.running.pop(state.key, None)
        self._by_job.pop(state.job, None)
        if state.is_final:
            self._last = None  # seldom: what has ended stays so, but for its name

    def _enter(self, state: JobState) -> None:
        self._counts[state.status] = self._counts.get(state.status, 0) + 1
        if state.job:
            self._by_job[state.job] = state
        if state.status == "running":
            self.running[state.key] = state
        elif state.is_final and self._last is not None:
            insort(self._last, state, key=_end_of)
            del self._last[:-DONE_SHOWN]


def _end_of(state: JobState) -> tuple[float, str]:
    return state.started_at + state.wall_s, state.key
