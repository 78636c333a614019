"""The register of the queue's jobs: every change of a state is a record in the journal.

A change is effective at once, but is announced only after :meth:`Register.save`. If the journal cannot be
written (a full disk), nothing is lost: the records wait, and so does everything that depends on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import starmap

from slicer import faults
from slicer.errors import StateError
from slicer.kernel.sleep import seconds_until
from slicer.queue.model import NEVER, Entry, Streak
from slicer.queue.state import attempt, folding
from slicer.queue.state.folding import JobStates
from slicer.queue.state.journal import Journal, Record
from slicer.queue.state.log_dir import LogDir, failing
from slicer.state.directory import Directory

_PROBE = "probe"
_ROOMS_AGAIN = 16  # attempts with room, before a queue goes on that had none: else it would stop at the next
_AGAIN_S = 1.0  # how soon to try to write again


class Register:
    """``states`` by the jobs' keys, and ``streaks`` by the commands' groups.

    ``problem``: why the journal cannot be written, "" if it can.
    """

    def __init__(self, path: str, *, fresh: bool) -> None:
        """Open the log directory. Raises QueueRunning, StateError."""
        self.log_dir = LogDir(path)
        self.set_aside = ""  # the directory of earlier logs, by its name
        try:
            if fresh:
                _forget_attempts(self.log_dir.attempts)
            self._journal, records = Journal.open(self.log_dir.directory, fresh=fresh)
            if fresh:
                self.set_aside = self.log_dir.set_logs_aside()
        except BaseException:
            self.log_dir.close()
            raise
        self.warnings = self._journal.warnings
        self.states = JobStates(folding.fold(records))
        self.streaks: dict[str, Streak] = {}
        for record in records:
            folding.apply_streak(self.streaks, record)
        # What could not start earlier, perhaps with another --gpu, is tried again.
        self._refused = {key for key, state in self.states.items() if state.status in NEVER}
        self.problem = ""
        self._next_no = max([state.no for state in self.states.values()], default=0) + 1
        self._again_at = 0.0
        self._lacks_room = False
        self.has_changed = True  # whether the board is out of date

    def see(self, entries: Iterable[Entry]) -> None:
        """Give a number to each new job."""
        for entry in entries:
            state = self.states.get(entry.key)
            if state is None or not state.no or state.name != entry.attributes.name:
                no = state.no if state is not None and state.no else self._next_no
                self._next_no = max(self._next_no, no + 1)
                self.do(folding.seen(entry.key, no, entry.command, entry.attributes.name), durable=False)
            if entry.key in self._refused:
                self._refused.remove(entry.key)
                self.do(folding.reconsidered(entry.key), durable=False)

    def do(self, record: Record, *, durable: bool = True) -> None:
        """Change a job's state, or a streak, to be written with the next :meth:`save`."""
        self.states.apply(record)
        folding.apply_streak(self.streaks, record)
        self._journal.add(record, durable=durable)
        self.has_changed = True

    def save(self) -> bool:
        """Write all durable records; whether they are on the disk now."""
        if not self._journal.is_urgent and not self.problem:
            return True
        is_early = bool(self.problem) and time.monotonic() < self._again_at
        if is_early and not (self._lacks_room and self._journal.is_urgent):
            return self.is_saved
        faults.point("queue-saving")
        try:
            self.log_dir.restore()  # somebody may have removed it, or the journal in it
            if self._journal.is_gone(self.log_dir.directory):
                streaks = starmap(folding.streak, self.streaks.items())
                self._journal.rewrite(self.log_dir.directory, [*folding.records(self.states), *streaks])
            self._journal.commit()
        except StateError as error:
            self._fail(str(error))
            return False
        if self.problem and not is_early and self._has_room():
            self.problem = ""
        faults.point("queue-saved")
        return True

    @property
    def is_saved(self) -> bool:
        return not self._journal.is_urgent

    def reserve(self, job_id: str, rooms: int = 1) -> bool:
        """Create the attempt file, with room for so many; False, with a ``problem``, without room."""
        try:
            attempt.reserve(self.log_dir.attempts.fd, job_id, rooms)
        except OSError as error:
            self._fail(f"{self.log_dir.path}: {error.strerror}; nothing is started until there is room")
            self._lacks_room = True
            return False
        return True

    def sweep(self) -> None:
        """Remove the files of ended attempts, which a killed queue has left."""
        under_way = {state.job for state in self.states.running.values()}
        for name in set(self.log_dir.attempts.names()) - under_way:
            self.forget(name)

    def forget(self, job_id: str) -> None:
        """Remove the attempt file: the attempt's end is on the disk, or the attempt never began."""
        try:
            self.log_dir.attempts.unlink(job_id)
        except OSError:
            return  # it is only a small file

    def attempt(self, job_id: str) -> attempt.AttemptFile | None:
        """The attempt as its keeper recorded it; None: its command never began."""
        return attempt.read(self.log_dir.attempts.fd, job_id)

    def _has_room(self) -> bool:
        """Whether there is room for attempts again."""
        if not self.reserve(_PROBE, _ROOMS_AGAIN):
            return False
        self.forget(_PROBE)
        self._lacks_room = False
        return True

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._again_at = time.monotonic() + _AGAIN_S

    def left_s(self) -> float | None:
        """The seconds until :meth:`save` is due; None: nothing waits."""
        if self.problem:
            return seconds_until(self._again_at)
        return None if self.is_saved else 0.0

    @property
    def last_no(self) -> int:
        """The largest number that a job has."""
        return self._next_no - 1

    def known_names(self) -> frozenset[str]:
        return frozenset(state.name for state in self.states.values() if state.name)

    def close(self) -> None:
        """Write the rest, and release the directory."""
        try:
            self._journal.commit()
        except StateError as error:
            self.problem = str(error)
        self._journal.close()
        self.log_dir.close()


def _forget_attempts(directory: Directory) -> None:
    """Remove an earlier queue's attempt files. Raises StateError if its jobs still run."""
    names = directory.names()
    found = [attempt.read(directory.fd, name) for name in names]
    alive = [each for each in found if each is not None and each.is_alive]
    if alive:
        jobs = f"{len(alive)} jobs" if len(alive) > 1 else "a job"
        raise StateError(
            f"{jobs} of an earlier queue still run{'s' if len(alive) == 1 else ''}",
            where=directory.path,
            hint="without --fresh they are taken over; or end them first, see slicer status",
        )
    for name in names:
        with failing(f"{directory.path}/{name}", "cannot be removed"):
            directory.remove(name)
