"""The events of the queue. Each is reported once, after the journal with its cause is on the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from slicer.job.gpu_use import GpuUse
from slicer.queue.model import Board, Event, EventKind, JobState
from slicer.queue.show import rows

if TYPE_CHECKING:
    from slicer.queue.notifying import Notifier


class Renderer(Protocol):
    """Shows the queue to people or scripts. No method fails if the reader is gone."""

    @property
    def wants_board(self) -> bool:
        """Whether :meth:`draw` does anything."""
        return False

    def begin(self) -> None:
        """Called before the first event, and after SIGCONT: another program may have used the terminal."""
        return

    def event(self, event: Event) -> None:
        """Show an event (any but the "summary")."""

    def draw(self, board: Board) -> None:
        """Show the queue's current state."""
        return


class Events:
    """Keeps events until the journal has their causes. Also the Listener of everything the queue starts."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderers = [renderer]
        self._kept: list[Event] = []
        self._has_stalled = False
        self._was_waiting = False
        self.has_drained = False
        self.use_of: Callable[[str], GpuUse | None] = lambda _: None  # set later: by job id
        self.notifier: Notifier | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, kind: EventKind, state: JobState | None = None, /, **data: object) -> None:
        """Add an event of the queue, or of the job with this state."""
        row, now_s = None, time.time()
        if state is not None:
            use = None  # the state of a job that has ended has its final figures
            if state.status == "running":
                use = self.use_of(state.job)
            row = rows.row(state, use, now_s=now_s)
        self._kept.append(Event(kind, now_s, row, data))

    def notice(self, text: str) -> None:
        self.add("notice", text=text)

    def warning(self, text: str) -> None:
        self.add("warning", text=text)

    def begin(self) -> None:
        """See :meth:`Renderer.begin`."""
        for each in self.renderers:
            each.begin()

    def flush(self) -> None:
        kept, self._kept = self._kept, []
        for event in kept:
            self._show(event)
            if self.notifier is not None and (problem := self.notifier.event(event)):
                self._show(Event("warning", event.at, data={"text": problem}))

    def at_once(self, kind: EventKind, **data: object) -> None:
        """Report it whatever becomes of the journal."""
        self._show(Event(kind, time.time(), data=data))

    def _show(self, event: Event) -> None:
        for each in self.renderers:
            each.event(event)

    # -- reported once -----------------------------------------------------------------------------------

    def stalled(self, problem: str) -> None:
        """Report at once that ``problem`` prevents all writing; "": writing is possible again."""
        if bool(problem) == self._has_stalled:
            return
        self._has_stalled = not self._has_stalled
        if problem:
            self.at_once("stalled", why=problem)
        else:
            self.add("resumed")

    def nothing_can_start(self, why: str | None) -> None:
        """Nothing runs, and nothing can start because of ``why``. None: not (or no longer) the case."""
        if why is not None and not self._was_waiting:
            self.add("waiting", why=why)
        self._was_waiting = why is not None

    def drained(self, is_drained: bool, *, watch: bool, held: int) -> None:
        """Report that nothing is left to do, unless there is something (again)."""
        if is_drained and not self.has_drained:
            self.add("drained", watch=watch, held=held)
        self.has_drained = is_drained
