"""Waiting costs nothing: no process that waits wakes up while nothing happens."""

from __future__ import annotations

import time
from pathlib import Path

from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate, sleeps_in_poll, switches

QUIET_S = 3.0


def settled(pid: int) -> int:
    """The number of its sleeps, once it has not woken for longer than any of its own first looks."""
    return until(lambda: unchanged(pid), f"{pid} sleeps soundly")


def unchanged(pid: int) -> int:
    before = switches(pid)
    time.sleep(0.5)  # not to wait for something, but to see that there is nothing
    return before if sleeps_in_poll(pid) and switches(pid) == before else 0


# X4
def test_waiters_never_wake_up_while_nothing_happens(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    waiting = [box.wait_in_line(f"w{number}") for number in range(5)]
    before = {process.pid: settled(process.pid) for process in waiting}
    ticks = {process.pid: cpu_ticks(process.pid) for process in waiting}
    time.sleep(QUIET_S)  # the measurement itself
    assert {pid: switches(pid) for pid in before} == before
    assert {pid: cpu_ticks(pid) for pid in ticks} == ticks
    gate.open()
    assert [process.wait(LONGEST_S) for process in waiting] == [0] * 5
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
