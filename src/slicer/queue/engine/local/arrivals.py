"""A job's place among the queue's own requests.

In the ledger each request is one among others. Only the first job of each kind has one. The next job of that
kind arrives when the first has its lease. So a thousand jobs do not take a thousand places ahead of others.
Among the queue's own jobs the file's order counts. A job that is requested later than a job behind it in the
file takes the place just ahead of that job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slicer.kernel import proc
from slicer.queue.engine.local.runs import Run
from slicer.queue.model import Entry, Place

_INSTANT_S = 1e-6  # the smallest difference that the ledger's clock shows


class Arrivals:
    """When each job arrives in the ledger, by its key."""

    def __init__(self) -> None:
        self._arrived: dict[str, float] = {}

    def place(self, entry: Entry, places: Mapping[str, Place], asked: Iterable[Run]) -> tuple[float, str]:
        """The arrival of a request: the job's first one, or just before a job behind it.

        Also the job ahead of which it comes at the broker; "": it gets the last place. ``asked``: the other
        requests that wait.
        """
        place = places[entry.key]
        behind = [
            run
            for run in asked
            if places.get(run.key, place) > place and places[run.key][0] == place[0]
        ]
        if entry.key not in self._arrived:
            later = [self._arrived[run.key] for run in behind if run.key in self._arrived]
            self._arrived[entry.key] = round(min(later) - _INSTANT_S if later else proc.now_s(), 6)
        first = min(behind, key=lambda run: self._arrived.get(run.key, 0.0), default=None)
        return self._arrived[entry.key], first.job_id if first is not None else ""

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._arrived.pop(key, None)
