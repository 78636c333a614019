"""The supervisor while the command runs: all orders of signals, reports and ends, with the rest made up."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.job import pause, watching
from slicer.job.job import NOBODY
from slicer.job.report import KeeperReport, pack
from slicer.job.watching import Watching
from slicer.kernel import proc
from slicer.kernel.signals import CONTINUED, FORWARDED, SI_KERNEL, STOP, signal
from slicer.model import KEEPER, Usage

KEEPER_PID, COMMAND, SHELL, BY_KILL = 100, 101, 102, 0

Signal = tuple[int, int]  # the number and who sent it: SHELL, KEEPER_PID, or 0 for the terminal
SIGNALS = st.tuples(st.sampled_from(sorted(FORWARDED)), st.sampled_from((SHELL, KEEPER_PID, 0)))
EVENTS = st.one_of(SIGNALS, st.sampled_from(("executed", "time", "leaves", "final", "killed")))
CTRL_Z = (signal.SIGTSTP, 0)
ENDING = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, STOP}


class World:
    """A keeper to which these events happen, one by one; at last it is killed."""

    def __init__(self, events: list[Any], *, is_of_queue: bool = False) -> None:
        self._events = [*events, "killed"]
        self.seen: list[Any] = []
        self.sent: list[tuple[int, int]] = []  # by the supervisor: to whom, and what
        self.notices: list[str] = []
        self.is_dead = self.has_executed = self.is_stopped = False
        self._reports, self._keepers_end = os.pipe2(os.O_NONBLOCK)
        job = SimpleNamespace(attempt=object() if is_of_queue else None, with_git=False)
        lease = SimpleNamespace(gpus=(), gives_way_by_s=None)
        held = SimpleNamespace(lease=lease, fd=1, do_postponed=lambda: None)
        self._watching = Watching(
            job, held, SimpleNamespace(name="systemd"), None,
            SimpleNamespace(notice=self.notices.append, warning=pytest.fail), NOBODY, KEEPER_PID,
            self._reports, float("inf"),
        )  # fmt: skip

    def lives(self) -> KeeperReport | None:
        """Until the watch ends: the report that it ends with."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(watching, "timed_wait", lambda _, limit_s: self._next(limit_s))
                patch.setattr(os, "kill", lambda pid, signo: self.sent.append((pid, signo)))
                patch.setattr(proc, "is_dead_child", lambda _: self.is_dead)
                patch.setattr(proc, "children", lambda _: (COMMAND,))
                patch.setattr(proc, "is_stopped", lambda _: self.is_stopped)
                patch.setattr(proc, "comm", lambda _: "true" if self.has_executed else KEEPER)
                patch.setattr(pause, "thaw_to_end", lambda *_: True)
                reported = self._watching.until_end()
        finally:
            os.close(self._reports)
            os.close(self._keepers_end)
        return reported[0] if reported is not None else None

    def _next(self, limit_s: float) -> Any:
        assert not self.has_executed or limit_s == float("inf"), "it wakes for nothing"
        event = self._events.pop(0)
        self.seen.append(event)
        if event == "time":
            return None
        if isinstance(event, tuple):
            self.is_stopped |= event[0] == signal.SIGTSTP
            code = BY_KILL if event[1] else SI_KERNEL
            return SimpleNamespace(si_signo=event[0], si_code=code, si_pid=event[1])
        self.has_executed, self.is_stopped = True, False
        self.is_dead = event == "killed"
        if event in ("leaves", "final"):
            report = KeeperReport(int(event == "final"), "exited", leftovers=int(event == "leaves"))
            os.write(self._keepers_end, pack(report, Usage()))
        return SimpleNamespace(si_signo=signal.SIGCHLD)

    def count(self, event: Any) -> int:
        return self.seen.count(event)

    def words(self) -> list[int]:
        return [signo for pid, signo in self.sent if pid == KEEPER_PID]


# A9: the exit code is the keeper's word, whatever came before it.
@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_the_watch_ends_once_with_the_last_word_of_the_keeper(events: list[Any], is_of_queue: bool) -> None:
    world = World(events, is_of_queue=is_of_queue)
    report = world.lives()
    ends = [place for place, event in enumerate(world.seen) if event in ("final", "killed")]
    assert ends == [len(world.seen) - 1]
    expected = None if not world.count("leaves") else 0
    assert (report and report.is_final) == (1 if world.seen[-1] == "final" else expected)


@given(st.lists(EVENTS, max_size=12))
def test_it_ends_no_process_itself_and_passes_on_what_the_command_has_not_got(events: list[Any]) -> None:
    world = World(events)
    world.lives()
    assert {pid for pid, _ in world.sent} <= {KEEPER_PID, os.getpid()}
    taken = [event for event in world.seen if isinstance(event, tuple)]
    by_kill = [CONTINUED if signo == signal.SIGCONT else signo for signo, sender in taken if sender == SHELL]
    from_terminal = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
    typed = [signo for signo, sender in taken if not sender and signo in from_terminal]
    said = world.words()
    assert said.count(signal.SIGCHLD) == typed.count(signal.SIGTSTP)  # A9: the keeper looks
    kernels = [signo for signo, sender in taken if not sender and signo not in from_terminal]  # a hang-up
    kernels = [CONTINUED if signo == signal.SIGCONT else signo for signo in kernels]
    assert sorted(signo for signo in said if signo != signal.SIGCHLD) == sorted(by_kill + kernels)
    endings = [signo for signo, _ in taken if signo in ENDING]
    assert sum("resumed so that it can end" in each for each in world.notices) == len(endings)  # X6
    assert sum("outlive the command" in each for each in world.notices) == min(1, world.count("leaves"))


# A9: until its exec nobody but the supervisor can tell the shell of the stop.
@given(st.lists(st.sampled_from(("time", CTRL_Z, (signal.SIGCONT, SHELL), "executed")), max_size=12))
def test_it_stops_only_with_a_command_that_ctrl_z_stopped_before_its_exec(events: list[Any]) -> None:
    world = World(events)
    world.lives()
    is_typed, stops = False, 0
    for event in world.seen:
        if event != "time" and isinstance(event, str):
            break  # the keeper tells of the exec, or of an end
        is_typed |= event != "time" and event[0] == signal.SIGTSTP
        if event == "time" and is_typed:
            is_typed, stops = False, stops + 1
    assert world.sent.count((os.getpid(), signal.SIGSTOP)) == stops


# K2: what ends supervisors, as a logout does, does not end a queue's jobs.
@given(st.lists(EVENTS, max_size=12))
def test_of_a_queues_job_only_the_queues_word_is_passed_on(events: list[Any]) -> None:
    world = World(events, is_of_queue=True)
    world.lives()
    stops = sum(event in ((STOP, SHELL), (STOP, 0)) for event in world.seen)
    assert world.sent == [(KEEPER_PID, STOP)] * stops
