"""``slicer stop``: end jobs."""

from __future__ import annotations

import os

import click

from slicer.cli import complete, say
from slicer.errors import EX_OK, SlicerError
from slicer.model import Lease
from slicer.status import existing_ledger
from slicer.stop import UnknownJob, find, stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.ledger import Ledger
    from slicer.model import Ticket


@click.command(
    "stop",
    short_help="End jobs, by name, id or unit.",
    epilog="""\
\b
Exit codes:
    0  all of them have ended
    2  no such job, or several could be meant; then none was stopped
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
    book = existing_ledger(os.environ, say.line)
    if book is None:
        raise UnknownJob(f"no such job: {jobs[0]!r}", hint="no job runs or waits")
    seen = book.snapshot()
    meant = {entry.job: entry for entry in [find(job, seen) for job in jobs]}
    return max(_stop(entry, book, quiet=quiet) for entry in meant.values())


def _stop(entry: Lease | Ticket, book: Ledger, *, quiet: bool) -> int:
    try:
        stop(entry, book)
    except SlicerError as failure:
        say.error(failure)
        return failure.exit_code
    if not quiet:
        done = "stopped" if isinstance(entry, Lease) else "no longer waits:"
        print(say.visible(f"{done} {entry.job}  {entry.name or entry.command}"))
    return EX_OK
