"""Jobs inside jobs: what the outer one holds, the inner one has (A3)."""

from __future__ import annotations

import json

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers.jobs import Slicer, leases

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd

HEAVY = ("--no-wait", "-q", "-p", "heavy", "--")
SHOW = ("sh", "-c", "sed -n s/^0:://p /proc/self/cgroup; echo $SLICER_LEASE")
SCRUBBED = ("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "CPU_RUN_SLOTS=1")


@pytest.mark.core
def test_a_nested_job_of_the_same_kind_runs_at_once_in_the_outer_scope(slicer: Slicer) -> None:  # A3
    done = slicer.run(
        *HEAVY, "sh", "-c", f'{" ".join(SHOW[:2])} "$0"; slicer run {" ".join(HEAVY)} sh -c "$0"', SHOW[2]
    )
    assert done.code == 0, done
    lines = done.stdout.splitlines()
    assert lines[:2] == lines[2:]
    assert lines[0].endswith(f"/slicer-{lines[1]}.scope")


@pytest.mark.core
def test_a_nested_job_is_known_by_its_cgroup_when_the_environment_was_scrubbed(slicer: Slicer) -> None:  # A3
    done = slicer.run(*HEAVY, *SCRUBBED, "slicer", "run", *HEAVY, *SCRUBBED, "slicer", "run", *HEAVY, *SHOW)
    assert done.code == 0, done
    cgroup, lease = done.stdout.splitlines()
    assert cgroup.endswith(f"/slicer-{lease}.scope")


def test_a_job_nested_thrice_does_not_deadlock(slicer: Slicer) -> None:  # A3
    wait = ("slicer", "run", "-q", "-p", "heavy", "--")
    done = slicer.run("-p", "heavy", "--", *wait, *wait, *wait, "sh", "-c", "exit 9")
    assert done.code == 9


@pytest.mark.core
def test_a_nested_job_of_another_kind_is_acquired_as_usual(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # A3
    inner = ("slicer", "run", "-q", "--no-wait", "--gpus", "2", "--")
    gate = slicer.gate()
    script = f"sed -n s/^0:://p /proc/self/cgroup; echo $SLICER_LEASE; echo $CUDA_VISIBLE_DEVICES; : < {gate}"
    job = slicer.start("-q", "-p", "heavy", "--", *inner, "sh", "-c", script, env=fake_nvml.env)
    until(lambda: len([lease for lease in leases() if lease.cgroup]) == 2, "two leases with a scope")
    outer = job.lease()
    (nested,) = (lease for lease in leases() if lease.job != outer.job)
    assert (outer.slots, len(outer.gpus), nested.slots, len(nested.gpus)) == ({"cpu": 1}, 0, {}, 2)
    assert nested.cgroup.startswith("/gpu.slice/")
    assert slicer.is_busy("--gpus", "1", env=fake_nvml.env)
    gate.open()
    done = job.end()
    assert done.code == 0, done
    cgroup, marker, visible = done.stdout.splitlines()
    assert (cgroup, marker, visible) == (nested.cgroup, f"{outer.job},{nested.job}", ",".join(nested.gpus))


def test_a_nested_request_that_is_busy_elsewhere_is_refused(
    slicer: Slicer, fake_nvml: FakeNvml
) -> None:  # A3
    gate = slicer.gate()
    holder = slicer.hold(gate, "--gpus", "2", "--name", "train", env=fake_nvml.env)
    inner = ("slicer", "run", "--no-wait", "--gpus", "1", "--", "true")
    done = slicer.run("-q", "-p", "heavy", "--", *inner, env=fake_nvml.env)
    assert done.code == 75
    assert json.loads(done.stderr)["holder"]["name"] == "train"
    gate.open()
    assert holder.end().code == 0


def test_gpus_beyond_those_held_are_acquired(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # A3
    inner = (
        "slicer",
        "run",
        "-q",
        "--no-wait",
        "--gpus",
        "2",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
    )
    done = slicer.run("-q", "--gpus", "1", "--", *inner, env=fake_nvml.env)
    assert done.code == 0, done
    assert len(set(done.stdout.strip().split(","))) == 2


def test_a_nested_gpu_job_keeps_the_gpus_of_the_outer(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # A3
    inner = (
        "slicer",
        "run",
        "-q",
        "--no-wait",
        "--gpus",
        "1",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
    )
    done = slicer.run("-q", "--gpus", "1", "--", *inner, env=fake_nvml.env)
    assert done.stdout == "GPU-00000000-0000-0000-0000-000000000000\n", done


def test_a_nested_light_job_runs_whatever_is_held(slicer: Slicer) -> None:  # A3
    done = slicer.run(*HEAVY, "slicer", "run", "-q", "--no-wait", "--", *SHOW)
    assert done.code == 0, done
    assert "/_cpu.slice/slicer-" in done.stdout


def test_the_lease_stays_with_the_outermost(slicer: Slicer) -> None:  # A3
    gate = slicer.gate()
    script = f"slicer run -q -p heavy -- true; slicer run -q -p heavy -- true; echo up; : < {gate}"
    job = slicer.start("-p", "heavy", "--", "sh", "-c", script)
    job.said("up")
    assert slicer.is_busy("-p", "heavy")
    gate.open()
    assert job.end().code == 0


def test_a_nested_job_has_exit_code_signals_and_outcome_of_its_own(slicer: Slicer) -> None:  # A3, X3
    done = slicer.run(*HEAVY, "sh", "-c", "slicer run -p heavy -n inner -- sh -c 'kill -9 $$'; echo $?")
    assert (done.code, done.stdout) == (0, "137\n"), done
    assert "inner: exit 137" in done.stderr


def test_a_stale_marker_is_not_believed(slicer: Slicer) -> None:  # A3
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    assert slicer.is_busy("-p", "heavy", env={"SLICER_LEASE": "0123456789ab"})
    gate.open()
    assert holder.end().code == 0
    # The holder is gone: its marker in somebody's environment opens nothing.
    gate = slicer.gate()
    other = slicer.hold(gate, "-p", "heavy")
    stale = next(lease.job for lease in leases() if lease.pid == other.pid)
    gate.open()
    assert other.end().code == 0
    gate = slicer.gate()
    third = slicer.hold(gate, "-p", "heavy")
    assert slicer.is_busy("-p", "heavy", env={"SLICER_LEASE": stale})
    gate.open()
    assert third.end().code == 0


def test_exec_inside_a_job_that_holds_it_all_is_a_mistake(slicer: Slicer) -> None:  # A3
    done = slicer.run(*HEAVY, "slicer", "run", "--exec", "-p", "heavy", "--", "true")
    assert done.code == 2
    assert "--exec" in done.stderr
