"""What reaches the keeper and the command of Ctrl-Z, ``fg`` and other signals, and in which order (A9)."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.job import job_control
from slicer.job.command import Command, Task
from slicer.job.job_control import JobControl, passed_on
from slicer.kernel import proc, signals
from slicer.kernel.signals import CONTINUED, timed_wait

OUTER, COMMAND, KEEPER, SHELL, KERNEL = 10, 20, 30, 40, 0
BY_TERMINAL, BY_KILL = 0x80, 0


@pytest.mark.parametrize(
    ("signo", "code", "sender", "pending", "expected"),
    [
        (signal.SIGTERM, BY_KILL, SHELL, (), signal.SIGTERM),
        (signal.SIGINT, BY_KILL, SHELL, (), signal.SIGINT),
        (signal.SIGCONT, BY_KILL, SHELL, (), CONTINUED),
        (signal.SIGTSTP, BY_KILL, SHELL, (), signal.SIGTSTP),
        (signal.SIGINT, BY_KILL, KERNEL, (), signal.SIGINT),  # from a process outside of this pid namespace
        (signal.SIGHUP, BY_TERMINAL, KERNEL, (), signal.SIGHUP),  # may reach the session's leader alone
        (signal.SIGALRM, BY_TERMINAL, KERNEL, (), signal.SIGALRM),  # alarm(2), which survives an exec
        # The terminal's go to the whole group.
        (signal.SIGINT, BY_TERMINAL, KERNEL, (), 0),
        (signal.SIGQUIT, BY_TERMINAL, KERNEL, (), 0),
        (signal.SIGTSTP, BY_TERMINAL, KERNEL, (), signal.SIGCHLD),
        (signal.SIGWINCH, BY_TERMINAL, KERNEL, (), 0),
        # What the keeper does to the supervisor is no news to it.
        (signal.SIGCONT, BY_KILL, KEEPER, (), 0),
        # What came later has undone it.
        (signal.SIGCONT, BY_KILL, SHELL, (signal.SIGTSTP,), 0),
        (signal.SIGTSTP, BY_KILL, SHELL, (signal.SIGCONT,), 0),
        (signal.SIGTSTP, BY_KILL, SHELL, (signal.SIGINT,), signal.SIGTSTP),
        (signal.SIGTERM, BY_KILL, SHELL, (signal.SIGCONT, signal.SIGTSTP), signal.SIGTERM),
    ],
)
def test_what_the_supervisor_passes_on(
    signo: int, code: int, sender: int, pending: tuple[int, ...], expected: int
) -> None:
    assert passed_on(signo, code, sender, KEEPER, pending) == expected


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
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(os, "getppid", lambda: OUTER)
        monkeypatch.setattr(os, "waitid", self._waitid)
        monkeypatch.setattr(job_control, "_has_terminal", lambda: True)
        monkeypatch.setattr(proc, "stops", lambda pid: self.outer_stops)

    def _kill(self, pid: int, signo: int) -> None:
        self.sent.append((pid, signo))
        if pid == OUTER:
            self.outer_stops = signo == signal.SIGSTOP

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

    def outer_was_continued(self) -> None:
        self.outer_stops = False
        info: Any = SimpleNamespace(si_signo=CONTINUED, si_pid=OUTER, si_code=BY_KILL)
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


# The group's own would be lost while one of the keeper's is pending
def test_a_supervisor_that_goes_on_already_gets_no_signal(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.outer_stops = False
    made.happens(os.CLD_CONTINUED)
    assert made.sent == [(OUTER, signal.SIGSTOP)]


def test_the_supervisor_alone_was_continued(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.sent.clear()
    made.outer_was_continued()
    assert made.sent == [(COMMAND, signal.SIGCONT)]


def test_the_supervisor_was_continued_as_the_command_was_before_ctrl_z(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.happens(os.CLD_CONTINUED)
    made.happens(os.CLD_STOPPED)
    made.sent.clear()
    made.outer_was_continued()
    assert made.sent == [(OUTER, signal.SIGSTOP)]


# Without a shell nobody would continue it again
def test_a_supervisor_without_a_terminal_is_never_stopped(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_control, "_has_terminal", lambda: False)
    for change in (os.CLD_STOPPED, os.CLD_CONTINUED, os.CLD_STOPPED):
        made.happens(change)
    made.outer_was_continued()
    assert made.sent == [(COMMAND, signal.SIGCONT)]


# Its pid may be another process's by then
def test_a_command_that_was_killed_while_it_was_stopped_gets_no_signal(made: Made) -> None:
    made.happens(os.CLD_STOPPED)
    made.keeper._status = signal.SIGKILL
    made.sent.clear()
    made.outer_was_continued()
    assert made.sent == []


# CPython's, when its process was stopped until after the time was over: signal 0, or any number
@pytest.mark.parametrize("signo", [0, -1, 2**31 - 1, signal.SIGUSR1])
def test_what_is_no_signal_that_was_waited_for_is_none(monkeypatch: pytest.MonkeyPatch, signo: int) -> None:
    monkeypatch.setattr(signals.signal, "sigtimedwait", lambda *_: SimpleNamespace(si_signo=signo))
    assert timed_wait(frozenset({signal.SIGTERM}), 1.0) is None


# -- in every order -----------------------------------------------------------------------------------------


@dataclass
class World:
    """What the kernel knows of a job at a terminal: each process can be signalled and can act at any time."""

    control: JobControl = field(default_factory=lambda: JobControl(OUTER))  # the keeper
    is_command_stopped: bool = False
    unseen: int = 0  # the command's last change that the keeper has not seen
    is_outer_stopped: bool = False
    pending: tuple[int, int] = (0, 0)  # SIGCONT or SIGTSTP that the supervisor has not taken, and its sender
    word: int = 0  # what it is about to send to the keeper
    inbox: frozenset[int] = frozenset()  # what it has sent

    def key(self) -> str:
        return repr({**vars(self), "control": vars(self.control._stops)})

    def signal_command(self, signo: int) -> None:
        stops = signo == signal.SIGTSTP
        if self.is_command_stopped != stops:
            self.is_command_stopped = stops
            self.unseen = os.CLD_STOPPED if stops else os.CLD_CONTINUED

    def signal_outer(self, signo: int, sender: int) -> None:
        """Only SIGSTOP stops it. SIGCONT takes back a SIGTSTP that was not taken, and the other way round."""
        self.is_outer_stopped = signo == signal.SIGSTOP or (
            self.is_outer_stopped and signo != signal.SIGCONT
        )
        if signo == signal.SIGSTOP and self.pending[0] == signal.SIGCONT:
            self.pending = (0, 0)
        elif signo not in (signal.SIGSTOP, self.pending[0]):
            self.pending = (signo, sender)

    def outer_acts(self) -> bool:
        """It takes a signal, or sends its word. It may be stopped in between."""
        (signo, sender), word = self.pending, self.word
        if self.is_outer_stopped or not (signo or word):
            return False
        if word:
            self.word = 0
            self.inbox |= {word}
        else:
            self.pending = (0, 0)
            self.word = passed_on(signo, BY_KILL if sender else BY_TERMINAL, sender, KEEPER, ())
        return True

    def keeper_acts(self) -> bool:
        """It takes one signal, the one with the lowest number."""
        taken = signal.SIGCHLD if self.unseen else min(self.inbox, default=0)
        if not taken:
            return False
        self.inbox -= {taken}
        if self.unseen:
            change, self.unseen = self.unseen, 0
            self.control.command_changed(change)
        if self.control.is_to_continue(taken == CONTINUED):
            self.signal_command(signal.SIGCONT)
        return True

    def comes_to_rest(self) -> None:
        while self.acts(World.outer_acts) or self.acts(World.keeper_acts):
            pass

    def acts(self, act: Callable[[World], bool]) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "kill", lambda _, signo: self.signal_outer(signo, KEEPER))
            patch.setattr(os, "getppid", lambda: OUTER)
            patch.setattr(job_control, "_has_terminal", lambda: True)
            patch.setattr(proc, "stops", lambda _: self.is_outer_stopped)
            return act(self)

    @property
    def stopped(self) -> tuple[bool, bool]:
        return self.is_command_stopped, self.is_outer_stopped


# What is typed: the signal, its sender, and whether the command gets it, too.
Typed = tuple[int, int, bool]
FG, CTRL_Z = (signal.SIGCONT, SHELL, True), (signal.SIGTSTP, KERNEL, True)
ALONE = (signal.SIGCONT, SHELL, False)


def stopped_world() -> World:
    world = World()
    world.signal_command(signal.SIGTSTP)
    world.comes_to_rest()
    assert world.stopped == (True, True)
    return world


def all_that_comes_of(world: World, *typed: Typed) -> list[World]:
    """Where the job can end when this is typed, whoever is slow.

    Each signal reaches the command first, and its copy for the supervisor may be late.
    """
    found: list[World] = []
    seen: set[str] = set()
    ways: list[tuple[World, int, tuple[Typed, ...]]] = [(world, 0, ())]
    while ways:
        world, number, late = ways.pop()
        if (key := f"{world.key()} {number} {late}") in seen:
            continue
        seen.add(key)
        nexts = list(nexts_of(world, typed[number:], late))
        ways += [(after, number + is_typed, still) for after, is_typed, still in nexts]
        if not nexts:
            found.append(world)
    return found


def nexts_of(
    world: World, typed: tuple[Typed, ...], late: tuple[Typed, ...]
) -> Iterator[tuple[World, bool, tuple[Typed, ...]]]:
    """All that can happen next: the world, whether something was typed, and the copies on their way."""
    if typed and may_be_typed(typed[0], world, late):
        after = copy.deepcopy(world)
        if typed[0][2]:
            after.signal_command(typed[0][0])
        yield after, True, (*late, typed[0])
    for each in late:
        after = copy.deepcopy(world)
        after.signal_outer(*each[:2])
        yield after, False, tuple(other for other in late if other != each)
    for act in (World.outer_acts, World.keeper_acts):
        after = copy.deepcopy(world)
        if after.acts(act):
            yield after, False, late


def may_be_typed(what: Typed, world: World, late: tuple[Typed, ...]) -> bool:
    """A sender is done with one signal before it sends the next. Ctrl-Z is for what runs, fg for the rest."""
    if what == CTRL_Z:
        return what not in late and not world.is_command_stopped
    return world.is_outer_stopped and not world.inbox and (FG not in late if what == FG else not late)


def test_what_was_typed_last_counts_whatever_comes_late() -> None:
    worlds = [stopped_world()]
    for _ in range(3):
        for world in worlds:
            assert {after.stopped for after in all_that_comes_of(world, FG)} == {(False, False)}
        stopped = [after for world in worlds for after in all_that_comes_of(world, FG, CTRL_Z)]
        assert {world.stopped for world in stopped} == {(True, True)}
        # A supervisor stopped in mid-word finishes it after the next fg, and is misunderstood if that
        # one's copy is late, too. No rule could know better.
        worlds = list({world.key(): world for world in stopped if not world.word}.values())


@pytest.mark.parametrize("times", [1, 2])
def test_a_sigcont_for_the_supervisor_alone_continues_the_command(times: int) -> None:
    found = all_that_comes_of(World(), *(CTRL_Z, ALONE) * times)
    assert {world.stopped for world in found} == {(False, False)}


def test_it_does_so_after_fg_and_ctrl_z_too() -> None:
    world = stopped_world()
    for signo, sender, _ in (FG, CTRL_Z):
        world.signal_command(signo)
        world.comes_to_rest()
        world.signal_outer(signo, sender)
        world.comes_to_rest()
    assert {after.stopped for after in all_that_comes_of(world, ALONE)} == {(False, False)}


# Then the keeper still expects the copy
def test_where_a_copy_of_fgs_was_swallowed_a_later_sigcont_continues_the_command() -> None:
    worlds, times = all_that_comes_of(stopped_world(), FG, CTRL_Z), 0
    while worlds := [world for world in worlds if world.is_command_stopped]:
        worlds = [after for world in worlds for after in all_that_comes_of(world, ALONE)]
        assert {world.stopped for world in worlds} <= {(True, True), (False, False)}
        times += 1
    assert times <= 3


# It was sent while the command ran, and read only after Ctrl-Z
def test_a_word_from_before_ctrl_z_does_not_undo_it() -> None:
    world = World()
    world.signal_outer(signal.SIGCONT, SHELL)
    for _ in range(2):
        world.acts(World.outer_acts)
    world.signal_command(signal.SIGTSTP)
    world.comes_to_rest()
    assert world.stopped == (True, True)
