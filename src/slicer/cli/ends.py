"""Waits for the ends of jobs, whether they run, wait, or have ended already."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from slicer.broker import accounts
from slicer.cli import say
from slicer.cli.job_register import KnownJob
from slicer.errors import EX_SLICER, EX_TIMEOUT, SlicerError, StateError
from slicer.kernel import proc
from slicer.kernel.sleep import soonest, until_readable
from slicer.ledger.ledger import Ledger
from slicer.ledger.status import existing_ledger
from slicer.model import Lease, Outcome, Ticket
from slicer.outcome import history, job_files, kept
from slicer.queue.control.line_watch import LineWatch
from slicer.queue.control.messages import QueuedLine
from slicer.queue.model import UNBEGUN
from slicer.record import record, replace

_UNSEEN_S = 0.5  # if supervisor and keeper were killed, no event announces the scope's end
_SETTLES_S = 1.0  # the outcome may be written a moment after its writer's last sign of life


class StillRunning(SlicerError):
    """A job has not ended in time (exit code 124)."""

    exit_code = EX_TIMEOUT
    kind = "still-there"


@record
class Ended:
    """How a job ended. Without an outcome, its command did not run, or its end is unknown."""

    known: KnownJob
    exit_code: int
    outcome: Outcome | None
    why: str = ""

    @property
    def text(self) -> str:
        """As in "train: exit 3 · 12m"."""
        called = self.known.name or self.known.job
        if self.outcome is not None:
            text = say.describe_outcome(self.outcome)
            return text if self.known.name else f"{called} {text}"
        return f"{called}: exit {self.exit_code}" + (f" ({self.why})" if self.why else "")


def ends(
    jobs: Sequence[KnownJob], timeout_s: float | None = None, mask: frozenset[int] | None = None
) -> Iterator[Ended]:
    """The jobs in the order of their ends, each once. Raises StillRunning after ``timeout_s`` seconds.

    ``mask`` is the signal mask during sleep.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    left = {
        known.key: Awaited(known) if known.line is None else AwaitedLine(known, known.line) for known in jobs
    }
    ledger = existing_ledger(os.environ, say.line)
    while True:
        seen = SeenJobs(ledger)
        for awaited in list(left.values()):
            found = awaited.look(seen)
            if found is not None:
                del left[awaited.known.key]
                yield found
        if not left:
            return
        left_s = None if end is None else max(0.0, end - time.monotonic())
        if left_s == 0.0:
            names = ", ".join(each.known.name or each.known.job for each in left.values())
            raise StillRunning(f"after {timeout_s:g} s: {names} has not ended", where="--timeout")
        asleep(list(left.values()), left_s, mask)
        if ledger is None:
            ledger = existing_ledger(os.environ, say.line)


def asleep(
    awaited: Sequence[Awaited | AwaitedLine | LineWatch], limit_s: float | None,
    mask: frozenset[int] | None = None, others: Sequence[int] = (),
) -> frozenset[int]:  # fmt: skip
    """Sleep until something happens to one of the jobs, or one of the ``others`` is readable.

    Returns the readable ones of the ``others``.
    """
    descriptors = [fd for each in awaited for fd in each.descriptors]
    due = soonest(limit_s, *(each.due_s for each in awaited))
    return until_readable([*descriptors, *others], due, mask) & frozenset(others)


class SeenJobs:
    """The ledger at one moment, read once for all jobs that are awaited. Raises StateError."""

    def __init__(self, ledger: Ledger | None) -> None:
        self.entries: dict[str, Lease | Ticket] = {}
        self.unwritten: dict[str, Outcome] = {}  # that the history has no room for
        if ledger is not None:
            self.entries.update((each.job, each) for each in ledger.snapshot().entries)
            kept_ones = kept.settle(ledger.directory.base, history.default_path(), lambda _: None)
            self.unwritten.update((each.job, each) for each in kept_ones)


