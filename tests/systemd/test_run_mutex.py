"""Who runs, who waits, who is told to come back: leases of GPUs and CPU slots between jobs."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Job, Slicer, leases

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd


def logging_start(slicer: Slicer, name: str, *options: str, env: dict[str, str] | None = None) -> Job:
    """A job that writes "NAME began" and "NAME over" into ``log``."""
    script = f"echo {name} began >> log; echo {name} over >> log"
    return slicer.start("--name", name, *options, "--", "sh", "-c", script, env=env)


@pytest.mark.parametrize("kind", ["gpu", "heavy"])
def test_the_second_waits_until_the_first_is_done(slicer: Slicer, fake_nvml: FakeNvml, kind: str) -> None:
    # A1, A6, A9
    options = ("--gpus", "2") if kind == "gpu" else ("-p", "heavy")
    what = "a GPU" if kind == "gpu" else "a CPU slot"
    gate = slicer.gate()
    first = slicer.hold(gate, *options, "--name", "first", "--expect", "10m", env=fake_nvml.env)
    second = logging_start(slicer, "second", *options, env=fake_nvml.env)
    second.said(f" left, pid {first.pid}, {first.lease().unit}, for ")
    waiting = rf"slicer: waiting for {what}, held by first \(about (9m\d+s|10m) left"
    assert re.search(waiting, second.stderr), second.stderr
    second.ticket()
    assert not slicer.path("log").exists()
    gate.open()
    assert first.end().code == 0
    done = second.end()
    assert done.code == 0
    assert slicer.path("log").read_text() == "second began\nsecond over\n"
    assert "slicer: acquired " in done.stderr
    assert "second: exit 0" in done.stderr  # A9


def test_as_many_cpu_jobs_run_as_there_are_slots(slicer: Slicer) -> None:  # A6
    gate, two = slicer.gate(), {"CPU_RUN_SLOTS": "2"}
    first = slicer.hold(gate, "-p", "heavy", env=two)
    assert not slicer.is_busy("-p", "heavy", env=two)
    second = slicer.hold(gate, "-p", "heavy", env=two)
    assert slicer.is_busy("-p", "heavy", env=two)
    assert not slicer.is_busy("-p", "heavy", env={"CPU_RUN_SLOTS": "3"})
    assert not slicer.is_busy("-p", "light", env=two)
    os.kill(first.command_pid(), 15)
    assert first.end().code == 143
    assert not slicer.is_busy("-p", "heavy", env=two)
    os.kill(second.command_pid(), 15)
    assert second.end().code == 143


def test_busy_is_exit_75_and_one_line_of_json(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # B1, B2
    gate = slicer.gate()
    options = ("--name", "train big", "--expect", "1h")
    holder = slicer.hold(gate, "--gpus", "2", *options, env=fake_nvml.env)
    done = slicer.run("--no-wait", "-p", "gpu", "--", "touch", str(slicer.path("ran")), env=fake_nvml.env)
    assert (done.code, done.stdout) == (75, "")
    assert done.stderr.count("\n") == 1
    told = json.loads(done.stderr)
    assert set(told) == {"error", "holder"}
    assert told["error"] == "gpu-busy"
    assert set(told["holder"]) == {"name", "pid", "user", "unit", "held_for", "expected_remaining", "command"}
    assert told["holder"]["name"] == "train big"
    assert told["holder"]["pid"] == holder.pid
    assert told["holder"]["unit"] == holder.lease().unit
    assert 0 <= told["holder"]["held_for"] < 60
    assert 3540 < told["holder"]["expected_remaining"] <= 3600
    assert told["holder"]["command"].startswith("sh -c 'echo up")
    assert not slicer.path("ran").exists()
    assert holder.popen.poll() is None  # and the holder was left alone
    gate.open()
    done = holder.end()
    assert (done.code, done.stdout) == (0, "up\nover\n")


def test_the_holder_named_is_the_one_that_ends_first(slicer: Slicer) -> None:  # B1, B2
    gate, two = slicer.gate(), {"CPU_RUN_SLOTS": "2"}
    jobs = [
        slicer.hold(gate, "-p", "heavy", "--name", name, "--expect", expect, env=two)
        for name, expect in (("long", "2h"), ("short", "5m"))
    ]
    done = slicer.run("--no-wait", "-p", "heavy", "--", "true", env=two)
    assert json.loads(done.stderr)["holder"]["name"] == "short"
    for job in jobs:
        os.kill(job.command_pid(), 15)
        job.end()


def test_the_lease_of_a_killed_job_is_free_at_once(slicer: Slicer) -> None:  # A2
    job = slicer.hold(slicer.gate(), "-p", "heavy")
    waiting = logging_start(slicer, "next", "-p", "heavy")
    waiting.ticket()
    systemctl.output("systemctl", "kill", "--signal=KILL", job.lease().unit)
    os.kill(job.pid, 9)
    slicer.dirty = True
    assert waiting.end().code == 0
    assert not slicer.is_busy("-p", "heavy")


def test_the_state_is_in_ram(slicer: Slicer) -> None:  # B7
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy")
    for directory in ("/run/slicer", "/run/slicer/leases", "/run/slicer/tickets"):
        assert systemctl.output("stat", "--file-system", "--format=%T", directory) == "tmpfs"
    assert [lease.job for lease in leases()] == [job.lease().job]
    gate.open()
    assert job.end().code == 0
    until(lambda: not leases(), "the lease's file is gone")
