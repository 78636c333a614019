"""``slicer pause`` and ``slicer resume``: jobs stand still and keep what they hold, or go on."""

from __future__ import annotations

from typing import Any

import click

from slicer.cli import complete
from slicer.cli.named_jobs import for_each
from slicer.job.find import find_running
from slicer.job.pause import pause, resume
from slicer.ledger.ledger import Ledger
from slicer.model import Lease

_ALREADY = {
    "paused": "is paused already",
    "frozen": "is frozen already, from outside (systemctl freeze)",
    "stopped": "is stopped already (Ctrl-Z)",
}


@click.command(
    "pause",
    short_help="Have jobs stand still; they keep what they hold.",
    epilog="""\
\b
Examples:
  slicer pause train            its processes stand still
  slicer pause train eval       those of both jobs
  slicer resume train           it goes on

\b
Exit codes:
    0  all of them stand still
    2  no such job, several could be meant, or it waits; all others are paused
  125  a job could not be paused: it has just ended, or systemd refused""",
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(jobs: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Freeze all processes of a job. It keeps its GPUs, its slots and its memory until it goes on.

    JOB is a job's id (its first four characters or more will do), its name, or its unit, as `slicer status`
    shows them. What runs on a GPU at that moment is finished there. The job's time limit goes on. Without
    systemd its processes get SIGSTOP.
    """

    def act(lease: Lease, ledger: Ledger) -> tuple[str, dict[str, Any]]:
        before = pause(lease, ledger)
        which = f"{lease.job}  {lease.name or lease.command}"
        if before is None:
            return f"paused {which}", {"halted": "paused", "changed": True}
        return f"{which}: {_ALREADY[before.how]}", {"halted": before.how, "changed": False}

    return for_each(jobs, find_running, act, quiet=quiet, as_json=as_json)


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
def resume_command(jobs: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Let jobs go on, whoever made them stand still: slicer pause, systemctl freeze or Ctrl-Z.

    JOB is as in `slicer pause`. A job that was stopped by Ctrl-Z goes on in the background, as with bg.
    """

    def act(lease: Lease, ledger: Ledger) -> tuple[str, dict[str, Any]]:
        before = resume(lease, ledger)
        which = f"{lease.job}  {lease.name or lease.command}"
        if before is None:
            return f"{which}: was not paused", {"was_halted": None, "changed": False}
        return f"resumed {which}", {"was_halted": before.how, "changed": True}

    return for_each(jobs, find_running, act, quiet=quiet, as_json=as_json)
