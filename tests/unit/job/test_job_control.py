"""What reaches the keeper and the command of Ctrl-Z, ``fg`` and other signals, and in which order (A9)."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.job import job_control
from slicer.job.command import Command, Task
from slicer.job.job_control import is_for_keeper
from slicer.kernel import proc, signals
from slicer.kernel.signals import timed_wait

OUTER, COMMAND, KEEPER, SHELL, KERNEL = 10, 20, 30, 40, 0
BY_TERMINAL, BY_KILL = 0x80, 0


@pytest.mark.parametrize(
    ("signo", "code", "sender", "pending", "expected"),
    [
        (signal.SIGTERM, BY_KILL, SHELL, (), True),
        (signal.SIGINT, BY_KILL, SHELL, (), True),
        (signal.SIGCONT, BY_KILL, SHELL, (), True),
        (signal.SIGTSTP, BY_KILL, SHELL, (), True),
        (signal.SIGINT, BY_KILL, KERNEL, (), True),  # from a process outside of this pid namespace
        (signal.SIGHUP, BY_TERMINAL, KERNEL, (), True),  # a hang-up may reach the session's leader alone
        (signal.SIGALRM, BY_TERMINAL, KERNEL, (), True),  # alarm(2), which survives an exec
        # The terminal's go to the whole group.
        (signal.SIGINT, BY_TERMINAL, KERNEL, (), False),
        (signal.SIGQUIT, BY_TERMINAL, KERNEL, (), False),
        (signal.SIGTSTP, BY_TERMINAL, KERNEL, (), False),
        (signal.SIGWINCH, BY_TERMINAL, KERNEL, (), False),
        # What the keeper does to the supervisor is no news to it.
        (signal.SIGCONT, BY_KILL, KEEPER, (), False),
        # What came later has undone it.
        (signal.SIGCONT, BY_KILL, SHELL, (signal.SIGTSTP,), False),
        (signal.SIGTSTP, BY_KILL, SHELL, (signal.SIGCONT,), False),
        (signal.SIGTSTP, BY_KILL, SHELL, (signal.SIGINT,), True),
        (signal.SIGTERM, BY_KILL, SHELL, (signal.SIGCONT, signal.SIGTSTP), True),
    ],
)
def test_what_the_supervisor_passes_on(
    signo: int, code: int, sender: int, pending: tuple[int, ...], expected: bool
) -> None:
    assert is_for_keeper(signo, code, sender, KEEPER, pending) == expected


class Made:
    """A keeper whose command and supervisor are made up: ``sent`` is whom it sent what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[int, int]] = []
        self.changes: list[int] = []  # what waitid(2) says of the command, in its order
        self.outer_stops = False
        nothing: Any = None
        task = Task("true", ("true",), {}, "", None, 10.0, False, OUTER, (), frozenset())
        self.keeper = Command(task, nothing, None, list, None)
        self.keeper._pid = COMMAND
        monkeypatch.setattr(os, "kill", lambda pid, signo: self.sent.append((pid, signo)))
        monkeypatch.setattr(os, "getppid", lambda: OUTER)
        monkeypatch.setattr(os, "waitid", self._waitid)
        monkeypatch.setattr(job_control, "_has_terminal", lambda: True)
        monkeypatch.setattr(proc, "stops", lambda pid: self.outer_stops)

    def _waitid(self, kind: int, pid: int, options: int) -> Any:
        if not self.changes:
            return None
        seen = self.changes[0]
        if options & os.WNOWAIT:
            # What is taken is how things stand then: only the last change is kept.
            del self.changes[:-1]
        else:
            self.changes.clear()
        return SimpleNamespace(si_code=seen, si_pid=COMMAND)

    def happens(self, *changes: int) -> None:
        self.changes.extend(changes)
        self.keeper._reap()

    def outer_passes_on(self, signo: int) -> None:
        info: Any = SimpleNamespace(si_signo=signo, si_pid=OUTER, si_code=BY_KILL)
        self.keeper._handle(info)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_the_supervisor_stops_and_goes_on_with_the_command(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.happens(os.CLD_CONTINUED)
    assert made.sent == [(OUTER, signal.SIGSTOP), (OUTER, signal.SIGCONT)]


# Ctrl-Z right after fg, while the keeper looks: the supervisor was continued, and the shell never came back
def test_a_stop_that_comes_between_the_look_and_the_taking_counts(made: Made) -> None:
    made.happens(os.CLD_CONTINUED, os.CLD_STOPPED)
    assert made.sent == [(OUTER, signal.SIGSTOP)]


def test_the_supervisor_alone_was_continued(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.sent.clear()
    made.outer_passes_on(signal.SIGCONT)
    assert made.sent == [(COMMAND, signal.SIGCONT)]


# It would take a Ctrl-Z away that is on its way to the command
def test_a_command_that_runs_is_not_continued(made: Made) -> None:
    made.outer_passes_on(signal.SIGCONT)
    made.happens(os.CLD_STOPPED)
    made.happens(os.CLD_CONTINUED)
    made.sent.clear()
    made.outer_passes_on(signal.SIGCONT)
    assert made.sent == []


# fg, and Ctrl-Z before the supervisor came to pass the first on
def test_a_word_from_before_the_stop_does_not_undo_it(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.outer_stops = True
    made.sent.clear()
    made.outer_passes_on(signal.SIGCONT)
    assert made.sent == []


# CPython's, when its process was stopped until after the time was over: signal 0, or any number
@pytest.mark.parametrize("signo", [0, -1, 2**31 - 1, signal.SIGUSR1])
def test_what_is_no_signal_that_was_waited_for_is_none(monkeypatch: pytest.MonkeyPatch, signo: int) -> None:
    monkeypatch.setattr(signals.signal, "sigtimedwait", lambda *_: SimpleNamespace(si_signo=signo))
    assert timed_wait(frozenset({signal.SIGTERM}), 1.0) is None
