"""``slicer resume``: jobs that stand still go on."""

from __future__ import annotations

from typing import Any

import click

from slicer.cli import complete
from slicer.cli.named_jobs import for_each
from slicer.job.find import find_running
from slicer.job.pause import resume
from slicer.ledger.ledger import Ledger
from slicer.model import Lease
from slicer.text import visible


@click.command(
    "resume",
    short_help="Let paused jobs go on.",
    epilog="""\
\b
Examples:
  slicer resume train           it goes on where it stood still
  slicer resume 3f2a 7d0d       two, by the beginnings of their ids

\b
Exit codes:
    0  all of them run
    2  no such job, several could be meant, or it waits; all others go on
  125  a job is still frozen, by what is around it, or systemd refused""",
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(jobs: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Let jobs go on, whoever made them stand still: slicer pause, systemctl freeze or Ctrl-Z.

    JOB is as in `slicer pause`. A job that was stopped by Ctrl-Z goes on in the background, as with bg.
    """

    def act(lease: Lease, ledger: Ledger) -> dict[str, Any]:
        before = resume(lease, ledger)
        if not quiet and not as_json:
            name = lease.name or lease.command
            said = f"resumed {lease.job}  {name}" if before else f"{lease.job}  {name}: was not paused"
            print(visible(said))
        return {"was_halted": before.how if before else None, "changed": before is not None}

    return for_each(jobs, find_running, act, as_json=as_json)
