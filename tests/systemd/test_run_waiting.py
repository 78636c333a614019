"""The first in line is ready: its scope stands before its lease is there, with nothing of the job in it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Job, Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


def unit_of(job: Job) -> str:
    return f"slicer-{job.ticket().job}.scope"


def inside(unit: str) -> set[int]:
    return processes.in_cgroup(systemctl.show(unit, "ControlGroup")["ControlGroup"])


def standing(job: Job) -> str:
    """The scope of the waiting job, once it stands."""
    unit = unit_of(job)
    until(lambda: inside(unit), f"{unit} stands")
    return unit


def ready(job: Job) -> str:
    """The scope of the waiting job, once the job knows that it stands, and watches the keeper in it."""
    unit = standing(job)
    until(lambda: processes.watched_by(job.pid) & inside(unit), f"the keeper in {unit} is watched")
    return unit


# X4, K2
def test_the_first_in_line_has_its_scope_and_nobody_else_has(slicer: Slicer) -> None:
    gate, second_gate = slicer.gate(), slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    script = f"echo up; : < {second_gate}"
    first = slicer.start("-p", "heavy", "--set", "CPUWeight=7", "--", "sh", "-c", script)
    unit = ready(first)
    second = slicer.start("-p", "heavy", "--", "true")
    second.ticket()
    keeper = until(lambda: inside(unit), "the keeper alone is in it")
    assert keeper == processes.children(first.pid)
    assert systemctl.show(unit, "CPUWeight")["CPUWeight"] == "7"
    assert set(systemctl.scopes()) == {holder.lease().unit, unit}
    gate.open()
    first.said("up")
    lease = first.lease()
    assert (lease.unit, {lease.keeper}) == (unit, keeper)
    until(lambda: inside(unit_of(second)), "the next is ready")
    second_gate.open()
    assert [job.end().code for job in (holder, first, second)] == [0, 0, 0]
    assert slicer.outcome_of(first.end()).unit == unit


# A1
def test_with_exec_the_waiting_process_itself_is_in_the_scope(slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    first = slicer.start("-p", "heavy", "--exec", "--", "sh", "-c", "echo $$ up")
    assert inside(standing(first)) == {first.pid}
    gate.open()
    assert first.end().stdout == f"{first.pid} up\n"
    assert holder.end().code == 0
    slicer.dirty = True  # nobody stays to remove the lease's file


# K6: whoever stops the scope means the job
def test_stopping_the_scope_of_a_waiting_job_ends_its_wait(slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    first = slicer.start("-p", "heavy", "--", "touch", "ran")
    unit = ready(first)
    second = slicer.start("-p", "heavy", "--", "true")
    second.ticket()
    systemctl.output("systemctl", "stop", unit)
    done = first.end()
    assert done.code == 125
    assert done.told.endswith(f"slicer: {unit}: its scope was stopped while the job waited\n")
    gate.open()
    assert [job.end().code for job in (holder, second)] == [0, 0]
    assert not slicer.path("ran").exists()


# A2, K2
@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_waiting_job_that_goes_takes_its_scope_along(slicer: Slicer, signo: signal.Signals) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    first = slicer.start("-p", "heavy", "--", "touch", "ran")
    unit = ready(first)
    second = slicer.start("-p", "heavy", "--", "true")
    second.ticket()
    first.kill(signo)
    assert first.end().code == -signo
    until(lambda: unit not in systemctl.scopes(), "its scope is gone")
    gate.open()
    assert [job.end().code for job in (holder, second)] == [0, 0]
    assert not slicer.path("ran").exists()


# E10: the limit is on the run time, and systemd counts it from the scope's start
def test_waiting_does_not_count_against_the_time_limit(slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    first = slicer.start("-p", "heavy", "--timeout", "2s", "--", "sleep", "0.5")
    first.ticket()
    second = slicer.start("-p", "heavy", "--", "true")
    second.ticket()
    until(lambda: all(processes.state(job.pid) == "S" for job in (first, second)), "both sleep")
    assert systemctl.scopes() == [holder.lease().unit]
    os.kill(holder.pid, 0)
    gate.open()
    assert [job.end().code for job in (holder, first, second)] == [0, 0, 0]


# A2: killed while its scope is being started, ahead of the lease, it is not started once more with the lease
def test_the_keeper_killed_while_its_scope_starts(slicer: Slicer) -> None:
    state, gate = slicer.path("state"), slicer.gate()
    env = {"SLICER_STATE_DIR": str(state)}
    holder = slicer.hold(gate, "-p", "heavy", env=env)
    faults = {**env, "SLICER_FAULTS": f"{state}:supervisor-forked"}
    first = slicer.start("-p", "heavy", "--", "touch", "ran", env=faults)
    until(lambda: processes.state(first.pid) == "T", "it has forked its keeper, and stopped")
    (keeper,) = processes.children(first.pid)
    os.kill(keeper, signal.SIGKILL)
    state.with_suffix(".go").touch()
    os.kill(first.pid, signal.SIGCONT)
    assert first.end().code == 125
    assert "the keeper was ended before the command could start" in first.stderr
    gate.open()
    assert holder.end().code == 0
    assert not slicer.path("ran").exists()


# A2: killed while the lease is on its way to it, nothing of it stays
def test_the_keeper_killed_ahead_of_the_lease(slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    first = slicer.start("-p", "heavy", "--", "touch", "ran")
    ready(first)
    (keeper,) = processes.children(first.pid)
    os.kill(keeper, signal.SIGKILL)
    assert first.end().code == 125
    gate.open()
    assert holder.end().code == 0
    assert not slicer.path("ran").exists()
