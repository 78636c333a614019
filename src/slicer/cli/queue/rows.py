"""Running queues as rows of a table and as JSON: for ``slicer queue`` and ``slicer status``."""

from __future__ import annotations

import os

from slicer.cli import output
from slicer.columns import WARNING, Line
from slicer.quantity import format_duration, format_estimate
from slicer.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from slicer.queue.control.messages import RunningQueue

_HEADS = "FILE<24 | RUNNING>!1 | PENDING> | DONE> | FAILED> | FOR>!4 | LEFT>!5 | PROCESS!3 | LOG DIR!2"
_LEAST = 12  # columns for the last cell
_PREFIX = "queue-"  # of the names of their sockets


def running(directory: str) -> tuple[RunningQueue, ...]:
    """The queues whose sockets lie in a ledger's directory ("": none). Raises StateError."""
    try:
        names = os.listdir(directory) if directory else []
    except FileNotFoundError:  # it has just been removed
        names = []
    if not any(name.startswith(_PREFIX) for name in names):
        return ()  # and nothing is imported for them
    from slicer.queue.control import client

    return client.standings(directory)


def table(queues: Sequence[RunningQueue], now_s: float) -> tuple[Line, list[tuple[Line, ...]]]:
    """The heading, and the lines of each queue. ``now_s`` is the wall clock's."""
    rows = [
        (
            _shown(queue.file), str(queue.counts.get("running", 0)), str(queue.counts.get("pending", 0)),
            str(queue.done), str(queue.failed), format_duration(max(0, round(now_s - queue.began_at))),
            "-" if queue.eta_s is None else f"~{format_estimate(queue.eta_s)}",
            queue.unit or f"pid {queue.pid}", _shown(queue.log_dir),
        )
        for queue in queues
    ]  # fmt: skip
    head, *found = output.table(_HEADS, rows, least=_LEAST)
    warnings = [(Line(f"  {queue.warning}", WARNING),) if queue.warning else () for queue in queues]
    return head, [(line, *below) for line, below in zip(found, warnings, strict=True)]


def queue_json(queue: RunningQueue) -> dict[str, Any]:
    """A queue for scripts."""
    return {
        **output.picked(queue, "file log_dir pid"),
        "unit": queue.unit or None,
        **output.picked(queue, "state counts done failed"),
        "began_at": round(queue.began_at, 3),
        "left": None if queue.eta_s is None else round(queue.eta_s, 1),
        "warning": queue.warning or None,
    }


def _shown(path: str) -> str:
    """The path, from the current directory if it lies below."""
    here = os.path.relpath(path)
    return quote(path if here.startswith("..") else here)
