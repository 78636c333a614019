"""``slicer pause``, ``resume`` and ``set`` without systemd: signals and CPU affinity, no pretence of more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.ledger import control_log
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, children, gone, kill_9, state_dir, state_of

pytestmark = pytest.mark.both_pythons

FAMILY = 'echo "start x $$" >>"$LOG"; sleep 1000 & sh -c "sleep 1000 & wait" & wait'


def slicer(box: Box, *line: str, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [*box.prefix, *SLICER, *line], env={**box.env, **env}, capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done
    return done.stdout + done.stderr


class Family:
    """A job of several processes."""

    def __init__(self, box: Box, *options: str) -> None:
        self.outer = box.start("-p", "heavy", "--name", "x", *options, "--", "sh", "-c", FAMILY)
        until(lambda: box.started("x"), "it runs")
        self.keeper = until(lambda: next(x.keeper for x in box.leases()), "its keeper")
        self.job = box.leases()[0].job
        until(lambda: len(self.below(self.keeper)) == 4, "all of its processes")
        self.pids = self.below(self.keeper)

    def below(self, pid: int) -> list[int]:
        found = []
        for child in children(pid):
            found += [child, *self.below(child)]
        return found

    def states(self) -> set[str]:
        return {state_of(pid) for pid in self.pids}

    def end(self, box: Box) -> int:
        slicer(box, "stop", "x")
        self.outer.communicate(timeout=LONGEST_S)
        return self.outer.returncode


def halted(box: Box) -> str | None:
    (job,) = json.loads(slicer(box, "status", "--json").partition("\n}")[0] + "\n}")["jobs"]
    word: str | None = job["halted"]
    return word


def test_all_processes_stand_still_but_slicers_own(box: Box) -> None:  # X6
    family = Family(box)
    assert f"paused {family.job}  x\n" in slicer(box, "pause", "x")
    assert family.states() == {"T"}
    assert state_of(family.keeper) != "T"
    assert halted(box) == "paused"
    assert box.run("--no-wait", "-p", "heavy", "--", "true").returncode == 75
    assert "is already paused" in slicer(box, "pause", "x")
    assert f"resumed {family.job}  x\n" in slicer(box, "resume", "x")
    until(lambda: family.states() == {"S"}, "they go on")
    assert "was not paused" in slicer(box, "resume", "x")
    assert family.end(box) == 143
    (outcome,) = [each for each in box.outcomes() if each.name == "x"]
    assert (outcome.paused_s or 0) > 0
    assert (outcome.reason, outcome.ended_by) == ("stopped", "slicer stop")
    box.assert_clean()


def test_nobody_is_told_when_a_paused_job_will_be_done(box: Box) -> None:  # X6, W33
    family = Family(box, "--expect", "1h")
    waiting = box.start("-p", "heavy", "--", "true")

    def starts() -> float | None:
        found = json.loads(slicer(box, "status", "--json").partition("\n}")[0] + "\n}")["waiting"]
        return next((each["starts_in"] for each in found), None)

    until(lambda: starts() is not None, "the estimate counts")
    slicer(box, "pause", "x")
    assert starts() is None
    slicer(box, "resume", "x")
    assert starts() is not None
    assert family.end(box) == 143
    assert waiting.wait(LONGEST_S) == 0


def test_stop_ends_a_paused_job(box: Box) -> None:  # X6
    family = Family(box)
    slicer(box, "pause", "x")
    assert family.end(box) == 143
    box.assert_clean()


def test_resume_continues_a_job_that_ctrl_z_stopped(box: Box) -> None:  # X6
    family = Family(box)
    for pid in family.pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: family.states() == {"T"}, "all are stopped")
    assert halted(box) == "stopped"
    assert "is already stopped (Ctrl-Z)" in slicer(box, "pause", "x")
    slicer(box, "resume", "x")
    until(lambda: family.states() == {"S"}, "they go on")
    family.end(box)
    box.assert_clean()


def test_a_paused_job_outlives_its_slicer_and_goes_on(box: Box) -> None:  # K2, X6
    family = Family(box)
    slicer(box, "pause", "x")
    kill_9(family.outer.pid)
    assert halted(box) == "paused"
    slicer(box, "resume", "x")
    until(lambda: family.states() == {"S"}, "they go on")
    slicer(box, "stop", "x")
    until(lambda: gone(family.keeper), "its keeper has ended")
    box.assert_clean()


POINTS = ["pause-noted", "pause-frozen", "resume-noted", "resume-thawed", "set-done"]


@pytest.mark.parametrize("point", POINTS)
def test_a_command_that_is_killed_halfway_can_be_given_again(box: Box, point: str) -> None:  # X6
    family = Family(box)
    verb = point.partition("-")[0]
    if verb == "resume":
        slicer(box, "pause", "x")
    line = (verb, "x", "CPUQuota=100%") if verb == "set" else (verb, "x")
    process = subprocess.Popen(
        [*SLICER, *line], env={**box.env, "SLICER_FAULTS": f"{box.state}:{point}"}, stdout=subprocess.DEVNULL
    )
    box.adopt(process)
    until(lambda: state_of(process.pid) == "T", f"it is at {point}")
    kill_9(process.pid)
    process.wait()
    is_still = point in ("pause-frozen", "resume-noted")
    until(lambda: family.states() == ({"T"} if is_still else {"S"}), "as far as it came")
    assert halted(box) == ("paused" if is_still else None)
    slicer(box, *line)
    if verb == "pause":
        assert family.states() == {"T"}
    else:
        until(lambda: family.states() == {"S"}, "it runs")
    assert family.end(box) == 143
    box.assert_clean()


def test_who_pauses_a_job_that_another_has_just_paused_is_not_refused(box: Box) -> None:  # U23
    family = Family(box)
    late = subprocess.Popen(
        [*SLICER, "pause", "x"], env={**box.env, "SLICER_FAULTS": f"{box.state}:pause-noted"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    box.adopt(late)
    until(lambda: state_of(late.pid) == "T", "it is about to")
    assert f"paused {family.job}  x\n" in slicer(box, "pause", "x")
    box.state.with_suffix(".go").touch()
    os.kill(late.pid, signal.SIGCONT)
    said = late.communicate(timeout=LONGEST_S)
    assert late.returncode == 0, said
    assert family.states() == {"T"}
    assert halted(box) == "paused"
    assert family.end(box) == 143
    box.assert_clean()


def test_a_time_limit_ends_a_paused_job(box: Box) -> None:  # X6
    family = Family(box, "--timeout", "2s")
    slicer(box, "pause", "x")
    assert family.outer.wait(LONGEST_S) == 124
    box.assert_clean()


def test_cpus_can_be_set_and_nothing_else(box: Box) -> None:  # X6
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("there is one CPU only")
    family = Family(box, "--set", "CPUQuota=infinity")
    slicer(box, "set", "x", f"AllowedCPUs={cpus[1]}")
    assert {frozenset(os.sched_getaffinity(pid)) for pid in family.pids} == {frozenset({cpus[1]})}
    assert "AllowedCPUs" in slicer(box, "set", "x")
    slicer(box, "set", "x", "CPUQuota=200%")
    assert {frozenset(os.sched_getaffinity(pid)) for pid in family.pids} == {frozenset({cpus[1]})}
    slicer(box, "set", "x", "AllowedCPUs=", "CPUQuota=infinity")
    assert {frozenset(os.sched_getaffinity(pid)) for pid in family.pids} == {frozenset(cpus)}
    slicer(box, "set", "x", f"AllowedCPUs={cpus[0]}")
    said = slicer(box, "set", "x", "MemoryHigh=1G", code=2)
    assert "MemoryHigh cannot be changed while the job runs without a scope" in said
    family.end(box)
    (outcome,) = box.outcomes()
    assert outcome.changed == (f"AllowedCPUs={cpus[0]}",)
    box.assert_clean()


def test_processes_that_claim_to_be_of_a_job_are_left_alone(box: Box) -> None:  # S8
    """Anybody can put a job's id into an environment."""
    family = Family(box)
    stranger = subprocess.Popen(["sleep", "1000"], env={**box.env, "SLICER_LEASE": family.job})
    box.adopt(stranger)
    slicer(box, "pause", "x")
    assert state_of(stranger.pid) == "S"
    stranger.kill()
    family.end(box)


