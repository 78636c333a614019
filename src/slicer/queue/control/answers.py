"""The answers of a queue to the questions on its control socket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from slicer.kernel import cgroup
from slicer.queue.control.messages import QueuedLine, RunningQueue, short
from slicer.queue.control.server import Answer
from slicer.queue.display import Display
from slicer.queue.file.live_file import LiveFile
from slicer.queue.judge.retrying import retry
from slicer.queue.model import JobState, label
from slicer.queue.start.dispatch import Dispatch
from slicer.queue.state.register import Register
from slicer.record import as_dict

_MOST_NAMED = 20  # lines in an answer
_MOST_JOBS = 4000  # ids of jobs in an answer
_SERVICE = re.compile(r"/(slicer-queue-[0-9a-f]+\.service)(?:/|$)")  # as slicer.detach names it
_SHORTEST_ID = 4  # characters in a prefix of a job's id
# Questions whose answers wait until the journal is written.
ACTS = ("stop", "withdraw", "retry", "line", "leave", "pause")


class Answers:
    def __init__(
        self, register: Register, dispatch: Dispatch, display: Display, file: LiveFile,
        load: Callable[[], object], leave: Callable[[bool], None], notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``load`` determines the pending lines again; ``notice`` adds an event.

        ``leave`` starts nothing more, and ends the running jobs unless it is told not to.
        """
        self._register = register
        self._dispatch = dispatch
        self._display = display
        self._file = file
        self._load = load
        self._leave = leave
        self._notice = notice
        self._jobs_file = os.path.abspath(file.path)
        self._log_dir = os.path.realpath(register.log_dir.path)

    def by_question(self) -> dict[str, Answer]:
        questions = (
            self.standing, self.lines, self.line, self.stop, self.withdraw, self.retry, self.look, self.leave,
            self.pause,
        )  # fmt: skip
        return {each.__name__: each for each in questions}

    def standing(self, _: dict[str, Any]) -> dict[str, object]:
        board, service = self._display.board(), _SERVICE.search(cgroup.of("self"))
        told = RunningQueue(
            file=self._jobs_file, log_dir=self._log_dir, pid=board.pid,
            unit=service[1] if service else "", state=board.state, began_at=board.began_at,
            counts=board.counts, eta_s=board.eta_s, warning=short(board.warning),
        )  # fmt: skip
        return as_dict(told)

    def lines(self, question: dict[str, Any]) -> dict[str, object]:
        """The lines and jobs with a name, label or job's id."""
        word = str(question.get("word"))
        found = [state for state in self._register.states.values() if self._is_meant(state, word)]
        return {"lines": [self._line(state) for state in found[:_MOST_NAMED]]}

    def line(self, question: dict[str, Any]) -> dict[str, object] | None:
        """The line with a key once it has ended, or begun, as ``until`` says. None: not yet."""
        state = self._register.states.get(str(question.get("key")))
        if state is None or self._is_removed(state):
            return {"lines": []}
        has_begun = question.get("until") == "begun" and self._dispatch.has_begun(state)
        return {"lines": [self._line(state)]} if state.is_final or has_begun else None

    def stop(self, question: dict[str, Any]) -> dict[str, object]:
        """Cancel the line with a key, unless it has begun."""
        return {"stopped": self._dispatch.stop(str(question.get("key")))}

    def withdraw(self, question: dict[str, Any]) -> dict[str, object]:
        """Cancel the lines that have not begun and whose names match a shell pattern."""
        pattern = str(question.get("pattern"))
        states = self._register.states.values()
        named = [state for state in states if state.name and fnmatchcase(state.name, pattern)]
        count = sum(self._dispatch.stop(state.key, unbegun=True) for state in named)
        return {"count": count, "file": self._jobs_file}

    def leave(self, question: dict[str, Any]) -> dict[str, object]:
        """Start nothing more, and end; the running jobs are ended, or waited for."""
        running = [state.job for state in self._register.states.running.values()]
        self._leave(question.get("finish") is not True)
        return {"jobs": running[:_MOST_JOBS]}

    def pause(self, question: dict[str, Any]) -> dict[str, object]:
        """Start nothing more until it is resumed. Running jobs run on."""
        is_paused = question.get("paused") is True
        was_paused, self._dispatch.is_paused = self._dispatch.is_paused, is_paused
        if is_paused != was_paused:
            problem = self._register.log_dir.note_pause(is_paused=is_paused)
            if is_paused:
                self._dispatch.abandon()
            told = "paused: nothing new is started" if is_paused else "resumed: jobs are started again"
            self._notice(f"{told} (not after a crash: {problem})" if problem else told)
        return {"changed": is_paused != was_paused, "pending": len(self._dispatch.pending)}

    def retry(self, question: dict[str, Any]) -> dict[str, object]:
        """As the function; a word that names no failed job is ``unknown``."""
        jobs = question.get("jobs")
        words = [str(word) for word in jobs] if isinstance(jobs, list) else [repr(jobs)]
        found = retry(self._register, (entry.key for entry in self._file.entries), words)
        if isinstance(found, str):
            return {"unknown": found}
        numbers, released = found
        if numbers or released:
            self._load()
        if numbers:
            self._notice(f"pending again by slicer queue retry: job {', '.join(map(str, numbers))}")
        return {"again": numbers, "released": released, "state": self._display.state}

    def look(self, _: dict[str, Any]) -> dict[str, object]:
        """Read the file at once, because some changes cause no event (NFS)."""
        self._file.look_soon()
        return {"looks": True}

    def _is_meant(self, state: JobState, word: str) -> bool:
        is_id = len(word) >= _SHORTEST_ID and state.job.startswith(word)
        is_named = is_id or word in (state.name or None, label(self._jobs_file, state.no))
        return is_named and not self._is_removed(state)

    def _is_removed(self, state: JobState) -> bool:
        """Whether its line was removed before it began."""
        return state.status == "pending" and self._dispatch.entry(state.key) is None

    def _line(self, state: JobState) -> dict[str, object]:
        is_starting = state.status == "running" and not self._dispatch.has_begun(state)
        told = QueuedLine(
            key=state.key, label=label(self._jobs_file, state.no), no=state.no, name=state.name,
            command=short(state.command), status="pending" if is_starting else state.status,
            attempts=state.attempts, began_at=state.started_at or self._display.began_at, job=state.job,
            log=f"{self._log_dir}/{state.log}" if state.log else "",
            waits_for=short(self._display.why(state)), exit_code=state.exit_code, reason=short(state.reason),
            jobs_file=self._jobs_file, log_dir=self._log_dir, pid=os.getpid(),
        )  # fmt: skip
        return as_dict(told)
