"""``slicer stop``: end jobs."""

from __future__ import annotations

import os

import click

from slicer.cli import complete, say
from slicer.errors import EX_OK, SlicerError, StateError
from slicer.job.stop import AmbiguousJob, UnknownJob, find, stop
from slicer.ledger.ledger import Snapshot
from slicer.ledger.status import existing_ledger
from slicer.model import Lease
from slicer.text import quote, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.ledger.ledger import Ledger
    from slicer.model import Ticket


@click.command(
    "stop",
    short_help="End jobs, by name, id or unit.",
    epilog="""\
\b
Examples:
  slicer stop train          the job of that name
  slicer stop 3f2a 7d0d      two, by the beginnings of their ids
  slicer stop slicer-3f2a9c01b7de.scope
                             by the unit, as systemctl has it

\b
Exit codes:
    0  all of them have ended
    2  no such job, or several could be meant; all others were stopped
  124  a job was told to end but has not done so within 2 minutes
  125  a job could not be stopped: another user's, or systemd refused""",
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(jobs: tuple[str, ...], quiet: bool) -> int:
    """End jobs, and wait until they have given back what they held.

    JOB is a job's id (its first four characters or more will do), its name, or its unit, as `slicer status`
    shows them. A job gets SIGTERM, and SIGKILL when it has not ended after its stop timeout (10s, or the
    profile's TimeoutStopSec). A job that still waits leaves the queue.
    """
    ledger = existing_ledger(os.environ, say.line)
    seen = ledger.snapshot() if ledger else Snapshot((), ())
    meant: dict[str, Lease | Ticket] = {}
    codes = []
    for job in jobs:
        try:
            entry = find(job, seen)
        except (UnknownJob, AmbiguousJob) as failure:  # the others are none the worse for it
            told = _ended(job) if isinstance(failure, UnknownJob) else None
            codes.append(say.error(told or failure))
        else:
            meant[entry.job] = entry
    if ledger:
        codes += [_stop(entry, ledger, quiet=quiet) for entry in meant.values()]
    return max(codes)


def _ended(job: str) -> UnknownJob | None:
    """What to say of a job that is in the history; None for one that is not."""
    from slicer.cli.history import find_outcomes
    from slicer.outcome.history import default_path

    try:
        found = find_outcomes(default_path(), job, limit=1)
    except StateError:
        return None  # a broken history is no reason to say less than before
    exact = [each for each in found if job in (each.job, each.name, each.unit)]
    return UnknownJob(f"{job!r} has ended", hint=f"slicer history {quote(job)}") if exact else None


def _stop(entry: Lease | Ticket, ledger: Ledger, *, quiet: bool) -> int:
    try:
        stop(entry, ledger)
    except SlicerError as failure:
        return say.error(failure)
    if not quiet:
        done = "stopped" if isinstance(entry, Lease) else "no longer waits:"
        print(visible(f"{done} {entry.job}  {entry.name or entry.command}"))
    return EX_OK
