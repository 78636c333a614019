"""``slicer queue`` without FILE: this user's queues."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from slicer.cli import output, say
from slicer.cli.output import picked
from slicer.columns import WARNING, Line
from slicer.quantity import format_duration, format_estimate
from slicer.queue.control import client
from slicer.queue.control.messages import RunningQueue, done_of, failed_of
from slicer.text import quote

_HEADS = "FILE<24 | RUNNING>!1 | PENDING> | DONE> | FAILED> | FOR>!4 | LEFT>!5 | PROCESS!3 | LOG DIR!2"
_LEAST = 12  # columns for the last cell


@click.command("queue", short_help="List this user's queues.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List this user's queues."""
    with client.queues(os.environ) as found:
        running = [each.queue for each in found if each.queue is not None]
        silent = [each.pid for each in found if each.queue is None]
    for pid in silent:
        say.line(f"the queue of pid {pid} does not answer: is it stopped?")
    running.sort(key=lambda queue: queue.began_at)
    if as_json:
        output.show_json({"queues": [queue_json(queue) for queue in running], "silent": silent})
    elif running:
        output.show(_lines(running, time.time()))
    elif not silent:
        output.show([Line("No queue runs. slicer queue FILE starts one, slicer queue --help says more.")])


def queue_json(queue: RunningQueue) -> dict[str, Any]:
    """A queue for scripts."""
    return {
        **picked(queue, "file log_dir pid"),
        "unit": queue.unit or None,
        **picked(queue, "state counts"),
        "done": done_of(queue.counts),
        "failed": failed_of(queue.counts),
        "began_at": round(queue.began_at, 3),
        "left": None if queue.eta_s is None else round(queue.eta_s, 1),
        "warning": queue.warning or None,
    }


def _lines(queues: list[RunningQueue], now_s: float) -> list[Line]:
    rows = [
        (
            _shown(queue.file), str(queue.counts.get("running", 0)), str(queue.counts.get("pending", 0)),
            str(done_of(queue.counts)), str(failed_of(queue.counts)),
            format_duration(max(0, round(now_s - queue.began_at))),
            "-" if queue.eta_s is None else f"~{format_estimate(queue.eta_s)}",
            queue.unit or f"pid {queue.pid}", _shown(queue.log_dir),
        )
        for queue in queues
    ]  # fmt: skip
    head, *found = output.table(_HEADS, rows, least=_LEAST)
    shown = [head]
    for line, queue in zip(found, queues, strict=True):
        shown.append(line)
        if queue.warning:
            shown.append(Line(f"  {queue.warning}", WARNING))
    return shown


def _shown(path: str) -> str:
    """The path, from the current directory if it lies below."""
    here = os.path.relpath(path)
    return quote(path if here.startswith("..") else here)
