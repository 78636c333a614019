"""Finds the job that a word names, for all commands, whether it runs, waits, or has ended.

A word is an id, a prefix of an id, a unit, a name, or a line of a jobs file as in jobs.txt#7. Living jobs
take precedence over ended ones. If several ended jobs have the name, the newest is meant. Only a running
queue knows the lines of its jobs file that have not begun (:mod:`slicer.queue.control.client`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from slicer.cli import say
from slicer.cli.history_find import find_outcomes
from slicer.cli.named_jobs import found_among, known_jobs
from slicer.errors import StateError
from slicer.job.find import meant, only, pick
from slicer.kernel import proc
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.model import Lease, Outcome, Ticket, job_of_unit
from slicer.outcome import history, job_files, kept
from slicer.outcome.job_files import DetachedJob
from slicer.queue.control.client import lines_meant
from slicer.queue.control.messages import QueuedLine
from slicer.record import record, replace
from slicer.text import command_text

_MOST_ENDED = 200  # jobs whose ids are compared with a prefix


@record
class KnownJob:
    """A job that a word names. At least one of the last four fields is set."""

    job: str  # of a line that never began: jobs.txt#7
    name: str
    pid: int  # of its supervisor, or its queue; 0 unknown
    command: str  # for people
    entry: Lease | Ticket | None = None  # it runs, or waits for its lease
    file: DetachedJob | None = None  # it was detached, or waits for others
    outcome: Outcome | None = None  # it has run and ended
    line: QueuedLine | None = None  # its queue runs, and the word means the line rather than an attempt

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return self.job if self.line is None else f"{self.line.log_dir} {self.line.key}"

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits for other jobs or its time, and neither runs nor waits for its lease."""
        has_begun = self.entry is not None or self.outcome is not None
        return not has_begun and self.file is not None and self.file.begins_later and self.file.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether it neither runs nor waits."""
        if self.line is not None or self.entry is not None:
            return self.line is not None and self.line.is_final
        return self.outcome is not None or self.file is None or not self.file.is_alive()

    @property
    def began_at(self) -> float:
        """When it was detached or else started, in seconds since the epoch; 0 if unknown here."""
        if self.line is not None:
            return self.line.began_at
        return self.file.began_at if self.file else self.outcome.started_at if self.outcome else 0.0

    @property
    def uid(self) -> int:
        """The owner. Files and outcomes here are always the caller's own."""
        return self.entry.uid if self.entry is not None else os.geteuid()

    @property
    def label(self) -> str:
        """The text by which people know it."""
        return self.name or self.command or self.job


class KnownJobs:
    """The jobs at one moment. Raises StateError."""

    def __init__(self, warn: Callable[[str], None] = say.line) -> None:
        self._warn = warn
        self.ledger: Ledger | None
        self.ledger, self._mine, self._others = known_jobs(warn)
        self._unwritten: list[Outcome] = []
        if self.ledger is not None:
            self._unwritten = kept.settle(self.ledger.directory.base, history.default_path(), warn)
        self._files: dict[str, DetachedJob] = {}
        try:
            self._files = {file.job: file for file in job_files.known(os.environ, warn)}
        except StateError as error:  # other jobs are found without the files
            warn(str(error))
        self.living = living(self._mine, self._files.values())

    def find(self, word: str) -> KnownJob:
        """The job that the word names. Raises UnknownJob, AmbiguousJob, NotYours."""
        lines = self._lines(word)
        still = [line for line in lines if not line.is_final]
        found = [self._of_line(line, is_alone=len(still) == 1) for line in still]
        found += [each for each in meant(word, self.living) if not any(_is(each, line) for line in still)]
        if found:
            return only(word, found)
        ended = self._ended(word, [self._of_line(line, is_alone=False) for line in lines])
        return ended or found_among(word, self._mine, self._others, self._picked)

    def _picked(self, word: str, seen: Snapshot) -> KnownJob:
        return pick(word, living(seen, self._files.values()))

    def _lines(self, word: str) -> list[QueuedLine]:
        """The lines of running queues that have this name or label; an id names an attempt."""
        try:
            found = lines_meant(os.environ, word)
        except StateError as error:  # other jobs are found without the queues
            self._warn(str(error))
            return []
        return [line for line in found if word in (line.name, line.label)]

    def _of_line(self, line: QueuedLine, *, is_alone: bool) -> KnownJob:
        """``is_alone``: no other line could be the one whose ticket has its name."""
        for each in self.living:
            if _is(each, line) and (is_alone or each.job == line.job):
                return replace(each, line=line)
        if line.is_final and line.job:
            for outcome in outcomes_of(line.job):
                return of_outcome(outcome, None)
        name = line.name or line.label
        job = line.label if line.status == "pending" else line.job or line.label
        return KnownJob(job, name, line.pid, line.command, line=line)

    def _ended(self, word: str, lines: list[KnownJob]) -> KnownJob | None:
        outcomes = [*self._unwritten, *outcomes_of(word)]
        known = {outcome.job for outcome in outcomes}
        files = [file for file in self._files.values() if file.job not in known and not file.is_alive()]
        ended = [of_outcome(outcome, self._files.get(outcome.job)) for outcome in outcomes]
        ended += map(_of_file, files)
        ids = [each for each in ended if each.job == job_of_unit(word)]
        named = ids or [*lines, *(each for each in ended if each.name and each.name == word)]
        found = [max(named, key=lambda each: each.began_at)] if named else []
        if not ids:
            found += [each for each in meant(word, ended) if each not in named]
        return only(word, found) if found else None


def living(mine: Snapshot, files: Iterable[DetachedJob]) -> list[KnownJob]:
    """The jobs that run or wait, each once."""
    detached = {file.job: file for file in files}
    entries: tuple[Lease | Ticket, ...] = (*mine.leases, *mine.tickets)
    found = [
        KnownJob(each.job, each.name, each.pid, each.command, each, detached.pop(each.job, None))
        for each in entries
    ]
    return found + [_of_file(file) for file in detached.values() if file.is_alive()]


def of_outcome(outcome: Outcome, file: DetachedJob | None) -> KnownJob:
    command = command_text(outcome.command)
    return KnownJob(outcome.job, outcome.name, 0, command, file=file, outcome=outcome)


def _of_file(file: DetachedJob) -> KnownJob:
    return KnownJob(file.job, file.name, file.pid, command_text(file.command), file=file)


def _is(known: KnownJob, line: QueuedLine) -> bool:
    """Whether the living job is an attempt of the line, or the ticket of its kind that has its name."""
    entry = known.entry
    is_alike = isinstance(entry, Ticket) and known.name == (line.name or line.label)
    is_ticket = is_alike and line.status == "pending" and proc.parent(known.pid) == line.pid
    return known.job == line.job or is_ticket


def output_of(known: KnownJob) -> str:
    """The path of the job's output; "" if it is unknown, or not a file."""
    if known.line is not None:
        return known.line.log
    said = known.outcome or known.file
    if said is not None and said.log:
        return said.log
    # The keeper of a queue's job has it as stderr only.
    if not isinstance(known.entry, Lease):
        return ""
    for fd in (1, 2):
        try:
            path = os.readlink(f"/proc/{known.entry.pid}/fd/{fd}")
        except OSError:
            return ""
        if path != os.devnull:
            return path if path.startswith("/") else ""
    return ""


def outcomes_of(word: str | None, **limits: Any) -> list[Outcome]:
    """As :func:`find_outcomes`; none if the history is broken, which is said."""
    try:
        return find_outcomes(history.default_path(), word, limit=_MOST_ENDED, **limits)
    except StateError as error:
        say.line(str(error))
        return []
