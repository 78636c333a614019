"""``slicer queue retry``: have jobs that failed run again."""

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
    short_help="Have failed jobs run again.",
    epilog="""\
\b
Examples:
  slicer queue retry jobs.txt           all that failed
  slicer queue retry jobs.txt 3 sweep   job number 3, and the one named sweep
  slicer queue jobs.txt                 and now they run""",
)
@parameters.jobs_file
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@parameters.log_dir()
def command(file: str, jobs: tuple[str, ...], log_dir: str) -> None:
    """Make the jobs of FILE that failed pending again; with JOB (a number or a name) only those.

    The next `slicer queue FILE` runs them. Each attempt has a log of its own.
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
                raise UsageError(f"no job of this number or name has failed: {word!r:.60}", where="JOB")
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
