"""The states of all jobs, and those that are asked for in each round. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from slicer.queue.model import DONE_SHOWN, JobState, Status
from slicer.queue.state import folding
from slicer.queue.state.journal import Record


class JobStates(dict[str, JobState]):
    """The states by the jobs' keys. Only :meth:`apply` may change them.

    ``running`` has the states of the running jobs. ``ok_count`` jobs have ended well since this was made,
    and ran for ``ok_wall_s`` seconds in all.
    """

    def __init__(self, states: Mapping[str, JobState]) -> None:
        super().__init__(states)
        self.running: dict[str, JobState] = {}
        self._by_job: dict[str, JobState] = {}
        self.ok_count = 0
        self.ok_wall_s = 0.0
        for state in self.values():
            self._enter(state)

    def by_job(self, job_id: str) -> JobState | None:
        """The job whose current or last attempt has this id."""
        return self._by_job.get(job_id)

    def counts(self) -> Counter[Status]:
        """How many jobs there are of each status."""
        return Counter(state.status for state in self.values())

    def last(self) -> list[JobState]:
        """The jobs that ended last, in the order of their ends; as many as the board shows."""
        ended = (state for state in self.values() if state.is_final)
        return heapq.nlargest(DONE_SHOWN, ended, key=_end_of)[::-1]

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
        self.running.pop(state.key, None)
        self._by_job.pop(state.job, None)

    def _enter(self, state: JobState) -> None:
        if state.job:
            self._by_job[state.job] = state
        if state.status == "running":
            self.running[state.key] = state


def _end_of(state: JobState) -> tuple[float, str]:
    return state.started_at + state.wall_s, state.key
