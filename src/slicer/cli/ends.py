"""Waits for the ends of jobs, whether they run, wait, or have ended already."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from slicer.broker import accounts
from slicer.cli import say
from slicer.cli.job_register import KnownJob, SeenLedger
from slicer.errors import EX_SLICER, EX_TIMEOUT, SlicerError, StateError
from slicer.kernel import proc
from slicer.kernel.sleep import soonest, until_readable
from slicer.model import Lease, Outcome, Ticket
from slicer.outcome import history, job_files
from slicer.queue.control.client import lines_meant
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
    left = {known.key: Awaited(known) for known in jobs}
    seen = SeenLedger(lambda _: None)
    while True:
        seen.look()
        for key, awaited in list(left.items()):
            found = awaited.look(seen)
            if found is not None:
                del left[key]
                yield found
        if not left:
            return
        left_s = None if end is None else max(0.0, end - time.monotonic())
        if left_s == 0.0:
            names = ", ".join(each.known.name or each.known.job for each in left.values())
            raise StillRunning(f"after {timeout_s:g} s: {names} has not ended", where="--max-wait")
        asleep(list(left.values()), left_s, mask)


def asleep(
    awaited: Sequence[Awaited | LineWatch], limit_s: float | None,
    mask: frozenset[int] | None = None, others: Sequence[int] = (),
) -> frozenset[int]:  # fmt: skip
    """Sleep until something happens to one of the jobs, or one of the ``others`` is readable.

    Returns the readable ones of the ``others``.
    """
    descriptors = [fd for each in awaited for fd in each.descriptors]
    due = soonest(limit_s, *(each.due_s for each in awaited))
    return until_readable([*descriptors, *others], due, mask) & frozenset(others)


class Awaited:
    """A job whose end is awaited, by the ends of its supervisor and keeper; or a line, by its queue."""

    def __init__(self, known: KnownJob, *, is_attempt: bool = False) -> None:
        """``is_attempt``: of a line, only this attempt, and not all to come."""
        self.known = known
        line = None if is_attempt else known.line
        self._watch = None if line is None else LineWatch(os.environ, line, "ended")
        self._pidfds: list[int] = []
        self._due_s: float | None = None
        self._gone_at: float | None = None  # since when no trace of it has been found

    @property
    def descriptors(self) -> list[int]:
        return self._pidfds if self._watch is None else self._watch.descriptors

    @property
    def due_s(self) -> float | None:
        """When to look again without an event."""
        return self._due_s if self._watch is None else self._watch.due_s

    def look(self, seen: SeenLedger) -> Ended | None:
        """How it ended; None: it has not. Raises StateError."""
        if self._watch is not None:
            line = self._watch.look()
            if line is None:
                return None
            if line.status != "running":
                return _ended_line(self.known, line)
            self.known, self._watch = replace(self.known, job=line.job), None  # the queue was killed
        self.close()
        known, outcome = self.known, self.known.outcome
        if outcome is None:
            entry = seen.entries.get(known.job)  # a request at the broker is followed by its process
            self._pidfds = self._processes(entry)
            found = [each for each in seen.unwritten if each.job == known.job]
            found += history.read(history.default_path(), limit=1, job=known.job)
            if not found:
                return self._ended_without(is_there=entry is not None or self._runs_elsewhere())
            outcome = found[0]
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
        self._due_s = None
        if self._pidfds:
            self._gone_at = None
            return None
        now = time.monotonic()
        if is_there:
            self._due_s, self._gone_at = _UNSEEN_S, None
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
            self._due_s = _UNSEEN_S
            return None
        return Ended(known, EX_SLICER, None, file.unseen if file is not None else job_files.KILLED)

    def _runs_elsewhere(self) -> bool:
        """Whether its queue says that it runs, whose ledger may be that of simulated GPUs."""
        if self.known.line is None or self._pidfds:
            return False
        lines = lines_meant(os.environ, self.known.job)
        return any(each.job == self.known.job and each.status == "running" for each in lines)

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
        for fd in self._pidfds:
            os.close(fd)
        self._pidfds = []


def _ended_line(known: KnownJob, line: QueuedLine) -> Ended:
    has_run = line.status not in UNBEGUN
    outcomes = history.read(history.default_path(), limit=1, job=line.job) if has_run and line.job else []
    why = "" if outcomes else line.reason or line.status
    known = replace(known, job=line.job)  # "" if it never began
    return Ended(known, line.code_for_others, outcomes[0] if outcomes else None, why)
