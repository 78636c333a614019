"""Jobs inside jobs: what the outer one holds, the inner one has (A3)."""

from __future__ import annotations

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers.jobs import Slicer, leases

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd

HEAVY = ("--no-wait", "-q", "-p", "heavy", "--")
SHOW = ("sh", "-c", "sed -n s/^0:://p /proc/self/cgroup; echo $SLICER_LEASE")
SCRUBBED = ("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "CPU_RUN_SLOTS=1")


def test_a_nested_job_of_the_same_kind_runs_at_once_in_the_outer_scope(slicer: Slicer) -> None:  # A3
    done = slicer.run(
        *HEAVY, "sh", "-c", f'{" ".join(SHOW[:2])} "$0"; slicer run {" ".join(HEAVY)} sh -c "$0"', SHOW[2]
    )
    assert done.code == 0, done
    lines = done.stdout.splitlines()
    assert lines[:2] == lines[2:]
    assert lines[0].endswith(f"/slicer-{lines[1]}.scope")


def test_a_nested_job_is_known_by_its_cgroup_when_the_environment_was_scrubbed(slicer: Slicer) -> None:  # A3
    done = slicer.run(*HEAVY, *SCRUBBED, "slicer", "run", *HEAVY, *SCRUBBED, "slicer", "run", *HEAVY, *SHOW)
    assert done.code == 0, done
    cgroup, lease = done.stdout.splitlines()
    assert cgroup.endswith(f"/slicer-{lease}.scope")


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


def test_a_nested_light_job_runs_whatever_is_held(slicer: Slicer) -> None:  # A3
    done = slicer.run(*HEAVY, "slicer", "run", "-q", "--no-wait", "--", *SHOW)
    assert done.code == 0, done
    assert "/_cpu.slice/slicer-" in done.stdout


# A3, K2
@pytest.mark.parametrize("around", ["run", "hold"])
def test_a_detached_job_takes_a_gpu_of_its_own(slicer: Slicer, fake_nvml: FakeNvml, around: str) -> None:
    first, second = slicer.gate(), slicer.gate()
    script = f"slicer run -q -d --gpus 1 -- sh -c ': < {first}'; : < {second}"
    options = ("-q", "--gpus", "1", "--", "sh", "-c", script)
    outer = slicer.start(*options, env=fake_nvml.env, program=around)
    until(lambda: len({lease.gpus for lease in leases() if lease.gpus}) == 2, "each has a GPU")
    second.open()
    assert outer.end().code == 0
    (lease,) = leases()
    assert slicer.is_busy("--gpus", "2", env=fake_nvml.env)
    first.open()
    until(lambda: not leases(), f"{lease.job} ends")
