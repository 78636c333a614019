"""Idle GPUs by real cgroups, and the policy's idle_timeout, which no user gets round (U4)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.jobs import Slicer, configured
from tests.systemd.helpers.users import User

pytest_plugins = [
    "tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures", "tests.fake_nvml",
]  # fmt: skip
pytestmark = pytest.mark.systemd

PROFILE = '[profiles.x]\ninherits = "gpu"\nvram = "1G"\nidle_timeout = "1s"\non_idle = "stop"\n'
# The shell works on the GPU in each sample of the driver.
BUSY = 'read own rest </proc/self/stat; echo "busy 0 $own 40" >>"$FAKE_NVML_STATE"'
ENDED = 128 + signal.SIGTERM


@pytest.mark.core
def test_the_scope_decides_whose_work_on_a_gpu_is_whose(slicer: Slicer, fake_nvml: FakeNvml) -> None:
    env = {**fake_nvml.env, **configured(slicer.directory, PROFILE)}
    gate = slicer.gate()
    child = slicer.path("works")
    child.write_text(f"#!/bin/sh\n{USE}{BUSY}; use 0 100; : < {gate}\n")
    child.chmod(0o755)
    options = ("-p", "x", "--gpu", "0")
    script = f"env -i {_given(fake_nvml)} setsid {child} & wait"
    busy = slicer.start(*options, "--", "sh", "-c", script, env=env)
    until(lambda: "busy" in fake_nvml.state.read_text(), "it works")
    idle = slicer.start(*options, "--name", "idle", "--", "sh", "-c", f"{USE}use 0 100; sleep 1000", env=env)
    done = idle.end()
    assert done.code == ENDED, done
    assert "idle has not used its GPU for" in done.stderr
    assert slicer.outcome_of(done).ended_by == "slicer idle"
    warned, ends = systemctl.journal("-t", "slicer", "SLICER_EVENT=idle", f"_PID={idle.pid}")
    assert (warned["SLICER_IDLE"], warned["SLICER_LEFT_S"], ends["SLICER_IDLE"]) == ("warned", "1", "ends")
    assert "not used" not in busy.stderr
    gate.open()
    assert busy.end().code == 0


def _given(nvml: FakeNvml) -> str:
    return f"PATH=$PATH FAKE_NVML_STATE={nvml.state}"


def test_a_frozen_job_is_not_idle(slicer: Slicer, fake_nvml: FakeNvml) -> None:
    env = {**fake_nvml.env, **configured(slicer.directory, PROFILE)}
    begin = f"{USE}use 0 100; {BUSY}; echo up; sleep 1000"
    frozen = slicer.start("-p", "x", "--gpu", "0", "--name", "f", "--", "sh", "-c", begin, env=env)
    frozen.said("up")
    assert slicer.command("pause", "f").code == 0
    busy = [line for line in fake_nvml.state.read_text().splitlines() if line.startswith("busy")]
    fake_nvml.remove(*busy)
    assert slicer.run("-p", "x", "--gpu", "1", "--", "sleep", "1000", env=env).code == ENDED  # two periods
    assert "not used" not in frozen.stderr
    assert slicer.command("resume", "f").code == 0
    assert frozen.end().code == ENDED
    assert "not used" in frozen.stderr


@pytest.fixture
def public(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker, for every user."""
    yield from leaving_nothing(public_slicer, broker)


@pytest.mark.core
def test_a_killed_supervisor_does_not_keep_an_idle_gpu(
    public: Slicer, broker: Broker, nvml: FakeNvml, ann: User, ben: User
) -> None:
    broker.environment(**nvml.env)
    broker.configure("", 'on_idle = "stop"\n[default]\nidle_timeout = "2s"\n')
    script = "echo pid $$; echo up; sleep 1000"
    busy = public.start("--vram", "1G", "--gpu", "0", "--", "sh", "-c", script, env=nvml.env, via=ben.via)
    busy.said("up")
    pid = busy.stdout.split()[1]
    nvml.add(f"live 0 {pid} 100 compute", f"busy 0 {pid} 40")
    told = public.start("--vram", "1G", "--gpu", "0", "--", "sh", "-c", script, env=nvml.env, via=ann.via)
    done = told.end()
    assert (done.code, "; it is ended in 2s, unless it does" in done.stderr) == (ENDED, True)
    left = public.start("--vram", "1G", "--gpu", "0", "--", "sh", "-c", script, env=nvml.env, via=ann.via)
    left.said("up")
    (job,) = (each for each in broker.leases() if broker.lease(each)["UID"] == str(ann.uid))
    os.kill(int(broker.lease(job)["PID"]), signal.SIGKILL)
    until(lambda: broker.lease(job).get("IDLE_SINCE_S"), "the broker has seen that it is idle")
    until(lambda: job not in broker.leases(), "the broker has ended it")
    assert "not used" not in busy.stderr
    os.kill(int(pid), signal.SIGTERM)
    busy.end()
