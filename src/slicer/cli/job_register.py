"""The register of jobs, for all commands: which one a word names, where it is, and how it ended.

A word is an id, a prefix of an id, a unit, a name, or a line of a jobs file as in jobs.txt#7. Living jobs
take precedence over ended ones. If several ended jobs have the name, the newest is meant. Without a word, it
is the user's last job. Only a running queue knows the lines of its jobs file that have not begun
(:mod:`slicer.queue.control.client`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from slicer.broker.client import standing
from slicer.cli import say
from slicer.errors import StateError
from slicer.job.find import SHORTEST_PREFIX, AmbiguousJob, NotRunning, NotYours, UnknownJob, meant, only, pick
from slicer.kernel import proc
from slicer.kernel.epoch import epoch_s
from slicer.kernel.users import user_name
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.ledger.status import PATIENCE_S, existing_ledger
from slicer.model import Lease, Outcome, Ticket, job_of_unit
from slicer.outcome import history, job_files, kept
from slicer.outcome.job_files import DetachedJob
from slicer.queue.control.client import lines_meant
from slicer.queue.control.messages import QueuedLine
from slicer.record import record, replace
from slicer.state import standings, statedir
from slicer.text import command_text, quote

_MOST_ENDED = 200  # jobs whose ids are compared with a prefix

State = Literal["after", "waiting", "running", "ended"]  # "after": it waits for others or its time


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
    def state(self) -> State:
        entry, file, line = self.entry, self.file, self.line
        if line is not None and (line.is_final or entry is None):
            return "ended" if line.is_final else "waiting" if line.status == "pending" else "running"
        if entry is not None:
            return "running" if isinstance(entry, Lease) else "waiting"
        if self.outcome is not None or file is None or not file.is_alive():
            return "ended"
        return "after" if file.begins_later else "running"  # about to have its lease, or to end

    @property
    def began_at(self) -> float:
        """When it was detached, else asked for its lease, got that or started; in seconds since the epoch."""
        told = self.line or self.file
        if told is not None or self.entry is None:
            return told.began_at if told is not None else self.outcome.started_at if self.outcome else 0.0
        since_s = self.entry.since_s if isinstance(self.entry, Lease) else self.entry.arrived_s
        return epoch_s(since_s)

    @property
    def uid(self) -> int:
        """The owner. Files and outcomes here are always the caller's own."""
        return self.entry.uid if self.entry is not None else os.geteuid()

    @property
    def label(self) -> str:
        """The text by which people know it."""
        return self.name or self.command or self.job

    @property
    def output(self) -> str:
        """The path of the job's output; "" if it is unknown, or not a file."""
        if self.line is not None:
            return self.line.log
        said = self.outcome or self.file
        if said is not None and said.log:
            return said.log
        if not isinstance(self.entry, Lease):
            return standings.log_of(os.environ, self.name) if self.uid == os.geteuid() else ""
        for fd in (1, 2):  # the keeper of a queue's job has it as stderr only
            try:
                path = os.readlink(f"/proc/{self.entry.pid}/fd/{fd}")
            except OSError:
                return ""
            if path != os.devnull:
                return path if path.startswith("/") else ""
        return ""


