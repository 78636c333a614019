"""``slicer queue`` at a terminal: the keys, and what is left of the terminal afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.queues import Queues, wide_open
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

QUEUE = "slicer queue jobs.txt --log-dir jobs.logs --sim 2 --poll 0.1 -j 1"


@pytest.fixture
def queues(slicer: Slicer) -> Queues:
    return Queues(slicer)


@pytest.fixture
def bash(slicer: Slicer) -> Iterator[Terminal]:
    """An interactive bash with job control, and ``stty -g`` in ``before``."""
    with Terminal(*BASH, env=slicer.environ(), cwd=slicer.directory) as terminal:
        terminal.resize(40, 120)
        terminal.expect(PROMPT)
        terminal.line("stty -g > before")
        terminal.expect(PROMPT)
        yield terminal


def in_order(terminal: Terminal) -> None:
    """At the prompt again: settings as before, the cursor there and in the first column, no other page."""
    terminal.line("stty -g | cmp - before && echo as' 'before")
    terminal.expect("as before\n")
    terminal.expect(PROMPT)
    seen = terminal.seen
    assert seen.count("\x1b[?25l") <= seen.count("\x1b[?25h")
    assert seen.count("\x1b[?1049h") == seen.count("\x1b[?1049l")


def test_ctrl_c_once_starts_nothing_new_and_waits(
    slicer: Slicer, queues: Queues, bash: Terminal
) -> None:  # E8
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}", "[vram=1G] echo second")
    bash.line(QUEUE)
    bash.expect("job 1 started")
    bash.type(CTRL_C)
    bash.expect("nothing new is started")
    with wide_open(gate):
        bash.expect("job 1 ok")
        bash.expect(PROMPT)
    bash.line("echo code=$?")
    bash.expect("code=130\n")
    bash.expect(PROMPT)
    in_order(bash)
    assert queues.exit_codes() == {1: 0}


def test_ctrl_c_twice_ends_the_jobs(slicer: Slicer, queues: Queues, bash: Terminal) -> None:  # E8
    queues.write("[vram=1G] sleep 1000")
    bash.line(QUEUE)
    bash.expect("job 1 started")
    bash.type(CTRL_C)
    bash.expect("nothing new is started")
    bash.type(CTRL_C)
    bash.expect(PROMPT)
    bash.line("echo code=$?")
    bash.expect("code=130\n")
    bash.expect(PROMPT)
    in_order(bash)
    assert not systemctl.scopes()
    assert queues.exit_codes() == {}  # it is to run again


def test_ctrl_z_stops_the_queue_and_not_its_jobs(
    slicer: Slicer, queues: Queues, bash: Terminal
) -> None:  # E8
    gate = slicer.gate()
    queues.write(f"[vram=1G] echo up; : < {gate}; echo over", "[vram=1G] echo second")
    bash.line(QUEUE)
    bash.expect("job 1 started")
    bash.type(CTRL_Z)
    assert "Stopped" in bash.expect(PROMPT)
    with wide_open(gate):
        until(lambda: queues.log(1) == "up\nover\n", "the job ends all the same")
    assert not queues.journal("ended")
    bash.line("fg")
    bash.expect("job 2 ok")
    bash.expect(PROMPT)
    bash.line("echo code=$?")
    bash.expect("code=0\n")
    bash.expect(PROMPT)
    in_order(bash)


def test_a_closed_terminal_lets_the_jobs_end_well(slicer: Slicer, queues: Queues) -> None:  # E7
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}; exit 4", "[vram=1G] echo second")
    with Terminal(*QUEUE.split(), env=slicer.environ(), cwd=slicer.directory) as terminal:
        terminal.expect("job 1 started")
        terminal.close()
        with wide_open(gate):
            assert terminal.end() == 128 + signal.SIGHUP
    assert queues.exit_codes() == {1: 4}


def test_killed_at_a_terminal_it_leaves_that_usable(
    slicer: Slicer, queues: Queues, bash: Terminal
) -> None:  # E8
    slicer.dirty = True
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}")
    bash.line(QUEUE)
    bash.expect("job 1 started")
    (queue,) = [pid for pid in processes.children(bash.pid) if processes.is_alive(pid)]
    processes_before = processes.read(queue, "cmdline")
    assert b"queue" in processes_before
    systemctl.output("kill", "-KILL", str(queue))
    bash.expect(PROMPT)
    in_order(bash)
    with wide_open(gate):
        bash.line(QUEUE)
        bash.expect("job 1 ok")
        bash.expect(PROMPT)
    in_order(bash)
