"""``slicer queue retry``: runs failed jobs again."""

from __future__ import annotations

import os

import click

from slicer.cli.queue import parameters
from slicer.errors import StateError, UsageError
from slicer.queue.control import client
from slicer.queue.file import jobs_file
from slicer.queue.judge.retrying import retry
from slicer.queue.state.journal import Journal
from slicer.queue.state.register import Register
from slicer.text import counted, quote


@click.command(
    "retry",
    short_help="Make failed jobs pending again.",
    epilog="""\
\b
Examples:
  slicer queue retry jobs.txt           all failed jobs
  slicer queue retry jobs.txt 3 sweep   job number 3, and the job named sweep
  slicer queue jobs.txt                 then run them, if no queue runs""",
)
@parameters.jobs_file
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@parameters.log_dir()
@click.option("--failed", "all_failed", is_flag=True, help="All failed jobs, as without JOB.")
def command(file: str, jobs: tuple[str, ...], log_dir: str, all_failed: bool) -> None:
    """Make the failed jobs of FILE pending again; with JOB (a number or a name) only those.

    Jobs that are held back because others of their command failed in a row may start then, too. A running
    queue starts them at once; otherwise the next `slicer queue FILE` runs them. Each attempt has its own
    log.
    """
    if jobs and all_failed:
        raise UsageError("does not go with JOB", where="--failed", hint="leave one of them out")
    running = _ask(file, log_dir, jobs)
    numbers, released, goes_on = running or (*_of_ended(file, jobs, log_dir), False)
    if not (numbers or released):
        print(f"no job of {quote(file)} has failed")
        return
    named = ", ".join(map(str, numbers))
    again = f"job {named} is" if len(numbers) == 1 else f"jobs {named} are"
    told = [f"{again} pending again"] * bool(numbers)
    told += [f"{counted(released, 'job')} no longer held back"] * bool(released)
    after = "the queue runs" if goes_on else f"next: slicer queue {quote(file)} --log-dir {quote(log_dir)}"
    print("; ".join([*told, after]))


def _ask(file: str, log_dir: str, jobs: tuple[str, ...]) -> tuple[list[int], int, bool] | None:
    """As :func:`retry` of a running queue, and whether it starts anything still.

    None: no queue runs, or it does not answer.
    """
    with client.queues(os.environ) as found:
        asked = client.of_file(found, file, log_dir)
        if asked is None:
            return None
        answer = asked.ask("retry", jobs=list(jobs))
        if "unknown" in answer:
            raise _unknown(answer["unknown"])
        return answer["again"], answer.get("released", 0), answer["state"] not in ("stopping", "ending")


def _of_ended(file: str, jobs: tuple[str, ...], log_dir: str) -> tuple[list[int], int]:
    """As :func:`retry`, in the journal. Raises SlicerError."""
    entries = jobs_file.load(file)
    if Journal.peek(log_dir) is None:
        raise parameters.no_journal(log_dir)
    register = Register(log_dir, fresh=False)
    try:
        found = retry(register, (entry.key for entry in entries), jobs)
        if isinstance(found, str):
            raise _unknown(found)
        if not register.save():
            raise StateError(register.problem)
    finally:
        register.close()
    return found


def _unknown(word: str) -> UsageError:
    return UsageError(f"no failed job has this number or name: {word!r:.60}", where="JOB")
