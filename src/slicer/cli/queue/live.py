"""The queue's board on a terminal. The events scroll by above it, and stay in the scrollback.

Each board overwrites the last one. The terminal's page, cursor and settings never change, so nothing has to
be restored, even after ``kill -9``.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TextIO

from slicer.cli import output
from slicer.cli.queue.sink import Sink
from slicer.columns import BAD, GOOD, WARNING, Line, cell_count
from slicer.queue.model import Board, Event
from slicer.queue.show import event_text
from slicer.queue.show.board_text import page
from slicer.queue.show.event_text import summary_lines
from slicer.text import clock

_SOONEST_S = 0.1  # between two writes, however much happens
_HELD_BACK = 20_000  # lines, while the terminal accepts none
_CLEARED = "\x1b[2K\n"
STYLES: dict[event_text.Level, str] = {"info": "", "good": GOOD, "warning": WARNING, "bad": BAD}


class Live:
    """Draws on ``stream``, which must be a terminal. Each call also writes lines that were held back."""

    wants_board = True

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._fd = stream.fileno()
        self._sink = Sink(stream)
        self._glyphs = output.glyphs(stream)
        self._verbose = verbose
        self._above: deque[Line] = deque(maxlen=_HELD_BACK)
        self._board: Board | None = None
        self._drawn: list[int] = []  # the columns of each line of the board on the screen
        self._written_at = -_SOONEST_S

    def begin(self) -> None:
        """Take the terminal: at the start, and again after a stop (SIGCONT)."""
        self._drawn = []

    def event(self, event: Event) -> None:
        """Show the event above the board: at once, or together with later events if many come."""
        text = event_text.line(event, verbose=self._verbose)
        if text is not None:
            self.say(f"{clock(event.at)} {text}", event_text.level(event))

    def say(self, text: str, level: event_text.Level = "info") -> None:
        """The same for a line of text."""
        self._above.append(Line(text, STYLES[level]))
        if time.monotonic() - self._written_at >= _SOONEST_S:
            self._write()

    def draw(self, board: Board) -> None:
        """Show this board in place of the last one, in the terminal's current size."""
        self._board = board
        self._write()

    def redraw(self) -> None:
        """Draw again: the terminal has another size, or another program has used it."""
        if self._board is not None:
            self._write()

    def end(self, summary: Event | None = None) -> None:
        """Remove the board; the events stay, and the summary follows them. Safe to repeat."""
        if summary is not None:
            *others, total = summary_lines(summary)
            self._above += [*map(Line, others), Line(total, STYLES[event_text.level(summary)])]
        self._board = None
        self._sink.write(self._erased() + self._said())
        self._sink.close()

    # -- the terminal ---------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self._sink.is_ready():
            return
        if not _is_ours(self._fd):
            # The shell now writes below, where a board would be in its way.
            self._drawn = []
            self._sink.write(self._said())
            return
        self._written_at = time.monotonic()
        width, height = _size(self._fd)
        shown = [] if self._board is None else page(self._board, width - 1, height - 1, self._glyphs)
        start = self._back() if shown and not self._above else self._erased() + self._said()
        # Each line is cleared just before it is written, or the board would flicker.
        drawn = "".join(f"\x1b[2K{output.styled(line.text, line.style)}\n" for line in shown)
        self._drawn = [cell_count(line.text) for line in shown]
        self._sink.write(f"{start}{drawn}\x1b[J" if shown else start)

    def _said(self) -> str:
        said = "".join(f"{output.styled(line.text, line.style)}\n" for line in self._above)
        self._above.clear()
        return said

    def _rows(self) -> int:
        """The number of screen rows of the board. A narrower terminal has wrapped its lines."""
        width, _ = _size(self._fd)
        return sum(max(1, -(-cells // width)) for cells in self._drawn)

    def _back(self) -> str:
        """Moves to the board's first line."""
        rows = self._rows()
        self._drawn = []
        return f"\r\x1b[{rows}A" if rows else ""

    def _erased(self) -> str:
        rows = min(self._rows(), _size(self._fd)[1] - 1)
        back = self._back()
        # Line by line, because tmux keeps in its scrollback whatever is cleared at once.
        return f"{back}{_CLEARED * rows}\x1b[2K\x1b[{rows}A" if back else ""


def _size(fd: int) -> tuple[int, int]:
    """Columns and lines; 80 and 24 if the terminal does not know its size."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:  # the terminal hung up
        columns, rows = 0, 0
    return columns or 80, rows or 24


def _is_ours(fd: int) -> bool:
    """Whether we are in the terminal's foreground, or it is not our controlling terminal."""
    try:
        return os.tcgetpgrp(fd) in (os.getpgrp(), 0)
    except OSError:
        return True
