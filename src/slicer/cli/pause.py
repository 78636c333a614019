"""``slicer pause`` and ``slicer resume``: freeze jobs, which keep what they hold, and let them run again."""

from __future__ import annotations

from typing import Any

import click

from slicer.cli import complete
from slicer.cli.named_jobs import for_each
from slicer.job.pause import pause, resume
from slicer.ledger.ledger import Ledger
from slicer.model import Lease

_ALREADY = {
    "paused": "is already paused",
    "frozen": "is already frozen, from outside (systemctl freeze)",
    "stopped": "is already stopped (Ctrl-Z)",
}


@click.command(
    "pause",
    epilog="""\
\b
Examples:
  slicer pause train            freezes its processes
  slicer pause train eval       pauses both jobs
  slicer resume train           it runs again

\b
Exit codes:
    0  all of them are paused
    2  no such job, an ambiguous name, or a waiting job; all others are paused
  125  a job could not be paused: it has just ended, or systemd refused""",
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(jobs: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Freeze all processes of a job. It keeps its GPUs, its slots and its memory.

    JOB is as in `slicer logs`. Work that a GPU has begun is finished there. The job's time limit keeps
    running. Without systemd, slicer sends SIGSTOP to the processes.
    """

    def act(lease: Lease, ledger: Ledger) -> tuple[str, dict[str, Any]]:
        before = pause(lease, ledger)
        which = f"{lease.job}  {lease.name or lease.command}"
        if before is None:
            return f"paused {which}", {"halted": "paused", "changed": True}
        return f"{which}: {_ALREADY[before.how]}", {"halted": before.how, "changed": False}

    return for_each(jobs, act, quiet=quiet, as_json=as_json)


@click.command(
    "resume",
    epilog="""\
\b
Examples:
  slicer resume train           it continues where it was paused
  slicer resume 3f2a 7d0d       two jobs, by the beginnings of their ids

\b
Exit codes:
    0  all of them run
    2  no such job, an ambiguous name, or a waiting job; all others run again
  125  a cgroup above the job is still frozen, or systemd refused""",
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def resume_command(jobs: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Let jobs run again after slicer pause, systemctl freeze or Ctrl-Z.

    JOB is the same as for `slicer pause`. A job that Ctrl-Z stopped continues in the background, as with
    bg.
    """

    def act(lease: Lease, ledger: Ledger) -> tuple[str, dict[str, Any]]:
        before = resume(lease, ledger)
        which = f"{lease.job}  {lease.name or lease.command}"
        if before is None:
            return f"{which}: was not paused", {"was_halted": None, "changed": False}
        return f"resumed {which}", {"was_halted": before.how, "changed": True}

    return for_each(jobs, act, quiet=quiet, as_json=as_json)
