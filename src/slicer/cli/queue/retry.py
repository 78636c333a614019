"""``slicer queue retry``: runs failed jobs again."""

from __future__ import annotations

import click

from slicer.cli.queue import parameters
from slicer.errors import StateError, UsageError
from slicer.queue.file import jobs_file
from slicer.queue.judge import judging
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from slicer.queue.state.register import Register
from slicer.text import quote


@click.command(
    "retry",
    short_help="Make failed jobs pending again.",
    epilog="""\
\b
Examples:
  slicer queue retry jobs.txt           all failed jobs
  slicer queue retry jobs.txt 3 sweep   job number 3, and the job named sweep
  slicer queue jobs.txt                 then run them""",
)
@parameters.jobs_file
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@parameters.log_dir()
def command(file: str, jobs: tuple[str, ...], log_dir: str) -> None:
    """Make the failed jobs of FILE pending again; with JOB (a number or a name) only those.

    The next `slicer queue FILE` runs them. Each attempt has its own log.
    """
    entries = jobs_file.load(file)
    if Journal.peek(log_dir) is None:
        raise parameters.no_journal(log_dir)
    register = Register(log_dir, fresh=False)
    try:
        known = [register.states[entry.key] for entry in entries if entry.key in register.states]
        failed = sorted(filter(judging.has_failed, known), key=lambda state: state.no)
        for word in jobs:
            if not any(word in (str(state.no), state.name) for state in failed):
                raise UsageError(f"no failed job has this number or name: {word!r:.60}", where="JOB")
        chosen = [state for state in failed if not jobs or {str(state.no), state.name} & set(jobs)]
        for state in chosen:
            register.do(folding.reconsidered(state.key))
        if not register.save():
            raise StateError(register.problem)
    finally:
        register.close()
    if not chosen:
        print(f"no job of {quote(file)} has failed")
        return
    numbers = ", ".join(str(state.no) for state in chosen)
    told = f"job {numbers} is" if len(chosen) == 1 else f"jobs {numbers} are"
    print(f"{told} pending again; next: slicer queue {quote(file)} --log-dir {quote(log_dir)}")
