"""What ``slicer set`` and ``slicer pause`` say is what the kernel does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers.jobs import Job, Slicer, leases

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.enforced, pytest.mark.core]

BUSY = ("sh", "-c", "echo up; while :; do :; done")


@pytest.fixture
def job(slicer: Slicer) -> Iterator[Job]:
    made = slicer.start("--name", "x", "--", *BUSY)
    made.said("up")
    yield made
    if leases():
        slicer.command("stop", "x")
    made.end()


def file(job: Job, name: str) -> str:
    return Path(f"/sys/fs/cgroup{job.lease().cgroup}/{name}").read_text()


def cpu_us(job: Job, key: str) -> int:
    return int(file(job, "cpu.stat").split(f"{key} ")[1].split()[0])


def test_a_quota_that_is_set_on_a_running_job_acts(slicer: Slicer, job: Job) -> None:  # X6, K3
    assert cpu_us(job, "throttled_usec") == 0
    done = slicer.command("set", "x", "CPUQuota=10%")
    assert "without effect" not in done.stderr
    assert file(job, "cpu.max") == "10000 100000\n"
    until(lambda: cpu_us(job, "throttled_usec") > 100_000, "it is throttled")
    slicer.command("set", "x", "CPUQuota=")
    assert file(job, "cpu.max").startswith("max ")
    slicer.command("set", "x", "MemoryHigh=64M", "TasksMax=20")
    assert (file(job, "memory.high"), file(job, "pids.max")) == (f"{64 << 20}\n", "20\n")
    lease = job.lease()
    slicer.command("stop", "x")
    outcome = slicer.outcome(lease.job)
    assert set(outcome.changed) == {"MemoryHigh=64M", "TasksMax=20"}
    assert {"MemoryHigh", "TasksMax"} <= set(outcome.enforced)


def test_a_paused_job_takes_no_cpu(slicer: Slicer, job: Job) -> None:  # X6
    slicer.command("pause", "x")
    before = cpu_us(job, "usage_usec")
    until(lambda: "frozen 1" in file(job, "cgroup.events"), "it is frozen")
    slicer.command("status")
    assert cpu_us(job, "usage_usec") == before
    slicer.command("resume", "x")
    until(lambda: cpu_us(job, "usage_usec") > before, "it goes on")
