"""What reaches the keeper and the command of Ctrl-Z, ``fg`` and other signals, and in which order (A9)."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
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
        task = Task("true", ("true",), {}, "", None, 10.0, False, OUTER, "slicer run", (), frozenset())
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
        self.keeper._look(was_continued=False)

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

# What is typed: the signal, its sender, and whether the command gets it, too.
Typed = tuple[int, int, bool]
FG, CTRL_Z = (signal.SIGCONT, SHELL, True), (signal.SIGTSTP, KERNEL, True)
ALONE = (signal.SIGCONT, SHELL, False)


class Undecided(Exception):
    """While the keeper acts, one of that many things can happen, or none."""

    def __init__(self, things: int) -> None:
        self.things = things


@dataclass
class World:
    """What the kernel knows of a job at a terminal: each process can be signalled and can act at any time.

    A signal that is typed reaches the command first, and its copy for the supervisor may be late.
    """

    control: JobControl = field(default_factory=lambda: JobControl(OUTER))  # the keeper
    is_command_stopped: bool = False
    unseen: int = 0  # the command's last change that the keeper has not seen
    is_outer_stopped: bool = False
    pending: tuple[int, int] = (0, 0)  # SIGCONT or SIGTSTP that the supervisor has not taken, and its sender
    word: int = 0  # what it is about to send to the keeper
    inbox: frozenset[int] = frozenset()  # what it has sent
    typed: tuple[Typed, ...] = ()  # what will be typed
    late: tuple[Typed, ...] = ()  # of what was typed, the copies on their way
    is_misled: bool = False  # the shell: it takes the terminal from a command that runs
    meanwhile: tuple[int, ...] = ()  # what happens while the keeper acts: which of the others, 0 none more

    def key(self) -> tuple[object, ...]:
        control = self.control
        return *vars(control._stops).values(), control._is_due, *list(vars(self).values())[1:]

    def copied(self) -> World:
        control = copy.copy(self.control)
        control._stops = copy.copy(control._stops)
        return replace(self, control=control)

    def signal_command(self, signo: int) -> None:
        stops = signo == signal.SIGTSTP
        if self.is_command_stopped != stops:
            self.is_command_stopped = stops
            self.unseen = os.CLD_STOPPED if stops else os.CLD_CONTINUED

    def signal_outer(self, signo: int, sender: int) -> None:
        """Only SIGSTOP stops it. SIGCONT takes back a SIGTSTP that was not taken, and the other way round."""
        self.is_misled |= signo == signal.SIGSTOP and not self.is_command_stopped
        self.is_outer_stopped = signo == signal.SIGSTOP or (self.is_outer_stopped and signo != signal.SIGCONT)
        if signo == signal.SIGSTOP and self.pending[0] == signal.SIGCONT:
            self.pending = (0, 0)
        elif signo not in (signal.SIGSTOP, self.pending[0]):
            self.pending = (signo, sender)

    # -- what can happen -------------------------------------------------------------------------------------

    def others(self) -> list[Callable[[], None]]:
        """What others than the keeper can do next."""
        found: list[Callable[[], None]] = [partial(self._copy_comes, each) for each in self.late]
        if self.typed and self._may_be_typed(self.typed[0]):
            found.append(self._type)
        if not self.is_outer_stopped and (self.pending[0] or self.word):
            found.append(self.outer_acts)
        return found

    def _may_be_typed(self, what: Typed) -> bool:
        """A sender is done with one signal before the next. Ctrl-Z is for what runs, fg for the rest."""
        if what == CTRL_Z:
            return what not in self.late and not self.is_command_stopped
        is_sent = FG not in self.late if what == FG else not self.late and not self.inbox
        return self.is_outer_stopped and is_sent

    def _type(self) -> None:
        what, *typed = self.typed
        if what[2]:
            self.signal_command(what[0])
        self.typed, self.late = tuple(typed), (*self.late, what)

    def _copy_comes(self, copy: Typed) -> None:
        self.late = tuple(each for each in self.late if each != copy)
        self.signal_outer(*copy[:2])

    def outer_acts(self) -> None:
        """It takes a signal, or sends its word. It may be stopped in between."""
        (signo, sender), word = self.pending, self.word
        if word:
            self.word = 0
            self.inbox |= {word}
        else:
            self.pending = (0, 0)
            self.word = passed_on(signo, BY_KILL if sender else BY_TERMINAL, sender, KEEPER, ())

    def keeper_acts(self) -> bool:
        """It takes one signal, the one with the lowest number."""
        taken = signal.SIGCHLD if self.unseen else min(self.inbox, default=0)
        self.inbox -= {taken}
        if not taken:
            return False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "kill", lambda _, signo: self._others_act() or self.signal_outer(signo, KEEPER))
            patch.setattr(os, "getppid", lambda: OUTER)
            patch.setattr(job_control, "_has_terminal", lambda: True)
            patch.setattr(proc, "stops", lambda _: self._others_act() or self.is_outer_stopped)
            self._reap()
            if self.control.is_to_continue(taken == CONTINUED, self._reap_again):
                self._others_act()
                self.signal_command(signal.SIGCONT)
        return True

    def _reap(self) -> None:
        change, self.unseen = self.unseen, 0
        if change:
            self.control.command_changed(change)

    def _reap_again(self) -> bool:
        self._others_act()
        self._reap()
        return True

    def _others_act(self) -> None:
        while others := self.others():
            if not self.meanwhile:
                raise Undecided(len(others))
            which, *meanwhile = self.meanwhile
            self.meanwhile = tuple(meanwhile)
            if not which:
                return
            others[which - 1]()

    def comes_to_rest(self) -> None:
        """All act, and nothing is typed."""
        while True:
            self.meanwhile = (0,) * 9
            if not self.keeper_acts():
                if self.is_outer_stopped or not (self.pending[0] or self.word):
                    break
                self.outer_acts()
        self.meanwhile = ()

    @property
    def stopped(self) -> tuple[bool, bool]:
        return self.is_command_stopped, self.is_outer_stopped


def stopped_world() -> World:
    world = World()
    world.signal_command(signal.SIGTSTP)
    world.comes_to_rest()
    assert world.stopped == (True, True)
    return world


def all_that_comes_of(worlds: Iterable[World], *typed: Typed) -> list[World]:
    """Where jobs can end when this is typed, whoever is slow."""
    found: list[World] = []
    ways = [replace(world.copied(), typed=typed) for world in worlds]
    seen = {world.key() for world in ways}
    while ways:
        world = ways.pop()
        nexts = list(nexts_of(world))
        assert not world.is_misled
        if not nexts:
            found.append(world)
        for after in nexts:
            if (key := after.key()) not in seen:
                seen.add(key)
                ways.append(after)
    return found


def nexts_of(world: World) -> Iterator[World]:
    """The worlds after all that can happen next."""
    for number in range(len(world.others())):
        after = world.copied()
        after.others()[number]()
        yield after
    ways: list[tuple[int, ...]] = [()]
    while ways:
        way = ways.pop()
        after = replace(world.copied(), meanwhile=way)
        try:
            if after.keeper_acts():
                yield after
        except Undecided as undecided:
            ways += [(*way, number) for number in range(undecided.things + 1)]


def test_what_was_typed_last_counts_whatever_comes_late() -> None:
    worlds = [stopped_world()]
    for _ in range(3):
        assert {world.stopped for world in all_that_comes_of(worlds, FG)} == {(False, False)}
        stopped = all_that_comes_of(worlds, FG, CTRL_Z)
        assert {world.stopped for world in stopped} == {(True, True)}
        # A supervisor stopped in mid-word finishes it after the next fg, and is misunderstood if that
        # one's copy is late, too. No rule could know better.
        worlds = [world for world in stopped if not world.word]


@pytest.mark.parametrize("times", [1, 2])
def test_a_sigcont_for_the_supervisor_alone_continues_the_command(times: int) -> None:
    found = all_that_comes_of([World()], *(CTRL_Z, ALONE) * times)
    assert {world.stopped for world in found} == {(False, False)}


def test_it_does_so_after_fg_and_ctrl_z_too() -> None:
    world = stopped_world()
    for signo, sender, _ in (FG, CTRL_Z):
        world.signal_command(signo)
        world.comes_to_rest()
        world.signal_outer(signo, sender)
        world.comes_to_rest()
    assert {after.stopped for after in all_that_comes_of([world], ALONE)} == {(False, False)}


# Then the keeper still expects the copy
def test_where_a_copy_of_fgs_was_swallowed_a_later_sigcont_continues_the_command() -> None:
    worlds, times = all_that_comes_of([stopped_world()], FG, CTRL_Z), 0
    while worlds := [world for world in worlds if world.is_command_stopped]:
        worlds = all_that_comes_of(worlds, ALONE)
        assert {world.stopped for world in worlds} <= {(True, True), (False, False)}
        times += 1
    assert times <= 3


# It was sent while the command ran, and read only after Ctrl-Z
def test_a_word_from_before_ctrl_z_does_not_undo_it() -> None:
    world = World()
    world.signal_outer(signal.SIGCONT, SHELL)
    for _ in range(2):
        world.outer_acts()
    world.signal_command(signal.SIGTSTP)
    world.comes_to_rest()
    assert world.stopped == (True, True)


# The shell would take the terminal, and the command stop once more as it reads from there
def test_a_supervisor_that_fg_has_continued_is_not_stopped_for_what_was_before() -> None:
    found = all_that_comes_of([stopped_world()], FG, CTRL_Z, FG)
    assert {world.stopped for world in found} == {(False, False)}
