"""Shows the queue: the board on the terminal, status.txt, and the summary at the end."""

from __future__ import annotations

import os
import time
from operator import attrgetter
from typing import Any

from slicer.kernel.sleep import seconds_until
from slicer.queue.engine.engine import Engine
from slicer.queue.events import Renderer
from slicer.queue.judge import judging
from slicer.queue.judge.log import last_line
from slicer.queue.model import Board, BoardState, Event, JobRow, JobState, Kind, QueueOptions
from slicer.queue.show import board_text, rows
from slicer.queue.start.dispatch import Dispatch
from slicer.queue.start.pending import Pending
from slicer.queue.state.register import Register

_DRAW_S = 0.25  # the shortest pause between two boards on the terminal
_TICK_S = 1.0  # the longest: times are shown in seconds
_WRITE_S = 1.0  # the shortest pause between two status.txt
_SHARE = 0.05  # the fraction of the time for drawing, however long the queue is
_NUMBER = attrgetter("no")


class Display:
    """Draws the board when something has changed, but not more often than people can follow."""

    def __init__(
        self, register: Register, engine: Engine, dispatch: Dispatch, options: QueueOptions,
        renderers: list[Renderer],
    ) -> None:  # fmt: skip
        self._register = register
        self._engine = engine
        self._dispatch = dispatch
        self._options = options
        self._renderers = renderers
        self.began_at = time.time()
        self._began = time.monotonic()
        self.is_stale = True
        self._width = 1  # the largest number of jobs that ran at the same time
        self._draw_at = 0.0
        self._write_at = 0.0
        self._is_unwritten = True
        self._every_s = max(_WRITE_S, options.poll_s)  # how often status.txt is written while jobs run
        self.state: BoardState = "running"
        self._problem = ""
        self._cost_s = 0.0

    def left_s(self) -> float | None:
        """The seconds until :meth:`update` is due without an event; None: never."""
        due = [self._write_at] if self._is_unwritten else []
        if self._register.states.running:
            due.append(self._rewrite_at())
        if any(each.wants_board for each in self._renderers):
            due.append(self._redraw_at())
        return seconds_until(*due)

    def update(self, state: BoardState, problem: str, running: int) -> None:
        """Draw and write if due. ``running``: the number of jobs that run or are being started."""
        if self._register.has_changed or (state, problem) != (self.state, self._problem):
            self.is_stale = self._is_unwritten = True
            self._register.has_changed = False
        self.state, self._problem = state, problem
        self._width = max(self._width, running)
        drawing = [each for each in self._renderers if each.wants_board]
        if drawing and time.monotonic() >= self._redraw_at():
            board = self.board()
            for renderer in drawing:
                renderer.draw(board)
            self.is_stale = False
            self._draw_at = time.monotonic() + max(_DRAW_S, self._cost_s / _SHARE)
        self._write_status()

    def end(self) -> None:
        self.state = "ended"
        self._write_status(force=True)

    def _redraw_at(self) -> float:
        """When to draw the board: soon after a change, later if only the time has changed."""
        return self._draw_at if self.is_stale else self._draw_at + _TICK_S

    def _rewrite_at(self) -> float:
        """When to write status.txt even if only the time has changed."""
        return self._write_at - _WRITE_S + self._every_s

    def _write_status(self, *, force: bool = False) -> None:
        """Write status.txt if it is due. A failure only causes another try: nothing depends on the file."""
        now = time.monotonic()
        is_old = bool(self._register.states.running) and now >= self._rewrite_at()
        if not force and not is_old and (not self._is_unwritten or now < self._write_at):
            return
        text = board_text.render(self.board(), None)
        self._is_unwritten = False
        self._write_at = time.monotonic() + max(_WRITE_S, self._cost_s / _SHARE)
        try:
            self._register.log_dir.write_status(text)
        except OSError:
            self._is_unwritten = True

    def board(self) -> Board:
        began = time.monotonic()
        pending = self._dispatch.pending
        states = self._register.states
        running = sorted((state for state in states.running.values() if not state.submitted), key=_NUMBER)
        submitted = sorted((state for state in states.running.values() if state.submitted), key=_NUMBER)
        left = len(pending) + len(submitted)
        counts = {**rows.counts(rows.of_file(states.values(), pending.entries)), "pending": left}
        if submitted:
            counts["running"] = len(running)
        numbers = {state.job: state.no for state in running}
        now = time.time()
        made = Board(
            title=self._options.jobs_file,
            at=now,
            began_at=self.began_at,
            gpus=self._engine.gpu_rows(numbers),
            running=tuple(rows.row(each, self._engine.use_of(each.job), now_s=now) for each in running),
            pending=(*map(self._submitted_row, submitted), *self._pending_rows(pending)),
            done=tuple(map(rows.row, states.last())),
            counts=counts,
            eta_s=rows.eta_s(
                states.ok_wall_s, states.ok_count, [now - state.started_at for state in running],
                left - len(pending.held_back), self._width,
            ),
            state=self.state,
            warning=self._problem,
            pid=os.getpid(),
            every_s=self._every_s,
        )  # fmt: skip
        self._cost_s = time.monotonic() - began
        return made

    def _submitted_row(self, state: JobState) -> JobRow:
        return rows.row(state, waits_for=self._engine.why_unstarted(state.job))

    def _pending_rows(self, pending: Pending) -> list[JobRow]:
        found: list[JobRow] = []
        first: dict[Kind, int] = {}
        for entry in pending.first(rows.PENDING_SHOWN):
            state = self._register.states[entry.key]
            kind = pending.kind(entry.key)
            waits_for = pending.waits_for(entry.key)
            waits_for = waits_for or self._why(kind, first.setdefault(kind, state.no), state)
            found.append(rows.row(state, declared_mib=kind.vram_mib, waits_for=waits_for))
        return found

    def _why(self, kind: Kind, first: int, state: JobState) -> str:
        """Why a job of this kind waits. ``first``: the job of the kind that starts before the others."""
        return f"job {first}" if first != state.no else self._engine.why(kind)

    def why(self, state: JobState) -> str:
        """Why a job waits, as on the board; "" if it does not wait."""
        if state.submitted:
            return self._engine.why_unstarted(state.job)
        pending = self._dispatch.pending
        if state.key not in pending:
            return ""
        kind = pending.kind(state.key)
        first = next((entry.key for head, entry in pending.heads() if head == kind), state.key)
        number = self._register.states[first].no
        return pending.waits_for(state.key) or self._why(kind, number, state)

    def why_waiting(self) -> str | None:
        """The reason why the first job that could start waits; None: no request waits for its place."""
        reasons = [self._engine.why(kind) for kind, _ in self._dispatch.pending.heads()]
        return reasons[0] if any(reasons) else None

    def summary(self, exit_code: int) -> Event:
        known, touched = self._register.states, self._dispatch.touched
        ended = sorted((s for s in known.values() if s.key in touched and s.is_final), key=_NUMBER)
        others = [known[key] for key in self._dispatch.pending.entries if key not in touched]
        failed = list(filter(judging.has_failed, ended))
        logs = self._register.log_dir.directory
        data: dict[str, Any] = {
            "counts": rows.counts([*ended, *(known[key] for key in self._dispatch.pending)]),
            "failed": [rows.row(s) for s in failed],
            "held": list(self._dispatch.held_back.told.values()),
            "earlier": [rows.row(s) for s in sorted(filter(judging.has_failed, others), key=_NUMBER)],
            "left": [rows.row(s) for s in ended if s.status == "ok" and s.leftovers],
            "under": [rows.row(s) for s in ended if s.verdict == "under-declared"],
            "over": [rows.row(s) for s in ended if s.verdict == "over-declared"],
            "logs": {state.no: state.log for state in ended if state.log},
            "last_lines": {s.no: last_line(logs, s.log) for s in failed if s.log},
            "exit_code": exit_code,
            "wall_s": round(time.monotonic() - self._began, 3),
            "jobs_file": self._options.jobs_file,
            "log_dir": self._options.log_dir,
        }
        return Event("summary", time.time(), data=data)
