"""``slicer queue`` without FILE: lists this user's queues."""

from __future__ import annotations

import os
import time

import click

from slicer.cli import output, say
from slicer.cli.queue.rows import ended_json, ended_table, queue_json, section
from slicer.columns import Line, joined
from slicer.errors import StateError
from slicer.queue.control import client
from slicer.queue.state import recent


@click.command("queue", short_help="List this user's queues.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List this user's queues."""
    with client.queues(os.environ) as found:
        running = [each.queue for each in found if each.queue is not None]
        silent = [each.pid for each in found if each.queue is None]
        try:
            ended = recent.ended(os.environ, [each.pid for each in found], say.line)
        except StateError as error:
            say.line(str(error))
            ended = []
    for pid in silent:
        say.line(f"the queue of pid {pid} does not answer: is it stopped?")
    running.sort(key=lambda queue: queue.began_at)
    if as_json:
        data = {"queues": list(map(queue_json, running)), "silent": silent}
        output.show_json({**data, "ended": list(map(ended_json, ended))})
        return
    parts: list[list[Line]] = [section(running, time.time()).lines] if running else []
    if not (running or silent):
        parts = [[Line("No queues are running. slicer queue FILE starts one; see slicer help queue.")]]
    output.show(joined([*parts, *([ended_table(ended, time.time())] if ended else [])]))
