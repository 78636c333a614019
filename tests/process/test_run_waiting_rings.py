"""No ring is lost on the stopped, the dead, or what somebody put among the tickets; and none does harm."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import (
    Box,
    Gate,
    kill,
    kill_9,
    sleeps_in_flock,
    state_of,
)
from tests.process.test_run_waiting import settled


# X4, A2: nobody tells the stopped that the one ahead has died, so it cannot pass that on
def test_whoever_comes_after_a_dead_and_a_stopped_one_is_woken(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    first, second, third = (box.wait_in_line(name) for name in ("first", "second", "third"))
    for process in (first, second, third):
        settled(process.pid)
    kill(second.pid, signal.SIGSTOP)
    until(lambda: state_of(second.pid) == "T", "it is stopped")
    kill_9(first.pid)
    gate.open()
    assert third.wait(LONGEST_S) == 0
    assert not box.started("second")
    kill(second.pid, signal.SIGCONT)
    assert [second.wait(LONGEST_S), job.process.wait(LONGEST_S)] == [0, 0]
    box.assert_clean()


def _directory(path: Path) -> None:
    path.mkdir()


def _garbage(path: Path) -> None:
    path.write_text("garbage\n")


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


# X4, X3: it lies between two that wait, where the first of them looks for who comes next
@pytest.mark.parametrize("put", [_directory, _garbage, _link])
@pytest.mark.parametrize("suffix", ["", "-of-somebody"])
def test_no_junk_among_the_tickets_swallows_a_ring(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate, put: Callable[[Path], None], suffix: str
) -> None:
    box = make_box(2)
    jobs = [box.hold(gate, name="a"), box.hold(second_gate, name="b")]
    last_gate = Gate(box.root / "last")
    first = box.wait_in_line(
        "first", "sh", "-c", f'echo "start first $$" >>"$LOG"; read x <"{last_gate.path}"'
    )
    second = box.wait_in_line("second")
    for process in (first, second):
        settled(process.pid)
    (name,) = (
        path.name for path in (box.state / "tickets").iterdir() if b"NAME=first\n" in path.read_bytes()
    )
    rank, arrived_us, _, *wants = name.split("-")
    junk = "-".join([rank, f"{int(arrived_us) + 1:016d}", "aaaaaaaaaaaa", *wants]) + suffix
    put(box.state / "tickets" / junk)
    gate.open()
    until(lambda: box.started("first"), "the first runs")
    settled(second.pid)
    second_gate.open()
    assert second.wait(LONGEST_S) == 0, "it was not woken"
    last_gate.open()
    assert [first.wait(LONGEST_S), *(job.process.wait(LONGEST_S) for job in jobs)] == [0, 0, 0]
    left = box.state / "tickets" / junk
    if left.is_dir() and not left.is_symlink():
        left.rmdir()
    else:
        left.unlink(missing_ok=True)
    box.assert_clean()


# A2, X3: whoever wakes the next in line looks at a ticket that is not locked yet, nor written
def test_a_ticket_that_is_just_being_made_is_left_alone(box: Box, gate: Gate) -> None:
    def faults(point: str) -> dict[str, str]:
        return {"SLICER_FAULTS": f"{box.state}:{point}"}

    job = box.hold(gate)
    first = box.wait_in_line("first", env=faults("supervisor-let-go"))
    gate.open()
    until(lambda: state_of(first.pid) == "T", "it is about to look who comes next")
    newcomer = box.start("-p", "heavy", "--name", "newcomer", "--", "true", env=faults("ledger-created"))
    until(lambda: state_of(newcomer.pid) == "T", "its ticket is there, and empty")
    box.state.with_suffix(".go").touch()
    kill(first.pid, signal.SIGCONT)
    until(lambda: sleeps_in_flock(first.pid), "it has looked, and waits for the ledger's lock")
    assert len(list((box.state / "tickets").iterdir())) == 1
    kill(newcomer.pid, signal.SIGCONT)
    assert [first.wait(LONGEST_S), newcomer.wait(LONGEST_S), job.process.wait(LONGEST_S)] == [0, 0, 0]
    assert not [line for line in (first.stderr, newcomer.stderr) if line and b"ignored" in line.read()]
    box.assert_clean()
