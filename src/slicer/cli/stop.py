"""``slicer stop``: ends jobs and queues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import click

from slicer.cli import complete
from slicer.cli.common import meant
from slicer.cli.ends import ends
from slicer.cli.job_register import JobRegister, KnownJob, elsewhere, outcomes_of
from slicer.cli.named_jobs import Done, carry_out, each_found
from slicer.cli.queue.stop import end_of, tell_to_leave
from slicer.config.properties import parse_signal
from slicer.errors import EX_OK, SlicerError, UsageError
from slicer.job.stop import DEADLINE_S, Manner, await_end, signal_process, tell_to_end, withdraw
from slicer.kernel import proc
from slicer.kernel.signals import LONGEST_GRACE_S
from slicer.model import Lease
from slicer.quantity import parse_duration
from slicer.queue.control import client
from slicer.queue.control.client import Asked, lines_meant, stop_line
from slicer.queue.control.messages import QueuedLine
from slicer.text import counted

_PATTERN = frozenset("*?[")


@click.command(
    "stop",
    epilog="""\
\b
Examples:
  slicer stop train          the job of that name
  slicer stop 3f2a 7d0d      two jobs, by the beginnings of their ids
  slicer stop 'train*'       all jobs with such a name
  slicer stop --mine         all your jobs that run or wait, and your queues
  slicer stop jobs.txt       a queue with its jobs: slicer queue stop jobs.txt
  slicer stop --grace 10m train
                             it has 10 minutes for a last checkpoint
  slicer stop slicer-3f2a9c01b7de.scope
                             by the unit, as in systemctl

