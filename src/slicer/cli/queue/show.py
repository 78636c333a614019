"""How a queue is shown: as a board on a terminal, as lines of text, or as lines of JSON."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TextIO

from slicer.cli.queue.sink import Sink
from slicer.queue.show import words
from slicer.queue.show.summary import summary_lines

if TYPE_CHECKING:
    from slicer.cli.queue.live import Live
    from slicer.queue.events import Shower
    from slicer.queue.model import Board, Event

_DUMB = ("", "dumb", "unknown")


def choose(*, as_json: bool, verbose: bool, stdout: TextIO, stderr: TextIO, quiet: bool = False) -> Shower:
    """What suits those who look.

    A board where stdout is a terminal that can be drawn on, else one line an event on stdout. ``quiet``:
    only lines of what is wrong. ``verbose``: how the jobs' memory grows, too.
    """
    if as_json:
        return _Json(Sink(stdout), verbose)
    if quiet or not _is_drawable(stdout):
        return _Lines(Sink(stdout), verbose, quiet)
    from slicer.cli.queue.live import Live

    return _OnTerminal(Live(stdout, verbose=verbose))


def _is_drawable(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in _DUMB


class _Json:
    wants_board = False

    def __init__(self, sink: Sink, verbose: bool) -> None:
        from slicer.queue.show import event_json

        self._encode = event_json.encode
        self._sink = sink
        self._verbose = verbose

    def begin(self) -> None:
        pass

    def event(self, event: Event) -> None:
        if self._verbose or event.kind != "usage":
            self._sink.write(self._encode(event) + "\n")

    def draw(self, board: Board) -> None:
        pass

    def end(self, summary: Event | None) -> None:
        if summary is not None:
            self._sink.write(self._encode(summary) + "\n")
        self._sink.close()


class _Lines:
    wants_board = False

    def __init__(self, sink: Sink, verbose: bool, quiet: bool) -> None:
        self._sink = sink
        self._verbose = verbose
        self._quiet = quiet

    def begin(self) -> None:
        pass

    def event(self, event: Event) -> None:
        text = None if self._is_hushed(event) else words.line(event, verbose=self._verbose)
        if text is not None:
            self._sink.write(f"{_clock(event)} {text}\n")

    def draw(self, board: Board) -> None:
        pass

    def end(self, summary: Event | None) -> None:
        if summary is not None and not self._is_hushed(summary):
            self._sink.write(f"{_clock(summary)} " + "\n".join(summary_lines(summary)) + "\n")
        self._sink.close()

    def _is_hushed(self, event: Event) -> bool:
        return self._quiet and words.level(event) in ("info", "good")


class _OnTerminal:
    wants_board = True

    def __init__(self, live: Live) -> None:
        self._live = live

    def begin(self) -> None:
        self._live.begin()

    def event(self, event: Event) -> None:
        self._live.event(event)

    def draw(self, board: Board) -> None:
        self._live.draw(board)

    def end(self, summary: Event | None) -> None:
        if summary is not None:
            self._live.say(summary_lines(summary), words.level(summary))
        self._live.end()


def _clock(event: Event) -> str:
    return time.strftime("%H:%M:%S", time.localtime(event.at))
