"""The states of all jobs, and their counts. Pure.

The counts are kept up to date, because counting 100,000 jobs for each board would be slow.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING

from slicer.queue.model import DONE_SHOWN, JobState
from slicer.queue.state import folding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.queue.model import Status
    from slicer.queue.state.journal import Record


class JobStates(dict[str, JobState]):
    """The states by the jobs' keys. Only :meth:`apply` may change them.

    ``counts`` tells how many jobs there are of each status. ``running`` has the states of the running jobs.
    ``ok_count`` jobs have ended well since this was made; they ran for ``ok_wall_s`` seconds in all.
    """

    def __init__(self, states: Mapping[str, JobState]) -> None:
        super().__init__(states)
        self.counts: Counter[Status] = Counter()
        self.running: dict[str, JobState] = {}
        self._by_job: dict[str, JobState] = {}
        self._last: list[JobState] | None = None  # in the order of their ends; None: not known yet
        self.ok_count = 0
        self.ok_wall_s = 0.0
        for state in self.values():
            self._enter(state)

    def by_job(self, job_id: str) -> JobState | None:
        """The job whose current or last attempt has this id."""
        return self._by_job.get(job_id)

    def last(self) -> list[JobState]:
        """The jobs that ended last, in the order of their ends; as many as the board shows."""
        if self._last is None:
            ended = (state for state in self.values() if state.is_final)
            self._last = heapq.nlargest(DONE_SHOWN, ended, key=_end_of)[::-1]
        return list(self._last)

    def apply(self, record: Record) -> None:
        """Change a job's state as the record says (:func:`folding.apply`)."""
        key = str(record.get("key"))
        was_running = key in self.running
        if key in self:
            self._leave(self[key])
        folding.apply(self, record)
        after = self.get(key)
        if after is not None:
            self._enter(after)
            if was_running and after.status == "ok":
                self.ok_count += 1
                self.ok_wall_s += after.wall_s

    def _leave(self, state: JobState) -> None:
        self.counts[state.status] -= 1
        self.running.pop(state.key, None)
        self._by_job.pop(state.job, None)
        if state.is_final:
            self._last = None  # seldom: a new name, or the job runs again

    def _enter(self, state: JobState) -> None:
        self.counts[state.status] += 1
        if state.job:
            self._by_job[state.job] = state
        if state.status == "running":
            self.running[state.key] = state
        elif state.is_final and self._last is not None:
            insort(self._last, state, key=_end_of)
            del self._last[:-DONE_SHOWN]


def _end_of(state: JobState) -> tuple[float, str]:
    return state.started_at + state.wall_s, state.key
