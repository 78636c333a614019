"""The events of the queue. Each is told once, and only after the journal with its cause is on the disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from slicer.queue.model import Event
from slicer.queue.show import rows

if TYPE_CHECKING:
    from slicer.queue.model import Board, EventKind, JobState
    from slicer.queue.run.gpu_use import Monitor


class Shower(Protocol):
    """Shows the queue to whoever looks. None of it fails because nobody does any more."""

    @property
    def wants_board(self) -> bool:
        """Whether :meth:`draw` does anything."""

    def begin(self) -> None:
        """Before the first event; and again after SIGCONT, when the terminal was somebody else's."""

    def event(self, event: Event) -> None:
        """Say that something happened (all but the "summary")."""

    def draw(self, board: Board) -> None:
        """Show how things stand."""

    def end(self, summary: Event | None) -> None:
        """The queue has ended; None: not in order, there is nothing to sum up. Safe to repeat with None."""


class Events:
    """Keeps events until :meth:`flush`. By then the journal has what they announce."""

    def __init__(self, shower: Shower) -> None:
        self._shower = shower
        self._kept: list[Event] = []
        self._has_stalled = False
        self._was_waiting = False
        self._has_drained = False
        self.monitor: Monitor | None = None  # set later: some events come before there is one

    def __bool__(self) -> bool:
        """Whether something is kept."""
        return bool(self._kept)

    def say(self, kind: EventKind, **data: object) -> None:
        """Something happened to the queue."""
        self._kept.append(Event(kind, time.time(), data=data))

    def tell(self, kind: EventKind, state: JobState, **data: object) -> None:
        """Something happened to a job."""
        use = None  # the state of a job that has ended holds its final figures
        if self.monitor is not None and state.status == "running":
            use = self.monitor.use_of(state.job)
        self._kept.append(Event(kind, time.time(), rows.row(state, use), data))

    def skipped(self, states: Sequence[JobState]) -> None:
        """These jobs ended in an earlier run."""
        if states:
            self.say("skipped", count=len(states), counts=rows.counts(states))

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
        """Nothing can be written to the log directory because of ``problem``; "": it can be again.

        The first is told at once: it cannot wait for the journal.
        """
        if bool(problem) == self._has_stalled:
            return
        self._has_stalled = not self._has_stalled
        if problem:
            self._shower.event(Event("stalled", time.time(), data={"why": problem}))
        else:
            self.say("resumed")

    def waiting(self, why: str | None) -> None:
        """Nothing runs and nothing can start, because of ``why``. None: that is not so (any more)."""
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
