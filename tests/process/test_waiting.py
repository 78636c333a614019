"""Waiting: in order, woken by the kernel, and leaving nothing when it is given up."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.harness import Box, Gate, gone, kill, kill_9, sleeps_in_poll, switches, until


def names(box: Box, event: str) -> list[str]:
    return [line.split()[1] for line in box.lines() if line.startswith(event)]


# X4
def test_waiters_are_served_in_the_order_in_which_they_came(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    waiting = [box.wait_in_line(f"w{number}") for number in range(4)]
    gate.open()
    assert [process.wait(20) for process in waiting] == [0] * 4
    assert names(box, "start") == ["holder", "w0", "w1", "w2", "w3"]
    assert names(box, "end") == ["holder", "w0", "w1", "w2", "w3"]
    assert job.process.wait() == 0
    box.assert_clean()


# X4: no polling
def test_a_waiter_sleeps_until_something_happens(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    waiters = [box.wait_in_line(name) for name in ("w0", "w1")]
    # Looking at the ledger, running a job that takes nothing, being refused: none of these is news to them.
    before = [settled(process.pid) for process in waiters]
    box.snapshot()
    time.sleep(1.0)  # the measurement itself: a poller would have woken up in this second
    assert [switches(process.pid) for process in waiters] == before
    assert box.run("-p", "heavy", "--no-wait", "-q", "--", "true").returncode == 75
    assert [switches(process.pid) for process in waiters] == before
    gate.open()
    assert [process.wait(20) for process in waiters] == [0, 0]
    assert job.process.wait() == 0


def settled(pid: int) -> int:
    """The number of its sleeps, once it sleeps for longer than its own last looks."""
    return until(lambda: 0 if not sleeps_in_poll(pid) else constant(pid), "it sleeps soundly")


def constant(pid: int) -> int:
    before = switches(pid)
    time.sleep(0.3)  # longer than all of watch._SETTLING_MS together
    return before if switches(pid) == before else 0


# A2, X4
@pytest.mark.parametrize("way", ["exit", "kill outer", "kill all"])
def test_a_waiter_is_woken_by_every_end_of_the_holder(box: Box, gate: Gate, way: str) -> None:
    job = box.hold(gate)
    waiter = box.wait_in_line("next")
    settled(waiter.pid)
    if way == "exit":
        gate.open()
    elif way == "kill outer":
        kill(job.outer)
        gate.open()
    else:
        kill_9(job.outer, job.keeper, job.command)
    until(lambda: gone(job.command), "the holder ends")
    assert waiter.wait(20) == 0
    box.assert_clean()


# A2, A9
@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_waiter_that_gives_up_takes_its_ticket_along(box: Box, gate: Gate, signo: signal.Signals) -> None:
    job = box.hold(gate)
    first, second = box.wait_in_line("first"), box.wait_in_line("second")
    kill(first.pid, signo)
    _, error = first.communicate(timeout=10)
    assert first.returncode == -signo  # the shell must see that it died of it
    assert b"Traceback" not in error
    assert [ticket.name for ticket in box.tickets()] == ["second"]
    gate.open()
    assert second.wait(10) == 0
    assert names(box, "start") == ["holder", "second"]
    assert job.process.wait() == 0
    box.assert_clean()


# A2
def test_a_killed_waiter_holds_nobody_up(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    first, second = box.wait_in_line("first"), box.wait_in_line("second")
    kill(first.pid)
    first.wait()
    gate.open()
    assert second.wait(10) == 0
    assert names(box, "start") == ["holder", "second"]
    assert job.process.wait() == 0
    box.assert_clean()


# X4
def test_a_blocked_waiter_keeps_small_ones_from_overtaking(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate
) -> None:
    box = make_box(2)
    jobs = [box.hold(gate, name="a"), box.hold(second_gate, name="b")]
    config = box.root / "config.toml"
    config.write_text('[profiles.wide]\ninherits = "heavy"\ncpu_slots = 2\n')
    config.chmod(0o644)
    both = box.wait_in_line("both", options=("-p", "wide"), env={"SLICER_CONFIG": str(config)})
    small = box.wait_in_line("small")
    gate.open()
    assert jobs[0].process.wait(10) == 0
    # One slot is free now, and the small one must not have it.
    until(lambda: not any(lease.name == "a" for lease in box.snapshot().leases), "a is over")
    settled(small.pid)
    assert names(box, "start") == ["a", "b"]
    second_gate.open()
    assert [process.wait(10) for process in (both, small)] == [0, 0]
    assert names(box, "start") == ["a", "b", "both", "small"]
    assert jobs[1].process.wait() == 0
    box.assert_clean()


# B1: not a wait for ever
def test_the_infeasible_is_refused_while_others_wait(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    config = box.root / "config.toml"
    config.write_text('[profiles.wide]\ninherits = "heavy"\ncpu_slots = 2\n')
    config.chmod(0o644)
    done = box.run("-p", "wide", "-q", "--", "true", env={"SLICER_CONFIG": str(config)})
    assert done.returncode == 2
    assert done.stderr == (
        "slicer: 2 CPU slots were asked for, but this machine has 1 CPU slot (ask for fewer)\n"
    )
    gate.open()
    assert job.process.wait(10) == 0
    box.assert_clean()


def test_a_waiter_takes_little(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    waiter = box.wait_in_line("next")
    # The ledger's lock, its ticket, the watch: no connection, no pipe, no lease.
    links = [str(path.readlink()) for path in Path(f"/proc/{waiter.pid}/fd").iterdir() if int(path.name) > 2]
    own = [link for link in links if link.startswith((str(box.state), "anon_inode", "socket", "pipe"))]
    assert len(own) == 3, links
    gate.open()
    assert [waiter.wait(10), job.process.wait(10)] == [0, 0]
