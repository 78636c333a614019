"""``slicer stop``: end jobs."""

from __future__ import annotations

from typing import Any

import click

from slicer.cli import complete
from slicer.cli.named_jobs import for_each
from slicer.job.find import AmbiguousJob, find
from slicer.job.stop import stop
from slicer.ledger.ledger import Ledger
from slicer.model import Lease, Ticket
from slicer.queue.control.client import stop_line


@click.command(
    "stop",
    short_help="End jobs, by name, id or unit.",
    epilog="""\
\b
Examples:
  slicer stop train          the job of that name
  slicer stop 3f2a 7d0d      two jobs, by the beginnings of their ids
  slicer stop slicer-3f2a9c01b7de.scope
                             by the unit, as in systemctl

\b
Exit codes:
    0  all of them have ended
    2  no such job, an ambiguous name, or another user's job; all others were
       stopped
  124  a job did not end within 2 minutes
  125  a job could not be stopped, because systemd refused""",
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(jobs: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """End jobs, and wait until they have given back what they held.

    JOB is a job's id (or at least its first four characters), its name, or its unit, as in `slicer
    status`. A job gets SIGTERM, and SIGKILL if it has not ended after its stop timeout (10s, or the
    profile's TimeoutStopSec). A paused job is resumed, so that it can end. A waiting job leaves the
    queue, and so does a line of a jobs file that has not begun (by its name, or as in jobs.txt#7).
    """

    def act(entry: Lease | Ticket, ledger: Ledger) -> tuple[str, dict[str, Any]]:
        # A job that is just being started has no process of its own, only its queue's.
        has_process = not isinstance(entry, Lease) or entry.keeper
        if has_process or not stop_line(ledger.directory.base, entry.job):
            stop(entry, ledger)
        said, done = ("stopped",) * 2 if isinstance(entry, Lease) else ("no longer waits:", "dequeued")
        return f"{said} {entry.job}  {entry.name or entry.command}", {"done": done}

    def act_on_line(word: str, ledger: Ledger) -> tuple[str, dict[str, Any]] | None:
        found = stop_line(ledger.directory.base, word)
        if not found:
            return None
        if len(found) > 1:
            lines = ", ".join(found)
            raise AmbiguousJob(f"{word!r} could be {len(found)} lines: {lines}", hint="give one of these")
        return f"no longer waits: {found[0]}", {"job": None, "name": found[0], "done": "dequeued"}

    return for_each(jobs, find, act, quiet=quiet, as_json=as_json, otherwise=act_on_line)
