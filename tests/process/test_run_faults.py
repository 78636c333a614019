"""Killed at any point between lease and outcome: nothing is granted twice or lost, the next is served.

The processes are held still at named points (see slicer.faults), and killed just there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.kernel import proc
from tests.patience import LONGEST_S, until
from tests.process import (
    test_broker,
    test_broker_client,
    test_control,
    test_queue_crash,
    test_route_oom,
    test_run_detach,
)
from tests.process.harness import (
    SRC,
    Box,
    Gate,
    children,
    gone,
    kill,
    kill_9,
    sleeps_in_flock,
    sleeps_in_poll,
    state_of,
)
from tests.systemd import test_broker_faults

# Runs under a lock of its own, as an outside witness.
JOB = (
    "sh",
    "-c",
    'echo "start $0 $$" >>"$LOG"; flock -n "$LOG.lock" sleep 0.06 || echo "VIOLATION $0" >>"$LOG"; exit 3',
)

# The supervisor alone.
ALONE = [
    "ledger-judged",
    "ledger-created",
    "ledger-locked",
    "ledger-written",
    "launch-acquired",
]
# The supervisor, while there is a keeper.
OUTER = [
    "supervisor-forked", "supervisor-started-scope", "ledger-updating", "ledger-laid-aside",
    "ledger-half-written", "supervisor-updated-lease", "supervisor-let-go", "supervisor-waiting",
    "supervisor-heard-end", "ending-finished", "ledger-releasing",
    "ledger-unlinked", "ledger-closed", "ending-released", "ending-written",
    "supervisor-settled",
]  # fmt: skip
# The keeper, while there is a supervisor.
KEEPER = ["keeper-forked", "keeper-ordered", "keeper-spawned", "keeper-reaped", "keeper-ended", "keeper-told"]
# The keeper after the supervisor's death, and whether the history gets a row: by the keeper, or of the lease.
ORPHANED = {
    "keeper-ended": True, "ending-finished": True, "ledger-releasing": True, "ledger-unlinked": False,
    "ledger-closed": False, "ending-released": False, "ending-written": True,
}  # fmt: skip


def cases() -> Iterator[object]:
    for point in ALONE:
        yield pytest.param(point, "outer")
    for point in (
        "supervisor-told-keeper",
        "supervisor-reaped-keeper",
    ):  # the keeper is on its way out, or has gone
        yield pytest.param(point, "outer")
    for point in OUTER:
        for victims in ("outer", "keeper", "outer keeper"):
            yield pytest.param(point, victims)
    for point in KEEPER:
        for victims in ("keeper", "outer", "outer keeper"):
            yield pytest.param(point, victims)


def start(box: Box, name: str, *points: str) -> subprocess.Popen[bytes]:
    env = {"SLICER_FAULTS": f"{box.state}:{','.join(points)}"} if points else {}
    return box.start("-p", "heavy", "-q", "--name", name, "--", *JOB, name, env=env)


def stopped(box: Box) -> list[int]:
    return [pid for pid in box.processes() if state_of(pid) == "T"]


def start_next(box: Box) -> subprocess.Popen[bytes]:
    """Another job, started and as far as it gets while the first stands still."""
    process = start(box, "next")
    until(
        lambda: sleeps_in_poll(process.pid) or sleeps_in_flock(process.pid) or process.poll() is not None,
        "the next one waits, or is done",
    )
    return process


def go_on(box: Box) -> bool:
    """Let whoever stands still go on, now and from now on; whether nobody is left."""
    box.state.with_suffix(".go").touch()
    for pid in stopped(box):
        kill(pid, signal.SIGCONT)
    return not box.processes()


def check_aftermath(box: Box, following: subprocess.Popen[bytes], rows: tuple[int, ...]) -> None:
    """The next one was served, once and alone; ``rows``: how often the first one may be recorded."""
    until(lambda: go_on(box), f"all end; {box.describe()}")
    assert following.wait(1) == 3
    lines = box.lines()
    assert not [line for line in lines if line.startswith("VIOLATION")]
    assert sum(line.startswith("start next ") for line in lines) == 1
    names = [outcome.name for outcome in box.outcomes()]
    assert names.count("next") == 1
    assert names.count("it") in rows, (names, lines)
    box.assert_clean()


# A1, A2, K2, X3
@pytest.mark.parametrize(("point", "victims"), list(cases()))
def test_killed_beside_a_waiter(box: Box, point: str, victims: str) -> None:
    process = start(box, "it", point)
    until(lambda: stopped(box) or process.poll() is not None, f"somebody comes to {point}")
    assert stopped(box), f"nobody comes to {point}"
    keeper = next((pid for pid in box.processes() if proc.parent(pid) == process.pid), 0)
    following = start_next(box)
    kill_9(*({"outer": process.pid, "keeper": keeper}[name] for name in victims.split()))
    until(lambda: go_on(box) or gone(process.pid), "the rest goes on")
    ran = "start it " in "\n".join(box.lines())
    both_died = victims == "outer keeper" or not keeper
    until(lambda: go_on(box), f"all end; {box.describe()}")
    ran = ran or "start it " in "\n".join(box.lines())
    # A killed keeper cannot tell whether the command ran: the supervisor records what it knows.
    maybe = (ran and both_died) or (not ran and victims == "keeper")
    check_aftermath(box, following, (0, 1) if maybe else (1,) if ran else (0,))


# X3, K2
@pytest.mark.parametrize("point", list(ORPHANED))
def test_the_keeper_killed_after_the_supervisor(box: Box, point: str) -> None:
    process = start(box, "it", "supervisor-let-go", point)
    until(lambda: process.pid in stopped(box), "the supervisor has let the keeper go")
    kill_9(process.pid)
    (keeper,) = until(lambda: stopped(box), f"the keeper comes to {point}")
    following = start_next(box)
    kill_9(keeper)
    check_aftermath(box, following, (1,) if ORPHANED[point] else (0,))


# X3
@pytest.mark.parametrize("point", list(ORPHANED))
def test_the_keeper_finishes_alone_from_wherever_the_supervisor_died(box: Box, point: str) -> None:
    process = start(box, "it", point if point != "keeper-ended" else "supervisor-heard-end")
    until(lambda: process.pid in stopped(box), f"the supervisor comes to {point}")
    following = start_next(box)
    kill_9(process.pid)
    check_aftermath(box, following, (1,))


def check_that_the_next_one_waits(box: Box, gate: Gate) -> None:
    """Though slicer has gone, the job keeps what it has until its gate opens; and it is recorded once."""
    following = start(box, "next")
    until(lambda: sleeps_in_poll(following.pid), "the next one waits")
    assert not box.started("next")
    gate.open()
    check_aftermath(box, following, (1,))


# The supervisor fails by itself, from the moment that the keeper has its order.
FAILING = ["supervisor-let-go", "supervisor-waiting"]


# D1: a double grant otherwise
@pytest.mark.parametrize("point", FAILING)
def test_an_exception_after_the_order_does_not_free_what_the_job_uses(
    box: Box, gate: Gate, point: str
) -> None:
    script = f'echo "start it $$" >>"$LOG"; read x <{gate.path}; exit 3'
    env = {"SLICER_FAULTS": f"{box.state}:{point}!"}
    process = box.start("-p", "heavy", "-q", "--name", "it", "--", "sh", "-c", script, env=env)
    until(lambda: box.started("it"), "the command runs")
    assert process.wait(LONGEST_S) == 125
    check_that_the_next_one_waits(box, gate)


# D2: a double grant otherwise
def test_a_job_that_no_marker_shows_keeps_its_lease_without_a_keeper(box: Box, gate: Gate) -> None:
    script = f'echo "start it $$" >>"$LOG"; exec env -i sh -c "read x <{gate.path}"'
    process = box.start("-p", "heavy", "-q", "--name", "it", "--", "sh", "-c", script)
    command = int(until(lambda: box.started("it"), "the command runs"))
    until(lambda: proc.environment(command) == b"", "it has no environment")
    (keeper,) = children(process.pid)
    kill_9(keeper)
    assert process.wait(LONGEST_S) == 137
    check_that_the_next_one_waits(box, gate)


# D4, X4
def test_who_is_granted_and_hangs_does_not_idle_the_machine(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    process = start(box, "it", "waiting-woken~")
    until(lambda: sleeps_in_poll(process.pid), "it waits")
    following = start(box, "next")
    until(lambda: sleeps_in_poll(following.pid), "the next one waits")
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    until(lambda: box.started("next"), "it goes first, after a while")
    assert not box.started("it")
    assert following.wait(LONGEST_S) == 3
    box.state.with_suffix(".go").touch()
    assert process.wait(LONGEST_S) == 3
    box.assert_clean()


# A9: what comes when the command is about to begin, to the whole group (Ctrl-C) or from systemd, is for it
@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("whom", ["group", "keeper"])
def test_a_signal_just_before_the_command(box: Box, whom: str, signo: int) -> None:
    env = {"SLICER_FAULTS": f"{box.state}:keeper-ordered"}
    process = box.start("-p", "heavy", "-q", "--", "sleep", "60", env=env, start_new_session=True)
    (keeper,) = until(lambda: stopped(box), "the keeper has its order")
    os.kill(-process.pid if whom == "group" else keeper, signo)
    go_on(box)
    assert process.wait(LONGEST_S) in (128 + signo, -signo)  # Ctrl-C ends slicer itself, too
    box.assert_clean()


# A waiter on its way into the queue, and on its way out of it.
ARRIVING = ["ledger-judged", "ledger-created", "ledger-locked", "ledger-written", "ledger-bell-made"]
LEAVING = [
    "waiting-woken", "ledger-laid-aside", "ledger-half-written", "ledger-converting", "ledger-bell-unlinked",
    "ledger-converted",
]  # fmt: skip
GIVING_UP = ["ledger-bell-unlinked", "ledger-ticket-unlinked"]


# A2, X4
@pytest.mark.parametrize("point", [*ARRIVING, *LEAVING])
@pytest.mark.parametrize("holder_dies", [False, True])
def test_a_waiter_killed_at_any_point(box: Box, gate: Gate, point: str, holder_dies: bool) -> None:
    job = box.hold(gate)
    process = start(box, "it", point)
    if point in ARRIVING:
        until(lambda: process.pid in stopped(box), f"it comes to {point}")
    else:
        until(lambda: sleeps_in_poll(process.pid), "it waits")
    following = start_next(box)
    if holder_dies:
        kill_9(job.outer, job.keeper, job.command)
    else:
        gate.open()
    until(lambda: process.pid in stopped(box), f"it comes to {point}")
    kill_9(process.pid)
    check_aftermath(box, following, (0,))
    assert not box.started("it")


# A2, X4
@pytest.mark.parametrize("point", GIVING_UP)
def test_a_waiter_killed_while_it_gives_up(box: Box, gate: Gate, point: str) -> None:
    job = box.hold(gate)
    process = start(box, "it", point)
    until(lambda: sleeps_in_poll(process.pid), "it waits")
    following = start_next(box)
    kill(process.pid, signal.SIGTERM)
    until(lambda: process.pid in stopped(box), f"it comes to {point}")
    kill_9(process.pid)
    gate.open()
    check_aftermath(box, following, (0,))
    assert job.process.wait(LONGEST_S) == 0


# The first in line has its keeper forked (and in its scope) before the lease is there.
PREPARING = ["supervisor-forked", "supervisor-started-scope", "keeper-forked"]
PREPARED = [
    "waiting-woken", "ledger-judged", "ledger-converting", "ledger-converted", "ledger-bell-unlinked",
    "launch-acquired", "supervisor-updated-lease", "supervisor-let-go", "keeper-ordered", "keeper-spawned",
]  # fmt: skip


# A1, A2, K2, X3
@pytest.mark.parametrize("victims", ["outer", "keeper", "outer keeper"])
@pytest.mark.parametrize("point", [*PREPARING, *PREPARED])
def test_the_first_in_line_killed_with_its_keeper_ready(
    box: Box, gate: Gate, point: str, victims: str
) -> None:
    job = box.hold(gate)
    if point in PREPARING:
        process = start(box, "it", point)
        until(lambda: stopped(box), f"somebody comes to {point}")
    else:
        process = waiter(box, "it")
        keeper_of(process)
        arm(box, point)
    following = start_next(box)
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    until(lambda: stopped(box), f"somebody comes to {point}")
    pids = {"outer": process.pid, "keeper": (children(process.pid) or [0])[0]}
    kill_9(*(pids[name] for name in victims.split() if pids[name]))
    until(lambda: go_on(box) or gone(process.pid), "the rest goes on")
    until(lambda: go_on(box), f"all end; {box.describe()}")
    ran = "start it " in "\n".join(box.lines())
    maybe = (ran and victims == "outer keeper") or (not ran and victims == "keeper")
    check_aftermath(box, following, (0, 1) if maybe else (1,) if ran else (0,))


def keeper_of(waiting: subprocess.Popen[bytes]) -> int:
    """The keeper that the first in the queue has ready."""
    (pid,) = until(lambda: children(waiting.pid), "its keeper is ready")
    until(lambda: sleeps_in_poll(waiting.pid), "it waits")
    return pid


def arm(box: Box, *points: str) -> None:
    """Stop at these points from now on, whoever :func:`waiter` started."""
    box.state.with_suffix(".armed").write_text(" ".join(points))


def waiter(box: Box, name: str, *options: str) -> subprocess.Popen[bytes]:
    """A job that waits, and may be stopped at points that are armed later on."""
    env = {"SLICER_FAULTS": f"{box.state}:"}
    process = box.wait_in_line(name, *JOB, name, options=options, env=env)
    until(lambda: sleeps_in_poll(process.pid), f"{name} sleeps")
    return process


# X4, A2: the leader decides for all; nothing of its decision is lost with it
@pytest.mark.parametrize("point", ["waiting-woken", "ledger-judged", "ledger-rung"])
def test_the_leader_killed_on_its_way_to_wake_another(
    make_box: Callable[[int], Box], gate: Gate, second_gate: Gate, point: str
) -> None:
    box = make_box(2)
    env = {"SLICER_FAULTS": f"{box.state}:"}
    jobs = [box.hold(gate, name="a", env=env), box.hold(second_gate, name="b")]
    leader = waiter(box, "wide", "--cpu-slots", "2")
    small = waiter(box, "small")
    last = waiter(box, "last", "--cpu-slots", "2")
    arm(box, point, "ending-released")  # later the first job would wake the one behind, too
    gate.open()  # one slot: not enough for the leader, but for the one behind it
    until(lambda: leader.pid in stopped(box), f"the leader comes to {point}")
    kill_9(leader.pid)
    until(lambda: go_on(box) or gone(small.pid), "the one behind goes")  # it comes to the point too
    assert small.wait(LONGEST_S) == 3
    second_gate.open()
    until(lambda: go_on(box), f"all end; {box.describe()}")
    assert last.wait(LONGEST_S) == 3
    assert [job.process.wait() for job in jobs] == [0, 0]
    assert [line for line in box.lines() if line.startswith("VIOLATION")] == []
    box.assert_clean()


# X4, A2
@pytest.mark.parametrize(
    "dead", [("first",), ("second",), ("first", "second"), ("second", "third"), ("third",)]
)
def test_any_of_a_queue_killed_while_asleep(box: Box, gate: Gate, dead: tuple[str, ...]) -> None:
    job = box.hold(gate)
    waiters = {name: waiter(box, name) for name in ("first", "second", "third")}
    kill_9(*(waiters[name].pid for name in dead))
    gate.open()
    for name, process in waiters.items():
        assert process.wait(LONGEST_S) == (-9 if name in dead else 3)
    assert job.process.wait() == 0
    assert [line for line in box.lines() if line.startswith("VIOLATION")] == []
    box.assert_clean()


# A2, X4: nobody comes after the last in the queue, who would bury it
def test_the_last_in_the_queue_killed_leaves_nothing(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    last = waiter(box, "last")
    keeper = keeper_of(last)
    kill_9(last.pid, keeper)
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    until(lambda: box.state_files() == ["lock", "version"], "the directory is clean")


# A2, X4: nor after a keeper that takes its time
def test_the_last_in_the_queue_killed_leaves_nothing_though_its_keeper_ends_late(
    box: Box, gate: Gate
) -> None:
    job = box.hold(gate)
    last = waiter(box, "last")
    keeper = keeper_of(last)
    kill(keeper, signal.SIGSTOP)
    kill_9(last.pid)
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    kill(keeper, signal.SIGCONT)
    until(lambda: box.state_files() == ["lock", "version"], "the directory is clean")


# A2, X4: it has its lease, and its keeper no order so far
def test_killed_between_lease_and_command_leaves_nothing(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    last = waiter(box, "last")
    keeper_of(last)
    arm(box, "launch-acquired")
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    until(lambda: last.pid in stopped(box), "it comes to launch-acquired")
    kill_9(last.pid)
    until(lambda: box.state_files() == ["lock", "version"], "the directory is clean")


def test_nothing_is_armed_by_accident(box: Box) -> None:
    for value in (
        "supervisor-forked",
        ":supervisor-forked",
        "/elsewhere:supervisor-forked",
        f"{box.state}/:supervisor-forked",
        f"{box.state}:",
    ):
        assert box.run("-q", "--", "true", env={"SLICER_FAULTS": value}).returncode == 0
    code = "from slicer import faults; print(sorted(faults.ARMED))"
    for place, expected in (("/run/slicer", []), (str(box.state), ["x"])):
        env = {
            **os.environ,
            "PYTHONPATH": SRC,
            "SLICER_STATE_DIR": str(box.state),
            "SLICER_FAULTS": f"{place}:x",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
        )
        assert done.stdout == f"{expected}\n"
    env = {**os.environ, "PYTHONPATH": SRC, "SLICER_FAULTS": "/run/slicer:x"}
    env.pop("SLICER_STATE_DIR", None)
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_every_point_is_one_of_these() -> None:
    others = {"supervisor-told-keeper", "supervisor-reaped-keeper", "ledger-rung"}
    others |= {"wrap-draft"}  # tests/unit/wrap
    others |= {"share-made"}  # test_run_share.py
    others |= {f"queue-slurm-{what}" for what in ("ordered", "submitting", "submitted")}  # tests/systemd
    others |= {*test_control.POINTS, *test_run_detach.POINTS}
    others |= {point for point in test_route_oom.POINTS if point.startswith("route-")}
    others |= {*test_broker.POINTS, *test_broker_client.POINTS, *test_broker_faults.POINTS}
    others |= {"broker-account-row"}  # test_broker_policy.py
    crash = test_queue_crash
    others |= {*crash.QUEUE, *crash.ASKING, *crash.RUNNING, *crash.ENDING, *crash.KEEPER}
    tested = {
        *ALONE,
        *OUTER,
        *KEEPER,
        *ORPHANED,
        *ARRIVING,
        *LEAVING,
        *GIVING_UP,
        *PREPARING,
        *PREPARED,
        *others,
    }
    source = "\n".join(path.read_text() for path in Path(SRC, "slicer").rglob("*.py"))
    found = {part.partition('"')[0] for part in source.split('faults.point("')[1:]}
    assert found == tested