def test_a_control_log_that_was_damaged_says_nothing(box: Box) -> None:  # S9
    family = Family(box)
    place = Path(box.state, f"{family.job}.control")
    place.write_bytes(b"\xff\0 pause\n1e999 pause 0 \n-1 frozen 0 \n5 set 0 A=B" + b"x" * 99)
    assert control_log.read(state_dir(box.state), family.job) == ()
    assert halted(box) is None
    slicer(box, "pause", "x")
    slicer(box, "resume", "x")
    family.end(box)
    box.assert_clean()


# Forks by vfork(2), as dash does: the parent sleeps until its child, which waits for the gate, has executed.
FORKS = """\
import os, sys
reads_gate = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ, file_actions=[reads_gate])
"""


# With its child stopped it could not stop, and so was refused; of two pauses one continued it.
def test_a_program_that_is_just_forking_is_paused(box: Box) -> None:  # X6, U23
    gate = box.state.with_suffix(".gate")
    os.mkfifo(gate)
    outer = box.start("--name", "x", "--", sys.executable, "-c", FORKS + "os.wait()", str(gate))
    keeper = until(lambda: next((x.keeper for x in box.leases()), 0), "its keeper")
    child = until(lambda: next((sub for pid in children(keeper) for sub in children(pid)), 0), "it forks")
    (parent,) = children(keeper)
    until(lambda: state_of(child) == "S", "the child waits")
    os.kill(child, signal.SIGSTOP)
    until(lambda: state_of(child) == "T", "the child is stopped")
    opened = os.open(gate, os.O_RDWR)  # for the child, once it goes on
    assert state_of(parent) == "D"
    assert "paused" in slicer(box, "pause", "x")
    os.close(opened)
    assert {state_of(parent), state_of(child)} == {"T"}
    assert halted(box) == "paused"
    slicer(box, "stop", "x")
    outer.communicate(timeout=LONGEST_S)
    box.assert_clean()
