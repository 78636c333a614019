"""What the queue tells: each thing once, and none before the disk has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slicer.queue import rows
from slicer.queue.model import Event

if TYPE_CHECKING:
    from slicer.queue.loop import Shower
    from slicer.queue.model import EventKind, JobState
    from slicer.queue.monitor import Monitor


class News:
    """Kept until :meth:`flush`, when the journal has what it announces."""

    def __init__(self, shower: Shower) -> None:
        self._shower = shower
        self._kept: list[Event] = []
        self._has_stalled = False
        self._was_waiting = False
        self._has_drained = False
        self.monitor: Monitor | None = None  # there is news before there is a monitor

    def __bool__(self) -> bool:
        """Whether something is kept."""
        return bool(self._kept)

    def say(self, kind: EventKind, **data: object) -> None:
        """Something happened to the queue."""
        self._kept.append(Event(kind, time.time(), data=data))

    def tell(self, kind: EventKind, state: JobState, **data: object) -> None:
        """Something happened to a job."""
        use = None  # what has ended is told of as its state has it
        if self.monitor is not None and state.status == "running":
            use = self.monitor.use_of(state.job)
        self._kept.append(Event(kind, time.time(), rows.row(state, use), data))

    def notice(self, text: str) -> None:
        self.say("notice", text=text)

    def warning(self, text: str) -> None:
        self.say("warning", text=text)

    def flush(self) -> None:
        """Tell all that is kept."""
        kept, self._kept[:] = list(self._kept), []
        for event in kept:
            self._shower.event(event)

    # -- said once ---------------------------------------------------------------------------------------

    def stalling(self, problem: str) -> None:
        """The log directory cannot be written to (that cannot wait for it), or can again (``problem`` "")."""
        if bool(problem) == self._has_stalled:
            return
        self._has_stalled = not self._has_stalled
        if problem:
            self._shower.event(Event("stalled", time.time(), data={"why": problem}))
        else:
            self.say("resumed")

    def waiting(self, why: str | None) -> None:
        """Nothing runs, and nothing can start, because of ``why``; None: something does, or may."""
        if why is not None and not self._was_waiting:
            self.say("waiting", why=why)
        self._was_waiting = why is not None

    def drained(self, is_drained: bool, *, watch: bool) -> None:
        """Nothing is left to do, or something is (again)."""
        if is_drained and not self._has_drained:
            self.say("drained", watch=watch)
        self._has_drained = is_drained

    @property
    def has_drained(self) -> bool:
        return self._has_drained
