"""``slicer status`` over jobs in real scopes."""

from __future__ import annotations

import json

import pytest

from tests.fake_nvml import FakeNvml
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd


def test_status_names_holders_waiters_and_what_is_free(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # B2, B3
    gates = [slicer.gate() for _ in range(3)]
    env = fake_nvml.env
    train = slicer.hold(gates[0], "--gpus", "1", "--name", "train", "--expect", "1h", env=env)
    heavy = slicer.hold(gates[1], "-p", "heavy", env=env)
    light = slicer.hold(gates[2], "--name", "small")
    second = slicer.start("-p", "heavy", "--name", "second", "--", "true")
    ticket = second.ticket()
    found = json.loads(slicer.command("status", "--json", **env).stdout)
    jobs = {job["job"]: job for job in found["jobs"]}
    assert set(jobs) == {each.lease().job for each in (train, heavy, light)}
    holder, lease = jobs[train.lease().job], train.lease()
    assert (holder["name"], holder["pid"], holder["unit"]) == ("train", train.pid, lease.unit)
    assert (holder["cgroup"], holder["manager"], holder["user"]) == (lease.cgroup, "system", "root")
    assert holder["gpus"][0]["uuid"] == lease.gpus[0]
    assert 3500 < holder["expected_remaining"] <= 3600
    assert jobs[heavy.lease().job]["cpu_slots"] == 1
    assert [waiting["job"] for waiting in found["waiting"]] == [ticket.job]
    assert len(found["gpus"]["free"]) == 1
    assert found["cpu_slots"] == {"total": 1, "free": 0}
    assert found["state"] == {"directory": "/run/slicer"}
    text = slicer.command("status", **env).stdout
    assert f"\n  {lease.unit}: sh -c " in text
    assert f"\nCPU slots: 0 of 1 free; held by {heavy.lease().job}\nGPUs: 1 of 2 free " in text
    assert f"\n  held by {heavy.lease().job} - true\n" in text
    for gate in gates:
        gate.open()
    assert [job.end().code for job in (train, heavy, light, second)] == [0] * 4
    assert "No jobs are running." in slicer.command("status").stdout