class SeenLedger:
    """The user's own ledger as last seen. Without one, it is empty."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.ledger: Ledger | None = None
        self.jobs = Snapshot((), ())
        self.entries: dict[str, Lease | Ticket] = {}  # by job
        self.unwritten: list[Outcome] = []  # that the history has no room for
        self._warn = warn

    def look(self) -> SeenLedger:
        """Look again, and put into the history what is kept for it. Raises StateError."""
        self.ledger = self.ledger or existing_ledger(os.environ, self._warn)
        if self.ledger is not None:
            self.jobs = self.ledger.snapshot()  # notices jobs that were killed together with slicer
            self.entries = {each.job: each for each in self.jobs.entries}
            self.unwritten = kept.settle(self.ledger.directory.base, history.default_path(), self._warn)
        return self


class JobRegister:
    """The jobs at one moment. ``living``: those that run or wait, each once. Raises StateError."""

    def __init__(self, warn: Callable[[str], None] = say.line) -> None:
        self._warn = warn
        seen = SeenLedger(warn).look()
        self._ledger, self._unwritten = seen.ledger, seen.unwritten
        entries, uid = standing.jobs(os.environ, seen.jobs, warn).entries, os.geteuid()
        self._others = [each for each in entries if uid not in (0, each.uid)]
        self._files: dict[str, DetachedJob] = {}
        try:
            self._files = {file.job: file for file in job_files.known(os.environ, warn)}
        except StateError as error:  # other jobs are found without the files
            warn(str(error))
        detached = dict(self._files)
        self.living = [
            KnownJob(each.job, each.name, each.pid, each.command, each, detached.pop(each.job, None))
            for each in entries
            if uid in (0, each.uid)
        ]
        self.living += [_of_file(file) for file in detached.values() if file.is_alive()]

    @property
    def ledger(self) -> Ledger:
        """The user's own, which records acts on jobs; made if there is none yet. Raises StateError."""
        if self._ledger is None:
            self._ledger = Ledger(statedir.locate(os.environ, os.geteuid()), self._warn)
            self._ledger.patience_s = PATIENCE_S
        return self._ledger

    def find(self, word: str | None) -> KnownJob:
        """The job that the word names; None: the last. Raises UnknownJob, AmbiguousJob, NotYours."""
        if word is None:
            return self._last()
        lines = self._lines(word)
        still = [line for line in lines if not line.is_final]
        found = [self._of_line(line, is_alone=len(still) == 1) for line in still]
        found += [each for each in meant(word, self.living) if not any(_is(each, line) for line in still)]
        if found:
            return only(word, found)
        ended = meant(word, self._ended(word))
        named = [self._of_line(line, is_alone=False) for line in lines]
        named += [each for each in ended if each.name == word]
        found = sorted(named, key=lambda each: each.began_at)[-1:]
        found += [each for each in ended if each.name != word]
        if found:
            return only(word, found)
        theirs = meant(word, self._others)
        if theirs:
            owner = user_name(theirs[0].uid)
            raise NotYours(f"{word!r} is a job of {owner}", hint=f"only {owner} and root may do that")
        return pick(word, self.living)  # says which name is near

    def running(self, word: str) -> Lease:
        """The lease of the job that the word names. Raises NotRunning if it waits, and as :meth:`find`."""
        known = self.find(word)
        if isinstance(known.entry, Lease):
            return known.entry
        if known.state == "ended":
            raise UnknownJob(f"{word!r} has ended", hint=f"slicer history {quote(word)}")
        if known.line is not None and known.state == "running":
            raise elsewhere(known.line)
        name = known.name or known.job
        hint = f"slicer stop {name} takes it out of the queue"
        raise NotRunning(f"{name} waits, and has no process yet", hint=hint)

    def ended(self, word: str) -> Outcome:
        """The outcome of the job that the word names. Raises as :meth:`find`, also if there is none."""
        known = self.find(word)
        if known.outcome is None:
            how = "never ran" if known.state == "ended" else "has not ended"
            raise UnknownJob(f"{known.label} {how}", hint=f"slicer show {quote(word)}")
        return known.outcome

    def _last(self) -> KnownJob:
        """The user's job that began last, whether it waits, runs or has ended. Says which."""
        mine = [each for each in self.living if each.uid == os.geteuid()]
        found = max([*mine, *self._ended(None)], key=lambda each: each.began_at, default=None)
        if found is None:
            raise UnknownJob("you have no job yet", hint="slicer run -- COMMAND starts one")
        self._warn(f"last job: {found.job} {found.label}")
        return found

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

    def _ended(self, word: str | None) -> list[KnownJob]:
        """Those that have ended, among them all that the word names; None: the last ones."""
        outcomes = [*self._unwritten, *outcomes_of(word)]
        known = {outcome.job for outcome in outcomes}
        files = [file for file in self._files.values() if file.job not in known and not file.is_alive()]
        return [*(of_outcome(each, self._files.get(each.job)) for each in outcomes), *map(_of_file, files)]


def of_outcome(outcome: Outcome, file: DetachedJob | None) -> KnownJob:
    command = command_text(outcome.command)
    return KnownJob(outcome.job, outcome.name, 0, command, file=file, outcome=outcome)


def _of_file(file: DetachedJob) -> KnownJob:
    return KnownJob(file.job, file.name, file.pid, command_text(file.command), file=file)


def elsewhere(line: QueuedLine) -> UnknownJob:
    """The error for a running line without a lease."""
    hint = "if it is on simulated GPUs, set SLICER_SIM as for its queue"
    return UnknownJob(f"{line.label} has begun, and is not a job of this ledger", hint=hint)


def _is(known: KnownJob, line: QueuedLine) -> bool:
    """Whether the living job is an attempt of the line, or the ticket of its kind that has its name."""
    entry = known.entry
    is_alike = isinstance(entry, Ticket) and known.name == (line.name or line.label)
    is_ticket = is_alike and line.status == "pending" and proc.parent(known.pid) == line.pid
    return known.job == line.job or is_ticket


# -- of a history -------------------------------------------------------------------------------------------


def settle() -> None:
    """Put into the history what the ledger keeps for it; says what it has no room for. Raises StateError."""
    left = SeenLedger(say.line).look().unwritten
    if left:
        say.line(f"not in the history yet: {', '.join(each.name or each.job for each in left)}")


def outcomes_of(word: str | None, **limits: Any) -> list[Outcome]:
    """The outcomes of the jobs that the word names; none if the history is broken, which is said.

    ``limits`` are arguments of :func:`slicer.outcome.history.read`. Raises AmbiguousJob.
    """
    path = history.default_path()
    try:
        return history.read(path, limit=_MOST_ENDED, **filters(partial(history.read, path), word, limits))
    except StateError as error:
        say.line(str(error))
        return []


def attempts_of(line: QueuedLine) -> list[Outcome]:
    """The outcomes of the line's attempts that have ended, the first one first."""
    named = outcomes_of(None, name=_literal(line.name or line.label))
    return [each for each in reversed(named) if each.log.startswith(f"{line.log_dir}/")]


def filters(read: Callable[..., list[Any]], word: str | None, limits: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which ``read`` finds the ended jobs that the word names. Raises AmbiguousJob."""
    if word is None:
        return limits
    job = job_of_unit(word)
    by_id = {**limits, "job": job}
    begun = read(**{**by_id, "limit": 1}) if len(job) >= SHORTEST_PREFIX else []
    if limits.get("name") or (begun and begun[0].job == job):
        return by_id
    by_name = {**limits, "name": _literal(word)}
    named = read(**{**by_name, "limit": 1})
    if named and begun and begun[0].name != word:
        which = f"{named[0].job}, which has that name, and {begun[0].job}"
        raise AmbiguousJob(f"{word!r} could be {which}", hint="give the id")
    return by_id if begun else by_name


def _literal(name: str) -> str:
    """A pattern that matches only this name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
