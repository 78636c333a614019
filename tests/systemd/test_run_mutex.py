"""Who runs, who waits, who is told to come back: leases of GPUs and CPU slots between jobs."""

from __future__ import annotations

import json
import os

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


@pytest.mark.core
@pytest.mark.parametrize("kind", ["gpu", "heavy"])
def test_the_second_waits_until_the_first_is_done(slicer: Slicer, fake_nvml: FakeNvml, kind: str) -> None:
    # A1, A6, A9
    options = ("--gpus", "2") if kind == "gpu" else ("-p", "heavy")
    what = "a GPU" if kind == "gpu" else "a CPU slot"
    gate = slicer.gate()
    first = slicer.hold(gate, *options, "--name", "first", "--expect", "10m", env=fake_nvml.env)
    second = logging_start(slicer, "second", *options, env=fake_nvml.env)
    second.said(f" left, pid {first.pid}, {first.lease().unit}, for ")
    waiting = f"slicer: waiting for {what}, held by first (about "
    assert any(f"{waiting}{left} left" in second.stderr for left in ("9m59s", "10m")), second.stderr
    second.ticket()
    assert not slicer.path("log").exists()
    gate.open()
    assert first.end().code == 0
    done = second.end()
    assert done.code == 0
    assert slicer.path("log").read_text() == "second began\nsecond over\n"
    assert "slicer: acquired " in done.stderr
    assert "second: exit 0" in done.stderr  # A9


def test_jobs_get_their_turn_in_the_order_of_their_arrival(slicer: Slicer) -> None:  # A1, X4
    gate = slicer.gate()
    first = slicer.hold(gate, "-p", "heavy")
    jobs = []
    for name in "abcde":
        jobs.append(logging_start(slicer, name, "-p", "heavy"))
        jobs[-1].ticket()
    gate.open()
    assert [job.end().code for job in [first, *jobs]] == [0] * 6
    expected = [f"{name} {what}" for name in "abcde" for what in ("began", "over")]
    assert slicer.path("log").read_text().splitlines() == expected


@pytest.mark.core
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


def test_cpu_slots_of_the_configuration(slicer: Slicer) -> None:  # A6
    config = slicer.path("config.toml")
    config.write_text("[slots]\ncpu = 2\n")
    gate, env = slicer.gate(), {"SLICER_CONFIG": str(config), "CPU_RUN_SLOTS": ""}
    jobs = [slicer.hold(gate, "-p", "heavy", env=env) for _ in range(2)]
    assert slicer.is_busy("-p", "heavy", env=env)
    for job in jobs:
        os.kill(job.command_pid(), 15)
        job.end()


@pytest.mark.core
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


def test_busy_of_a_cpu_slot_with_a_holder_that_told_nothing(slicer: Slicer) -> None:  # B1
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    done = slicer.run("--no-wait", "-q", "-p", "heavy", "--", "true")
    assert done.code == 75
    told = json.loads(done.stderr)
    assert told["error"] == "cpu-busy"
    assert told["holder"]["expected_remaining"] is None
    assert told["holder"]["name"] == told["holder"]["command"]  # what else could it be called
    gate.open()
    assert holder.end().code == 0


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


@pytest.mark.core
def test_the_lease_of_a_killed_job_is_free_at_once(slicer: Slicer) -> None:  # A2
    job = slicer.hold(slicer.gate(), "-p", "heavy")
    waiting = logging_start(slicer, "next", "-p", "heavy")
    waiting.ticket()
    systemctl.output("systemctl", "kill", "--signal=KILL", job.lease().unit)
    os.kill(job.pid, 9)
    slicer.dirty = True
    assert waiting.end().code == 0
    assert not slicer.is_busy("-p", "heavy")


def test_a_pid_in_a_stale_file_is_not_believed(slicer: Slicer) -> None:  # A2
    job = slicer.hold(slicer.gate(), "-p", "heavy")
    lease = job.lease()
    path = f"/run/slicer/leases/{lease.job}"
    with open(path, "rb") as file:
        content = file.read()
    os.kill(job.command_pid(), 15)
    job.end()
    with open(path, "wb") as file:  # as if its owner had died; its pid now belongs to somebody alive
        file.write(content.replace(f"PID={lease.pid}\n".encode(), f"PID={os.getpid()}\n".encode()))
    assert not slicer.is_busy("-p", "heavy")
    assert not os.path.exists(path)


@pytest.mark.core
def test_the_state_is_in_ram(slicer: Slicer) -> None:  # B7
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy")
    for directory in ("/run/slicer", "/run/slicer/leases", "/run/slicer/tickets"):
        assert systemctl.output("stat", "--file-system", "--format=%T", directory) == "tmpfs"
    assert [lease.job for lease in leases()] == [job.lease().job]
    gate.open()
    assert job.end().code == 0
    until(lambda: not leases(), "the lease's file is gone")


def test_messages_can_be_silenced_and_never_mix_with_output(slicer: Slicer) -> None:  # A9
    done = slicer.run("--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.code, done.stdout) == (3, "out\n")
    assert done.told.startswith("err\nslicer: ended: exit 3 · ")
    done = slicer.run("-q", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.code, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_many_jobs_at_once_all_run_one_at_a_time(slicer: Slicer) -> None:  # A1, A6
    inside = slicer.path("inside")
    script = f"mkdir {inside} && rmdir {inside}"  # fails when somebody else is in there
    jobs = [slicer.start("-q", "-p", "heavy", "--", "sh", "-c", script) for _ in range(12)]
    assert [job.end().code for job in jobs] == [0] * 12
