"""Leases between processes: exclusive, counted, freed by every death, held by every survivor."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slicer.ledger.ledger import Snapshot
from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate, gone, kill, kill_9

# Holds one of $SLOTS files as an outside witness would: with a flock that the kernel lets go.
WITNESS = """
echo "start $1 $$" >>"$LOG"
for n in $(seq "$SLOTS"); do
    eval "exec 9>\\"$LOG.$n\\""
    if flock -n 9; then got=$n; break; fi
done
[ "$got" ] || echo "VIOLATION by $1: all $SLOTS were taken" >>"$LOG"
sleep "$2" & wait
echo "end $1 $$" >>"$LOG"
"""


def overlap(lines: list[str]) -> int:
    """The most jobs that ran at once, by the log that they wrote."""
    running, most = 0, 0
    for line in lines:
        running += {"start": 1, "end": -1}[line.split()[0]]
        most = max(most, running)
    return most


# A1, A6
@pytest.mark.parametrize("slots", [1, 3])
def test_never_more_jobs_than_slots(make_box: Callable[[int], Box], slots: int) -> None:
    box = make_box(slots)
    jobs = 4 * slots + 2
    script = ("-p", "heavy", "-q", "--", "sh", "-c", WITNESS, "sh")
    running = [box.start(*script, str(n), "0.3", env={"SLOTS": str(slots)}) for n in range(jobs)]
    assert [process.wait() for process in running] == [0] * jobs
    lines = box.lines()
    assert "VIOLATION" not in "\n".join(lines)
    assert len(lines) == 2 * jobs
    assert overlap(lines) == slots
    assert len({outcome.job for outcome in box.outcomes()}) == len(box.outcomes()) == jobs
    box.assert_clean()


# A1, A2, K2
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("keepers_too", [False, True])
def test_never_more_jobs_than_slots_whoever_is_killed(
    make_box: Callable[[int], Box], slots: int, keepers_too: bool
) -> None:
    box = make_box(slots)
    dice = random.Random(slots)
    script = ("-p", "heavy", "-q", "--", "sh", "-c", WITNESS, "sh")
    running = [box.start(*script, str(n), "0.1", env={"SLOTS": str(slots)}) for n in range(12 * slots)]
    killed = 0
    while any(process.poll() is None for process in running):
        # Outer halves that run a job, supervisors that wait or are only just starting, keepers.
        keepers = [lease.keeper for lease in box.leases() if lease.keeper and keepers_too]
        alive = [process.pid for process in running if process.poll() is None]
        victims = dice.choice([keepers, alive, [lease.pid for lease in box.leases()]])
        if victims and killed < 6 * slots:
            kill(dice.choice(victims))
            killed += 1
        until(lambda: dice.random() < 0.1, "a moment passes")
    until(lambda: not box.processes(), f"all jobs end; {box.describe()}")
    assert "VIOLATION" not in "\n".join(box.lines())
    assert killed
    jobs = [outcome.job for outcome in box.outcomes()]
    assert len(jobs) == len(set(jobs))  # recorded once at most
    box.assert_clean()
    assert box.run("-p", "heavy", "--no-wait", "-q", "--", "true").returncode == 0


# A2
def test_kill_9_of_all_frees_the_lease(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    kill_9(job.outer, job.keeper, job.command)
    assert [
        name for name in box.state_files() if name != "lock"
    ]  # the files are still there, and mean nothing
    assert box.run("-p", "heavy", "--no-wait", "-q", "--", "true").returncode == 0
    assert box.state_files() == ["lock", "version"]


# A2
def test_after_a_reboot_all_leases_are_free(box: Box, gate: Gate) -> None:
    assert box.run("-q", "--", "true").returncode == 0
    job = box.hold(gate)
    path = box.state / "leases" / job.lease.job
    text = path.read_text()
    kill_9(job.outer, job.keeper, job.command)
    # Should the state survive a reboot, its leases do not; and a pid that came round again is nobody.
    path.write_text(
        text.replace(job.lease.boot_id, "0" * 36).replace(f"PID={job.lease.pid}", f"PID={os.getpid()}")
    )
    assert box.snapshot() == Snapshot((), ())
    assert not path.exists()


# K2
@pytest.mark.parametrize("victims", ["outer", "keeper", "outer keeper"])
def test_while_the_command_lives_nobody_else_gets_its_slot(box: Box, gate: Gate, victims: str) -> None:
    job = box.hold(gate)
    kill_9(*(getattr(job, name) for name in victims.split()))
    if "outer" not in victims:
        # With the keeper dead the supervisor may end the job, or leave it its lease; never both.
        job.process.wait(LONGEST_S)
    if not gone(job.command):
        assert box.run("-p", "heavy", "--no-wait", "-q", "--", "true").returncode == 75
        gate.open()
    until(lambda: gone(job.command), "the command ends")
    until(lambda: not box.snapshot().leases, "the lease is given back")
    assert box.run("-p", "heavy", "--no-wait", "-q", "--", "true").returncode == 0
    box.assert_clean()


# X3
def test_with_the_supervisor_dead_the_keeper_records_the_outcome(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    kill(job.outer)
    job.process.wait()
    gate.open()
    until(lambda: not box.processes(), "the job ends")
    (outcome,) = box.outcomes()
    assert (outcome.job, outcome.exit_code, outcome.reason) == (job.lease.job, 0, "exited")
    box.assert_clean()


# X3
def test_with_the_keeper_dead_the_supervisor_says_so_in_words(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    kill(job.keeper)
    assert job.process.wait(LONGEST_S) == 137
    kill(job.command)  # should it live on, it holds the pipe open
    _, error = job.process.communicate(timeout=LONGEST_S)
    assert b"Traceback" not in error
    (outcome,) = box.outcomes()
    assert (outcome.job, outcome.exit_code, outcome.reason) == (job.lease.job, 137, "signal")


# Leaves its descriptors and its session, double-forks, and goes on in $1 until the gate opens.
DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 1024)
os.open(os.environ["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(0, b"start daemon %d\\n" % os.getpid())
os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
os.write(0, b"end daemon %d\\n" % os.getpid())
"""


