"""``slicer top``: the live status, on a terminal (:mod:`slicer.cli.live`) or as lines of JSON."""

from __future__ import annotations

import os
import stat
from contextlib import closing

import click

from slicer.broker.client.standing import status_reader
from slicer.cli import output, say
from slicer.cli.common import meant
from slicer.cli.live.changes import ChangeWaiter
from slicer.cli.live.terminal import LiveView
from slicer.cli.queue import rows
from slicer.cli.status_json import status_json, without_clocks
from slicer.errors import EX_OK, UsageError
from slicer.ledger.status import StatusReader
from slicer.quantity import parse_duration
from slicer.state import standings

_LEAST_S, _MOST_S = 0.1, 3600.0


def _interval(ctx: click.Context, param: click.Parameter, value: str) -> float:
    found = meant(parse_duration, value, "--interval", "for example 2, 0.5 or 1m") / 1e6
    if not _LEAST_S <= found <= _MOST_S:
        raise UsageError(f"{value}: expected a time from 0.1 s to one hour", where="--interval")
    return found


@click.command(
    "top",
    epilog="""\
\b
Examples:
  slicer top                   follow it live until q or Ctrl-C
  slicer top --interval 0.5    check the GPUs twice a second
  slicer top --json            a line of JSON for each change""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON documents, one a line.")
@click.option(
    "--interval", "interval_s", metavar="DURATION", default="2", show_default=True, callback=_interval,
    help="How often to check the GPUs, which report no changes.",
)  # fmt: skip
def command(as_json: bool, interval_s: float) -> int:
    """Show GPUs, jobs and who waits, and follow each change.

    The arrow keys choose a job: k stops it, p pauses or resumes it, l shows its log. / filters, ? explains
    all keys, q or Ctrl-C quits.
    """
    hint = "slicer status shows one moment, slicer top --json a line for each change"
    if not as_json and not output.is_terminal():
        raise UsageError("stdout is not a terminal", where="top", hint=hint)
    term = os.environ.get("TERM", "")
    if not as_json and term in ("dumb", "unknown", ""):
        raise UsageError("cannot draw on this terminal", where=f"TERM={term}", hint=hint)
    reader = status_reader(os.environ)
    with closing(reader), closing(ChangeWaiter(reader, interval_s)) as changes:
        if as_json:
            _write_changes(reader, changes)
            return EX_OK
        return LiveView(reader, changes, interval_s).run()


def _write_changes(reader: StatusReader, changes: ChangeWaiter) -> None:
    """Write one document a line: at once, and whenever more than the clocks has changed."""
    said: set[str] = set()

    def warn(text: str) -> None:
        if text not in said:
            said.add(text)
            say.line(text)

    pipe = [1] if stat.S_ISFIFO(os.fstat(1).st_mode) else []
    last = None
    while True:
        changes.begin()
        status = reader.read(warn)
        servers = standings.read(os.environ, warn)
        changes.end()
        document = status_json(status, servers, rows.running(status.directory))
        if last != (last := without_clocks(document)):
            output.show_json(document, compact=True)
        if changes.problem:
            warn(changes.problem)
        if changes.wait(pipe):
            raise BrokenPipeError  # this is how a pipe reports that its reader is gone
