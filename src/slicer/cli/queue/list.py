"""``slicer queue`` without FILE: lists this user's queues."""

from __future__ import annotations

import os
import time

import click

from slicer.cli import output, say
from slicer.cli.queue.rows import queue_json, table
from slicer.columns import Line
from slicer.queue.control import client


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
        head, entries = table(running, time.time())
        output.show([head, *(line for entry in entries for line in entry)])
    elif not silent:
        output.show([Line("No queues are running. slicer queue FILE starts one; see slicer queue --help.")])
