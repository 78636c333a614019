"""``slicer stop``: ends jobs."""

from __future__ import annotations

import os
import signal
from fnmatch import fnmatchcase
from typing import Any

import click

from slicer.cli import complete
from slicer.cli.ends import ends
from slicer.cli.known_jobs import KnownJob, KnownJobs
from slicer.cli.named_jobs import for_each
from slicer.errors import EX_OK
from slicer.job.find import UnknownJob
from slicer.job.stop import DEADLINE_S, signal_process, stop
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.model import Lease
from slicer.queue.control.client import lines_meant, stop_line
from slicer.queue.control.messages import QueuedLine

_PATTERN = frozenset("*?[")


@click.command(
    "stop",
    short_help="End jobs, by name, id or unit.",
    epilog="""\
\b
Examples:
  slicer stop train          the job of that name
  slicer stop 3f2a 7d0d      two jobs, by the beginnings of their ids
  slicer stop 'train*'       all jobs with such a name
  slicer stop --mine         all your jobs that run or wait
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
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=complete.all_jobs)
@click.option("--mine", is_flag=True, help="All jobs of this user that run or wait.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(jobs: tuple[str, ...], quiet: bool, as_json: bool, mine: bool = False) -> int:
    """End jobs, and wait until they have released their resources.

    JOB is a job's id (or at least its first four characters), its name, its unit, as in `slicer status`, or a
    shell pattern for names. A job gets SIGTERM, and SIGKILL if it has not ended after its stop timeout (10s,
    or the profile's TimeoutStopSec). A paused job is resumed, so that it can end. A job that waits, for its
    turn or for another job, leaves the queue, and so does a line of a jobs file that has not begun (by its
    name, or as in jobs.txt#7).
    """
    if not jobs and not mine:
        raise click.UsageError("missing argument: JOB or --mine", click.get_current_context())
    known_jobs = KnownJobs()
    words = _expanded(jobs, known_jobs.living, mine=mine)

    def find(word: str, _: Snapshot) -> KnownJob:
        return known_jobs.find(word, may_have_ended=False)

    def act(known: KnownJob, ledger: Ledger) -> tuple[str, dict[str, Any]]:
        entry, line = known.entry, known.line
        if entry is None and line is not None:
            return _cancel(line)
        if entry is None:
            _end_wait(known)
            return f"no longer waits: {known.job}  {known.label}", {"done": "dequeued"}
        # A job of a queue has no process of its own while it is being started.
        has_process = not isinstance(entry, Lease) or entry.keeper
        lines = [] if has_process else lines_meant(os.environ, entry.job)
        if not any(stop_line(os.environ, each) for each in lines):
            stop(entry, ledger)
        said, done = ("stopped",) * 2 if isinstance(entry, Lease) else ("no longer waits:", "dequeued")
        return f"{said} {entry.job}  {entry.name or entry.command}", {"done": done}

    return for_each(words, find, act, quiet=quiet, as_json=as_json) if words else EX_OK


def _cancel(line: QueuedLine) -> tuple[str, dict[str, Any]]:
    """Cancel a line of a jobs file that has not begun."""
    if not stop_line(os.environ, line):
        hint = "if it is on simulated GPUs, set SLICER_SIM as for its queue"
        raise UnknownJob(f"{line.label} has begun, and is not a job of this ledger", hint=hint)
    return f"no longer waits: {line.label}", {"job": None, "name": line.label, "done": "dequeued"}


def _expanded(words: tuple[str, ...], there: list[KnownJob], *, mine: bool) -> tuple[str, ...]:
    """The words, with the ids of jobs in place of patterns. A pattern without a match stays a word."""
    if not mine and all(_PATTERN.isdisjoint(word) for word in words):
        return words
    found = [each.job for each in there if mine and each.uid == os.geteuid()]
    for word in words:
        is_name = any(each.name == word for each in there)
        alike = [each.job for each in there if each.name and fnmatchcase(each.name, word)]
        found += [word] if is_name or _PATTERN.isdisjoint(word) else alike or [word]
    return tuple(dict.fromkeys(found))


def _end_wait(known: KnownJob) -> None:
    """End a detached job that waits for others. Raises StillRunning."""
    assert known.file is not None
    signal_process(known.file.pid, known.file.pid_start, os.geteuid(), signal.SIGTERM)
    for _ in ends([known], DEADLINE_S):
        pass
