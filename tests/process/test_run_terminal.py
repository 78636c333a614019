"""At a terminal, a job stops and goes on as a whole, in whatever order its processes get the signals.

The kernel signals a group one by one, the command first, then the keeper and the supervisor. It may be
interrupted in between, so here each gets its copy alone, and the next comes when all are at rest.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.harness import Box, children, command_of, state_of
from tests.systemd.helpers.terminal import BASH, CTRL_Z, PROMPT, Terminal

CONT, TSTP = signal.SIGCONT, signal.SIGTSTP


@dataclass
class Processes:
    """Those of one job."""

    supervisor: int
    keeper: int
    command: int

    def get(self, whom: str, signo: int) -> None:
        os.kill(getattr(self, whom), signo)
        until(self.are_at_rest, "all are at rest")

    def are_at_rest(self) -> bool:
        """Whether all sleep for a while: what one is sent can make it send something to another."""
        for _ in range(10):
            if not all(map(is_at_rest, (self.command, self.keeper, self.supervisor))):
                return False
            time.sleep(0.002)
        return True

    def states(self) -> tuple[str, str]:
        return state_of(self.supervisor), state_of(self.command)


def is_at_rest(pid: int) -> bool:
    """Whether it is stopped, or sleeps and has taken each signal that it was sent."""
    status = Path(f"/proc/{pid}/status").read_text()
    state, pending = re.findall(r"^(?:State|ShdPnd):\t(\w+)", status, re.M)
    return state == "T" or (state == "S" and int(pending, 16) == 0)


@pytest.fixture
def bash(box: Box) -> Iterator[Terminal]:
    with Terminal(*BASH, env=box.env, cwd=box.root) as terminal:
        terminal.expect(PROMPT)
        yield terminal


@pytest.fixture
def stopped(bash: Terminal, box: Box) -> Processes:
    """A job that Ctrl-Z has stopped."""
    bash.line("inner -p heavy --name x -- sleep 1000")
    lease = until(lambda: next((each for each in box.leases() if each.keeper), None), "its keeper")
    (command,) = until(lambda: children(lease.keeper), "its command")
    job = Processes(lease.pid, lease.keeper, command)
    until(lambda: command_of(command) == "sleep 1000 " and job.are_at_rest(), "all wait for the command")
    bash.type(CTRL_Z)
    bash.expect("Stopped")
    bash.expect(PROMPT)
    assert job.states() == ("T", "T")
    return job


def test_who_does_not_wait_is_told_in_words(bash: Terminal, box: Box) -> None:  # B1, W2
    bash.line("inner -p heavy --name holder -- sleep 1000 &")
    until(lambda: [each for each in box.leases() if each.keeper], "it holds the slot")
    bash.line("inner -p heavy --no-wait -- true; echo code $?")
    told = bash.expect("code 75")
    assert "not started: it would wait for a CPU slot, held by holder" in told
    assert '"error"' not in told
    bash.line("kill %1; wait %1; echo over $?")
    bash.expect("over 143")


FG = [("command", CONT), ("keeper", CONT), ("supervisor", CONT)]

LATE = {
    "fg's copies for slicer": [FG[0], ("command", TSTP), ("keeper", TSTP), FG[1], FG[2]],
    "of these the keeper's was undone by Ctrl-Z": [FG[0], ("command", TSTP), ("keeper", TSTP), FG[2]],
    "fg's copy for the supervisor": [FG[0], FG[1], ("command", TSTP), ("keeper", TSTP), FG[2]],
}


# A9: the shell would wait for a stop that never comes
@pytest.mark.parametrize("order", LATE.values(), ids=LATE)
def test_ctrl_z_stops_a_job_that_fg_has_not_continued_as_a_whole(
    stopped: Processes, bash: Terminal, order: list[tuple[str, int]]
) -> None:
    for whom, signo in order:
        stopped.get(whom, signo)
    assert stopped.states() == ("T", "T")
    bash.line("fg")
    until(lambda: stopped.states() == ("S", "S"), "it goes on")
    before = bash.seen.count("Stopped")
    bash.type(CTRL_Z)
    until(lambda: bash.expect(PROMPT) and bash.seen.count("Stopped") > before, "the shell has seen the stop")


ALONE = {
    "the supervisor": [FG[2]],
    "the supervisor, after fg and Ctrl-Z": [*FG, ("command", TSTP), ("keeper", TSTP), FG[2]],
    "slicer's processes": [FG[1], FG[2]],
}


# A9: kill -CONT, by a person or a program that knows only slicer
@pytest.mark.parametrize("order", ALONE.values(), ids=ALONE)
def test_a_sigcont_for_slicer_continues_the_command(
    stopped: Processes, order: list[tuple[str, int]]
) -> None:
    for whom, signo in order:
        stopped.get(whom, signo)
    until(lambda: stopped.states() == ("S", "S"), "it goes on")
