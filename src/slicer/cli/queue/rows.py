"""Queues as rows of a table and as JSON: for ``slicer queue`` and ``slicer status``."""

from __future__ import annotations

import os

from slicer.cli import output
from slicer.columns import WARNING, Line, Section
from slicer.kernel.proc import names_in
from slicer.quantity import format_duration, format_estimate
from slicer.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from slicer.queue.control.messages import RunningQueue
    from slicer.queue.model import Status
    from slicer.queue.state.recent import EndedQueue

_HEADS = "FILE<24 | RUNNING>!1 | PENDING> | DONE> | FAILED> | FOR>!4 | LEFT>!5 | PROCESS!3 | LOG DIR!2"
_ENDED_HEADS = "ENDED<24 | RUNNING>!1 | PENDING> | DONE> | FAILED> | WHEN>!4 | LOG DIR!2"
_LEAST = 12  # columns for the last cell
_PREFIX = "queue-"  # of the names of their sockets


def running(directory: str) -> tuple[RunningQueue, ...]:
    """The queues whose sockets lie in a ledger's directory ("": none). Raises StateError."""
    if not any(name.startswith(_PREFIX) for name in (names_in(directory) if directory else ())):
        return ()  # and nothing is imported for them
    from slicer.queue.control import client

    return client.standings(directory)


def section(queues: Sequence[RunningQueue], now_s: float) -> Section:
    """The queues that run. ``now_s`` is the wall clock's."""
    rows = [
        (
            _shown(queue.file), *map(str, _counted(queue.counts)),
            format_duration(max(0, round(now_s - queue.began_at))),
            "-" if queue.eta_s is None else f"~{format_estimate(queue.eta_s)}",
            queue.unit or f"pid {queue.pid}", _shown(queue.log_dir),
        )
        for queue in queues
    ]  # fmt: skip
    warnings = [(Line(f"  {queue.warning}", WARNING),) if queue.warning else () for queue in queues]
    return output.section(_HEADS, rows, "queues", warnings, least=_LEAST)


def queue_json(queue: RunningQueue) -> dict[str, Any]:
    return {
        **output.picked(queue, "file log_dir pid unit? state counts"),
        **_sums(queue.counts),
        "began_at": round(queue.began_at, 3),
        "left": None if queue.eta_s is None else round(queue.eta_s, 1),
        **output.picked(queue, "warning?"),
    }


def ended_table(queues: Sequence[EndedQueue], now_s: float) -> list[Line]:
    """The heading, and a line for each queue that has ended."""
    rows = [
        (
            _shown(queue.file), *map(str, _counted(queue.counts)),
            f"{format_duration(max(0, round(now_s - queue.ended_at)))} ago", _shown(queue.log_dir),
        )
        for queue in queues
    ]  # fmt: skip
    return output.table(_ENDED_HEADS, rows, least=_LEAST)


def ended_json(queue: EndedQueue) -> dict[str, Any]:
    return {
        **output.picked(queue, "file log_dir counts"), **_sums(queue.counts),
        "ended_at": round(queue.ended_at, 3),
    }  # fmt: skip


def _counted(counts: dict[Status, int]) -> tuple[int, ...]:
    """How many run, are pending, succeeded or were cancelled, and failed."""
    return counts.get("running", 0), counts.get("pending", 0), *_sums(counts).values()


def _sums(counts: dict[Status, int]) -> dict[str, int]:
    from slicer.queue.model import DONE, FINAL  # here only, because slicer status seldom needs it

    done = sum(counts.get(status, 0) for status in DONE)
    return {"done": done, "failed": sum(counts.get(status, 0) for status in FINAL) - done}


def _shown(path: str) -> str:
    """The path, from the current directory if it lies below."""
    here = os.path.relpath(path)
    return quote(path if here.startswith("..") else here)