class Awaited:
    """A job whose end is awaited, through the ends of its supervisor and keeper."""

    def __init__(self, known: KnownJob) -> None:
        self.known = known
        self.descriptors: list[int] = []  # pidfds
        self.due_s: float | None = None  # when to look again without an event
        self._gone_at: float | None = None  # since when no trace of it has been found

    def look(self, seen: SeenJobs) -> Ended | None:
        """How it ended; None: it has not. Raises StateError."""
        self.close()
        known, outcome = self.known, self.known.outcome
        if outcome is None:
            entry = seen.entries.get(known.job)  # a request at the broker is followed by its process
            self.descriptors = self._processes(entry)
            found = history.read(history.default_path(), limit=1, job=known.job)
            outcome = seen.unwritten.get(known.job) or next(iter(found), None)
            if outcome is None:
                return self._ended_without(is_there=entry is not None)
            self.close()
        return Ended(known, outcome.exit_code, outcome)

    def _processes(self, entry: Lease | Ticket | None) -> list[int]:
        """Pidfds of its supervisor and keeper, if they live."""
        known, found = self.known, set[tuple[int, int]]()
        for each in (known.file, known.entry, entry):
            if each is not None and each.boot_id == proc.boot_id():
                found.add((each.pid, each.pid_start))
        if isinstance(entry, Lease) and entry.keeper:
            found.add((entry.keeper, proc.start_time(entry.keeper) or 0))
        return [fd for process in found if (fd := proc.open_process(*process)) is not None]

    def _ended_without(self, *, is_there: bool) -> Ended | None:
        """The end of a job without an outcome, from its file, once nothing of the job is left."""
        self.due_s = None
        if self.descriptors:
            self._gone_at = None
            return None
        now = time.monotonic()
        if is_there:
            self.due_s, self._gone_at = _UNSEEN_S, None
            return None
        known, file = self.known, self._file()
        theirs = self._by_broker() if known.uid != os.geteuid() else None
        if theirs is not None:
            return Ended(known, theirs, None)
        if file is not None and file.exit_code is not None:
            return Ended(known, file.exit_code, None, file.why)
        if self._gone_at is None:
            self._gone_at = now
        if now - self._gone_at < _SETTLES_S:
            self.due_s = _UNSEEN_S
            return None
        return Ended(known, EX_SLICER, None, file.unseen if file is not None else job_files.KILLED)

    def _by_broker(self) -> int | None:
        """The exit code of another user's job, for root; None: the broker does not know it (yet)."""
        found = accounts.jobs(accounts.PATH, limit=1, job=self.known.job)
        return found[0].exit_code if found else None

    def _file(self) -> job_files.DetachedJob | None:
        if self.known.file is None:
            return None
        try:
            return job_files.of_job(os.environ, self.known.job)
        except StateError:
            return None  # reported before

    def close(self) -> None:
        """Close the descriptors. Safe to repeat."""
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []


class AwaitedLine:
    """A line of a jobs file whose end is awaited, through all its attempts."""

    def __init__(self, known: KnownJob, line: QueuedLine) -> None:
        self.known = known
        self._watch: LineWatch | Awaited = LineWatch(os.environ, line, "ended")

    @property
    def descriptors(self) -> list[int]:
        return self._watch.descriptors

    @property
    def due_s(self) -> float | None:
        return self._watch.due_s

    def look(self, seen: SeenJobs) -> Ended | None:
        """How it ended; None: it has not. Raises StateError."""
        if isinstance(self._watch, LineWatch):
            line = self._watch.look()
            if line is None:
                return None
            if line.status != "running":
                return _ended_line(self.known, line)
            self._watch = attempt(self.known, line)  # the queue was killed
        return self._watch.look(seen)


def attempt(known: KnownJob, line: QueuedLine) -> Awaited:
    return Awaited(replace(known, job=line.job, line=None))


def _ended_line(known: KnownJob, line: QueuedLine) -> Ended:
    has_run = line.status not in UNBEGUN
    outcomes = history.read(history.default_path(), limit=1, job=line.job) if has_run and line.job else []
    why = "" if outcomes else line.reason or line.status
    known = replace(known, job=line.job)  # "" if it never began
    return Ended(known, line.code_for_others, outcomes[0] if outcomes else None, why)