def daemonised(box: Box, gate: Gate) -> tuple[int, int, int]:
    """The supervisor, the keeper and the daemon of a job that closed everything it had."""
    process = box.start("-p", "heavy", "-q", "--linger", "--", sys.executable, "-c", DAEMON, str(gate.path))
    until(lambda: box.started("daemon"), "the daemon runs")
    keeper = until(lambda: next((lease.keeper for lease in box.leases()), 0), "the keeper is known")
    return process.pid, keeper, int(box.started("daemon"))


# K2
@pytest.mark.parametrize("kills", [0, 1, 2])
def test_a_daemon_that_closed_its_descriptors_holds_the_slot(box: Box, gate: Gate, kills: int) -> None:
    pids = daemonised(box, gate)
    kill_9(*pids[:kills])
    busy = box.run("-p", "heavy", "--no-wait", "--", "true")
    assert busy.returncode == 75, busy
    gate.open()
    until(lambda: gone(pids[2]), "the daemon ends")
    until(lambda: not box.snapshot().leases, "the lease is given back")
    box.assert_clean()


# K2, X4
def test_a_waiter_is_served_when_the_last_daemon_of_a_killed_job_ends(box: Box, gate: Gate) -> None:
    outer, keeper, daemon = daemonised(box, gate)
    kill_9(outer, keeper)
    waiter = box.wait_in_line("next")
    gate.open()
    until(lambda: gone(daemon), "the daemon ends")
    assert waiter.wait(LONGEST_S) == 0
    assert [line.split()[:2] for line in box.lines()] == [
        ["start", "daemon"], ["end", "daemon"], ["start", "next"], ["end", "next"]
    ]  # fmt: skip
    box.assert_clean()


# B1, B2
def test_no_wait_says_in_one_line_of_json_who_holds_it(box: Box, gate: Gate) -> None:
    job = box.hold(gate, "--expect", "15m", name="train")
    busy = box.run("-p", "heavy", "--no-wait", "-q", "--", "true")
    assert busy.returncode == 75
    assert busy.stdout == ""
    (line,) = busy.stderr.splitlines()
    found = json.loads(line)
    assert list(found) == ["error", "holder"]
    assert found["error"] == "cpu-busy"
    holder = found["holder"]
    assert list(holder) == ["name", "pid", "user", "unit", "held_for", "expected_remaining", "command"]
    assert (holder["name"], holder["pid"], holder["unit"]) == ("train", job.outer, None)
    assert 0 <= holder["held_for"] < 60
    assert 840 < holder["expected_remaining"] <= 900
    assert holder["command"].startswith("sh -c ")
    assert not gone(job.command)  # B1: the holder is never signalled
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()


# B2
def test_a_holder_without_a_name_or_an_estimate(box: Box, gate: Gate) -> None:
    job = box.hold(gate, "--name=", name="")
    holder = json.loads(box.run("-p", "heavy", "--no-wait", "-q", "--", "true").stderr)["holder"]
    assert holder["name"] == holder["command"]
    assert holder["expected_remaining"] is None
    gate.open()
    assert job.process.wait(LONGEST_S) == 0


# B1: a light job takes nothing, so it never finds anything busy
def test_a_job_that_needs_nothing_never_waits(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    assert box.run("--no-wait", "-q", "--", "true").returncode == 0
    gate.open()
    assert job.process.wait(LONGEST_S) == 0


# A9
def test_the_messages_tell_of_waiting_and_acquiring_and_the_end(box: Box, gate: Gate) -> None:
    job = box.hold(gate, "--expect", "1h", name="train")
    waiter = box.wait_in_line("next", "sh", "-c", "exit 7", options=("-v",))
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    _, error = waiter.communicate(timeout=LONGEST_S)
    assert waiter.returncode == 7
    lines = [line for line in error.decode().splitlines() if "not enforced" not in line]
    (waiting,) = [line for line in lines if "waiting for a CPU slot, held by train (about " in line]
    assert f" left, pid {job.outer}, for " in waiting
    assert any("acquired 1 CPU slot" in line for line in lines), lines
    assert lines[-1].startswith("slicer: next: exit 7")


# A9
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 42", 42), ("exit 255", 255), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_jobs(box: Box, script: str, code: int) -> None:
    done = box.run("-q", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (code, "")


# K2
def test_the_job_inherits_its_lease_and_nothing_else(box: Box) -> None:
    script = "for fd in /proc/$$/fd/*; do case $fd in */[0-2]) ;; *) readlink $fd;; esac; done"
    done = box.run("-p", "heavy", "-q", "--", "sh", "-c", script)
    assert [str(Path(name).parent) for name in done.stdout.splitlines()] == [str(box.state / "leases")]


def test_the_job_gets_the_signal_settings_that_it_would_have_without_slicer(box: Box) -> None:
    # By the shell itself: while it forks it blocks all signals for a moment.
    script = "while read k v; do case $k in SigBlk:|SigIgn:|SigCgt:) echo $k $v;; esac; done </proc/$$/status"
    command = ["sh", "-c", script]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert signals(box.run("-p", "heavy", "-q", "--", *command).stdout) == signals(alone)


def signals(status: str) -> list[int]:
    """The masks without signals 32 and 33, which the C library keeps for itself."""
    return [int(line.split()[1], 16) & ~(0b11 << 31) for line in status.splitlines()]
