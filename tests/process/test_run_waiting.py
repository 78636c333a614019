"""Waiting: in order, woken by the kernel, and leaving nothing when it is given up."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import (
    Box,
    Gate,
    gone,
    kill,
    kill_9,
    sleeps_in_poll,
    state_of,
    switches,
)
from tests.systemd.helpers import processes


def names(box: Box, event: str) -> list[str]:
    return [line.split()[1] for line in box.lines() if line.startswith(event)]


# X4
def test_waiters_are_served_in_the_order_in_which_they_came(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    waiting = [box.wait_in_line(f"w{number}") for number in range(4)]
    gate.open()
    assert [process.wait(LONGEST_S) for process in waiting] == [0] * 4
    assert names(box, "start") == ["holder", "w0", "w1", "w2", "w3"]
    assert names(box, "end") == ["holder", "w0", "w1", "w2", "w3"]
    assert job.process.wait() == 0
    box.assert_clean()


# D6: poll(2) counts 24 days at most
def test_a_waiter_may_be_told_to_wait_for_months(box: Box, gate: Gate) -> None:
    box.hold(gate)
    waiter = box.wait_in_line("patient", options=("--max-wait", "60d"))
    gate.open()
    assert waiter.wait(LONGEST_S) == 0
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
    assert [process.wait(LONGEST_S) for process in waiters] == [0, 0]
    assert job.process.wait() == 0


def settled(pid: int) -> int:
    """The number of its sleeps, once it sleeps for longer than its own last looks."""
    return until(lambda: 0 if not sleeps_in_poll(pid) else constant(pid), "it sleeps soundly")


def constant(pid: int) -> int:
    before = switches(pid)
    time.sleep(0.3)  # longer than all of watch._SETTLING_S together
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
    assert waiter.wait(LONGEST_S) == 0
    box.assert_clean()


# A2, A9
@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_waiter_that_gives_up_takes_its_ticket_along(box: Box, gate: Gate, signo: signal.Signals) -> None:
    job = box.hold(gate)
    first, second = box.wait_in_line("first"), box.wait_in_line("second")
    kill(first.pid, signo)
    _, error = first.communicate(timeout=LONGEST_S)
    assert first.returncode == -signo  # the shell must see that it died of it
    assert b"Traceback" not in error
    assert [ticket.name for ticket in box.tickets()] == ["second"]
    gate.open()
    assert second.wait(LONGEST_S) == 0
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
    assert second.wait(LONGEST_S) == 0
    assert names(box, "start") == ["holder", "second"]
    assert job.process.wait() == 0
    box.assert_clean()


def config(box: Box, text: str) -> dict[str, str]:
    path = box.root / "config.toml"
    path.write_text(text)
    path.chmod(0o644)
    return {"SLICER_CONFIG": str(path)}


# X4: backfill, and its bound
@pytest.mark.parametrize("reserve_after", ["0s", "1h"])
def test_small_ones_pass_a_blocked_one_until_it_has_a_reservation(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate, reserve_after: str
) -> None:
    box = make_box(2)
    box.env |= config(box, f'[waiting]\nreserve_after = "{reserve_after}"\n')
    jobs = [box.hold(gate, name="a"), box.hold(second_gate, name="b")]
    both = box.wait_in_line("both", options=("--cpu-slots", "2"))
    small = box.wait_in_line("small")
    gate.open()
    assert jobs[0].process.wait(LONGEST_S) == 0
    # One slot is free now: too little for the first in line, enough for the small one behind it.
    if reserve_after == "0s":
        until(lambda: not any(lease.name == "a" for lease in box.snapshot().leases), "a is over")
        settled(small.pid)
        assert names(box, "start") == ["a", "b"]
        last = ["both", "small"]
    else:
        assert small.wait(LONGEST_S) == 0
        settled(both.pid)
        last = ["small", "both"]
    second_gate.open()
    assert [process.wait(LONGEST_S) for process in (both, small)] == [0, 0]
    assert names(box, "start") == ["a", "b", *last]
    assert jobs[1].process.wait() == 0
    box.assert_clean()


# X4
def test_priority_comes_before_arrival(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    asked = {"low": "-5", "normal": "0", "high": "7", "higher": "100"}
    waiting = [box.wait_in_line(name, options=("--priority", number)) for name, number in asked.items()]
    gate.open()
    assert [process.wait(LONGEST_S) for process in waiting] == [0] * 4
    assert names(box, "start") == ["holder", "higher", "high", "normal", "low"]
    assert job.process.wait() == 0
    box.assert_clean()


# X4: a change wakes who it concerns, however many wait
def test_a_change_wakes_those_whom_it_concerns(box: Box, gate: Gate, second_gate: Gate) -> None:
    job = box.hold(gate)
    script = f'echo "start first $$" >>"$LOG"; read x <"{second_gate.path}"'
    first = box.wait_in_line("first", "sh", "-c", script)
    others = [box.wait_in_line(f"w{number}") for number in range(6)]
    before = [settled(process.pid) for process in others]
    gate.open()
    until(lambda: box.started("first"), "the first one runs")
    woken = settled(others[0].pid)  # it leads now
    assert woken > before[0]
    # If the new leader took its time to look, the holder has rung the next one, too. Nobody else was woken.
    assert [switches(process.pid) for process in others[2:]] == before[2:]
    kill(others[3].pid)
    assert others[3].wait() == -9
    settled(others[4].pid)  # it has buried the one ahead of it
    assert [len(box.tickets()), switches(others[2].pid), switches(others[5].pid)] == [5, before[2], before[5]]
    second_gate.open()
    assert first.wait(LONGEST_S) == 0
    assert [process.wait(LONGEST_S) for process in others] == [0, 0, 0, -9, 0, 0]
    assert job.process.wait() == 0
    box.assert_clean()


# A8
@pytest.mark.parametrize("then", ["run", "fail", None])
def test_a_job_that_waited_long_enough_runs_anyway_or_fails(box: Box, gate: Gate, then: str | None) -> None:
    job = box.hold(gate)
    chosen = ("--then", then) if then else ()
    options = ("-p", "heavy", "--name", "late", "--max-wait", "200ms", *chosen)
    done = box.run(*options, "--", "sh", "-c", 'echo "start late $$" >>"$LOG"')
    if then == "fail":
        assert done.returncode == 75
        told, busy = done.stderr.splitlines()[-2:]
        assert told.startswith("slicer: gave up after ")
        assert "held by holder" in told
        assert json.loads(busy)["holder"]["name"] == "holder"
        assert not box.started("late")
    else:
        assert done.returncode == 0
        assert "running anyway" in done.stderr
        (outcome,) = box.outcomes()
        assert (outcome.name, outcome.forced, outcome.cpu_slots) == ("late", 1, 1)
    gate.open()
    assert job.process.wait() == 0
    box.assert_clean()


# A8
def test_waiting_no_time_at_all_is_asking_once(box: Box, gate: Gate) -> None:
    assert box.run("-p", "heavy", "-q", "--max-wait", "0", "--then", "fail", "--", "true").returncode == 0
    job = box.hold(gate)
    done = box.run("-p", "heavy", "-q", "--max-wait", "0", "--then", "fail", "--", "true")
    assert (done.returncode, json.loads(done.stderr)["error"]) == (75, "cpu-busy")
    gate.open()
    assert job.process.wait() == 0
    box.assert_clean()


# K2: all at once or not at all, so two can only wait for each other from inside; and that is told
def test_jobs_that_would_wait_for_each_other_for_ever_are_told_so(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate
) -> None:
    box = make_box(2)
    more = 'echo "start $0 $$" >>"$LOG"; read x <"$1"; exec inner --cpu-slots 2 -- true'
    processes = [
        box.start("-p", "heavy", "-q", "--name", name, "--", "sh", "-c", more, name, str(each.path))
        for name, each in (("one", gate), ("other", second_gate))
    ]
    until(lambda: box.started("one") and box.started("other"), "both run")
    gate.open()
    until(lambda: box.tickets(), "the first waits for one more slot, which the other may give back")
    second_gate.open()
    assert processes[1].wait(LONGEST_S) == 75
    assert b"would wait for ever" in processes[1].communicate()[1]
    assert processes[0].wait(LONGEST_S) == 0
    box.assert_clean()


# B1: not a wait for ever
def test_the_infeasible_is_refused_while_others_wait(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    wide = config(box, '[profiles.wide]\ninherits = "heavy"\ncpu_slots = 2\n')
    done = box.run("-p", "wide", "-q", "--", "true", env=wide)
    assert done.returncode == 2
    assert done.stderr == (
        "slicer: 2 CPU slots were asked for, but this machine has 1 CPU slot (ask for fewer)\n"
    )
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()


def test_a_waiter_takes_little(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    waiters = [box.wait_in_line(name) for name in ("first", "second")]
    settled(waiters[0].pid)
    # The ledger's four directories and its lock, its ticket (twice), its bell: no connection, no lease. The
    # first has its keeper ready (two pipes and a pidfd) and watches the leases; the second watches the first
    # (a pidfd).
    assert [len(descriptors(box, process.pid)) for process in waiters] == [12, 9]
    gate.open()
    assert [process.wait(LONGEST_S) for process in (*waiters, job.process)] == [0, 0, 0]


def descriptors(box: Box, pid: int) -> list[str]:
    links = [link for fd, link in processes.descriptors(pid).items() if fd > 2]
    return [link for link in links if link.startswith((str(box.state), "anon_inode", "socket", "pipe"))]


# K2: the limits of a kernel's instance of inotify are per user, and jobs run for long
def test_a_job_that_had_to_wait_keeps_nothing_of_the_wait(box: Box, gate: Gate, second_gate: Gate) -> None:
    job = box.hold(gate)
    script = f'echo "start next $$" >>"$LOG"; read x <"{second_gate.path}"'
    waiter = box.wait_in_line("next", "sh", "-c", script)
    gate.open()
    until(lambda: box.started("next"), "it runs")
    (lease,) = until(lambda: [lease for lease in box.leases() if lease.name == "next"], "it has its lease")
    for pid in (waiter.pid, lease.keeper):
        # The ledger's four directories and its lock, the lease (twice), two pipes.
        until(lambda pid=pid: len(descriptors(box, pid)) == 9, "nothing else is open")  # type: ignore[misc]
    second_gate.open()
    assert [waiter.wait(LONGEST_S), job.process.wait(LONGEST_S)] == [0, 0]
    box.assert_clean()


# X4: a waiting job stopped with Ctrl-Z keeps its place and stands in nobody's way
def test_a_stopped_first_in_line_holds_nobody_up(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate
) -> None:
    box = make_box(2)
    jobs = [box.hold(gate, name="a"), box.hold(second_gate, name="b")]
    first = box.wait_in_line("first")
    second, third = box.wait_in_line("second"), box.wait_in_line("third")
    settled(first.pid)
    kill(first.pid, signal.SIGSTOP)
    until(lambda: state_of(first.pid) == "T", "it is stopped")
    gate.open()
    assert [second.wait(LONGEST_S), third.wait(LONGEST_S)] == [0, 0]
    assert not box.started("first")
    kill(first.pid, signal.SIGCONT)
    assert first.wait(LONGEST_S) == 0
    second_gate.open()
    assert [job.process.wait(LONGEST_S) for job in jobs] == [0, 0]
    box.assert_clean()


# X4, A2: and who takes its place leads, for ends that nobody announces too
def test_who_comes_after_a_stopped_first_in_line_leads(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate
) -> None:
    box = make_box(2)
    jobs = [box.hold(gate, name="a"), box.hold(second_gate, name="b")]
    first = box.wait_in_line("first", options=("--cpu-slots", "2"))
    second = box.wait_in_line("second", options=("--cpu-slots", "2"))
    settled(first.pid)
    kill(first.pid, signal.SIGSTOP)
    until(lambda: state_of(first.pid) == "T", "it is stopped")
    gate.open()
    assert jobs[0].process.wait(LONGEST_S) == 0
    settled(second.pid)
    kill_9(jobs[1].outer, jobs[1].keeper, jobs[1].command)
    assert second.wait(LONGEST_S) == 0
    kill(first.pid, signal.SIGCONT)
    assert first.wait(LONGEST_S) == 0
    box.assert_clean()