\b
Exit codes:
    0  all of them have ended, perhaps before
    2  no such job, an ambiguous name, or another user's job; all others were
       stopped
  124  a job did not end within 2 minutes
  125  a job could not be stopped, because systemd refused""",
)
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=complete.jobs)
@click.option("--mine", is_flag=True, help="All jobs of this user that run or wait, and all queues.")
@click.option("--signal", "said_signal", metavar="SIGNAL", help="The signal for the command, as in USR1.")
@click.option("--grace", "said_grace", metavar="DURATION", help="The time for the command, as in 10m.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    jobs: tuple[str, ...], quiet: bool, as_json: bool, said_signal: str | None, said_grace: str | None,
    mine: bool = False,
) -> int:  # fmt: skip
    """End jobs, and wait until they have released their resources.

    JOB is a job's id (or at least its first four characters), its name, its unit, as in `slicer status`, a
    shell pattern for names, or the file of a running queue. Nothing that has not begun begins any more: jobs
    that wait, for their turn or for others, and lines of jobs files (by name, or as in jobs.txt#7) are taken
    out first. Then the others end. A job's command gets SIGTERM, or the profile's stop_signal, and time to
    end (its grace); then its other processes get SIGTERM, and SIGKILL after the stop timeout (10s, or the
    profile's TimeoutStopSec). A paused job is resumed, so that it can end.
    """
    if not jobs and not mine:
        with suppress(SlicerError):
            JobRegister().find(None)  # is only said: a script's list of jobs may be empty
        raise click.UsageError("missing argument: JOB or --mine", click.get_current_context())
    manner = _manner(said_signal, said_grace)
    with client.queues(os.environ) as queues:
        stopping = _Stopping(jobs, manner, queues, mine=mine, as_json=as_json)
        return max(carry_out(stopping.acts(), quiet=quiet, as_json=as_json), stopping.code)


class _Stopping:
    """One call. What has not begun is withdrawn before the first job ends, so that it cannot begin then."""

    def __init__(
        self, words: tuple[str, ...], manner: Manner, queues: list[Asked], *, mine: bool, as_json: bool
    ) -> None:  # fmt: skip
        """Raises UsageError for the file of several queues."""
        by_file = {word: found for word in words if (found := client.of_file(queues, word))}
        self._leaving = list(queues) if mine else list(dict.fromkeys(by_file.values()))
        self._others = [each for each in queues if each not in self._leaving]
        self._words = [word for word in words if word not in by_file]
        self._manner = manner
        self._mine = mine
        self._as_json = as_json
        self._with_queue: set[str] = set()  # jobs that their queues end
        self._by_pattern: set[str] = set()  # patterns by which lines were withdrawn
        self._begun: list[tuple[KnownJob, Lease]] = []
        self._failed: dict[str, SlicerError] = {}  # by job, why it could not be told to end
        self.code = EX_OK  # of the words that name no job

    def acts(self) -> Iterator[Callable[[], Done | None]]:
        """The steps, in their order. Each one begins when the one before has ended."""
        yield self._tell_queues
        for word in filter(_is_pattern, self._words):
            yield from (partial(self._withdraw_lines, each, word) for each in self._others)
        self._jobs = jobs = JobRegister()
        words = self._expanded(jobs.living)
        found, self.code = each_found(words, jobs.find, as_json=self._as_json)
        ended = [each for each in found if each.state == "ended"]
        yield from (partial(_tell_ended, each) for each in ended)
        found = [each for each in found if each not in ended]
        yield partial(_tell_files, [each for each in found if each.entry is None and each.line is None])
        for each in found:
            if isinstance(each.entry, Lease):
                self._begun.append((each, each.entry))
            else:
                yield partial(self._withdraw, each)
        yield self._tell_begun
        yield from (partial(self._await, *each) for each in self._begun)
        yield from (partial(end_of, each) for each in self._leaving)

    def _expanded(self, living: list[KnownJob]) -> list[str]:
        """The words, with the ids of jobs in place of patterns. A pattern without a match stays a word.

        Of those that have ended it means the last.
        """
        leaving = {each.pid for each in self._leaving}
        queues = leaving | {each.pid for each in self._others}
        mine = [each for each in living if self._mine and each.uid == os.geteuid()]
        found = [each.job for each in mine if each.pid not in leaving and each.job not in self._with_queue]
        for word in self._words:
            if not _is_pattern(word) or any(each.name == word for each in living):
                found.append(word)
                continue
            alike = [each for each in living if each.name and fnmatchcase(each.name, word)]
            # The ticket of a queue is its line's, which was withdrawn.
            jobs = [
                each.job
                for each in alike
                if isinstance(each.entry, Lease) or proc.parent(each.pid) not in queues
            ]
            if not jobs and not alike and word not in self._by_pattern:
                jobs = [each.job for each in outcomes_of(None, name=word)[:1]] or [word]
            found += jobs
        return list(dict.fromkeys(found))

    # -- what has not begun ----------------------------------------------------------------------------------

    def _tell_queues(self) -> None:
        for each in self._leaving:
            self._with_queue.update(tell_to_leave(each))

    def _withdraw_lines(self, asked: Asked, pattern: str) -> Done | None:
        answer = asked.ask("withdraw", pattern=pattern)
        if not answer["count"]:
            return None
        self._by_pattern.add(pattern)
        text = f"no longer waits: {counted(answer['count'], 'line')} of {answer['file']}"
        return text, {"job": None, "name": pattern, "done": "dequeued", "lines": answer["count"]}

    def _withdraw(self, known: KnownJob) -> Done | None:
        if known.entry is None and known.line is not None:
            return _cancel(known.line)
        if known.entry is None:
            for _ in ends([known], DEADLINE_S):
                pass
        elif not isinstance(known.entry, Lease):
            lease = withdraw(known.entry, self._jobs.ledger)
            if lease is not None:
                self._begun.append((known, lease))
                return None
        return f"no longer waits: {known.job}  {known.label}", _data(known, "dequeued")

    # -- what has begun --------------------------------------------------------------------------------------

    def _tell_begun(self) -> None:
        for _, lease in self._begun:
            try:
                # A job of a queue has no process of its own while it is being started.
                lines = [] if lease.keeper else lines_meant(os.environ, lease.job)
                if not any(stop_line(os.environ, each) for each in lines):
                    tell_to_end(lease, self._jobs.ledger, self._manner)
            except SlicerError as failure:
                self._failed[lease.job] = failure

    def _await(self, known: KnownJob, lease: Lease) -> Done:
        if lease.job in self._failed:
            raise self._failed[lease.job]
        await_end(lease, self._jobs.ledger, self._manner)
        if known.file is not None:
            _tell_files([known])  # it may have ended by itself just before, and run again
        return f"stopped {known.job}  {known.label}", _data(known, "stopped")


def _data(known: KnownJob, done: str) -> dict[str, Any]:
    return {"job": known.job, "name": known.name or None, "done": done}


def _tell_ended(known: KnownJob) -> Done:
    return f"has ended: {known.job}  {known.label}", _data(known, "ended")


def _tell_files(files: list[KnownJob]) -> None:
    """End the detached jobs that wait for others, or to run again."""
    for each in files:
        assert each.file is not None
        signal_process(each.file.pid, each.file.pid_start, os.geteuid(), signal.SIGTERM)


def _cancel(line: QueuedLine) -> Done:
    if not stop_line(os.environ, line):
        raise elsewhere(line)
    return f"no longer waits: {line.label}", {"job": None, "name": line.label, "done": "dequeued"}


def _manner(said_signal: str | None, said_grace: str | None) -> Manner:
    signo = 0 if said_signal is None else meant(parse_signal, said_signal, "--signal")
    grace_s = None
    if said_grace is not None:
        grace_s = round(meant(parse_duration, said_grace, "--grace", "for example 2m") / 1e6)
        if grace_s > LONGEST_GRACE_S:
            raise UsageError(f"{said_grace}: expected at most 194 days", where="--grace")
    return Manner(signo, grace_s)


def _is_pattern(word: str) -> bool:
    return not _PATTERN.isdisjoint(word)
