"""Shows a queue as a board on a terminal, as lines of text, or as lines of JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO

from slicer.cli.queue.sink import Sink
from slicer.queue.events import Renderer
from slicer.queue.model import Event
from slicer.queue.show import event_text
from slicer.queue.show.event_text import summary_lines
from slicer.text import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.cli.queue.live import Live

Encode = Callable[[Event], str | None]  # an event as one or more lines; None: nothing to show

_DUMB = ("", "dumb", "unknown")


def choose(*, as_json: bool, verbose: bool, stdout: TextIO, quiet: bool = False) -> Live | Lines:
    """A board if stdout is a terminal that can show it, otherwise one line an event.

    ``quiet``: only lines about problems. ``verbose``: also the growth of the jobs' memory.
    """
    if as_json:
        from slicer.queue.show.event_json import encode

        return Lines(stdout, lambda event: encode(event) if verbose or event.kind != "usage" else None)
    if quiet or not can_draw(stdout):
        return Lines(stdout, _text(verbose, quiet))
    from slicer.cli.queue.live import Live

    return Live(stdout, verbose=verbose)


def can_draw(stdout: TextIO) -> bool:
    return stdout.isatty() and os.environ.get("TERM", "") not in _DUMB


def _text(verbose: bool, quiet: bool) -> Encode:
    def encode(event: Event) -> str | None:
        if quiet and event_text.level(event) in ("info", "good"):
            return None
        if event.kind == "summary":
            *others, total = summary_lines(event)
            return "\n".join([*others, f"{clock(event.at)} {total}"])
        text = event_text.line(event, verbose=verbose)
        return None if text is None else f"{clock(event.at)} {text}"

    return encode


class Lines(Renderer):
    def __init__(self, stream: TextIO, encode: Encode) -> None:
        self._sink = Sink(stream)
        self._encode = encode

    def event(self, event: Event) -> None:
        text = self._encode(event)
        if text is not None:
            self._sink.write(text + "\n")

    def end(self, summary: Event | None) -> None:
        """The queue has ended. None: it failed, so there is no summary."""
        if summary is not None:
            self.event(summary)
        self._sink.close()
