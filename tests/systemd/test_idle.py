"""Idle GPUs by real cgroups (U4)."""

from __future__ import annotations

import signal

import pytest

from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer, configured

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
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
    idle = slicer.start(*options, "-n", "idle", "--", "sh", "-c", f"{USE}use 0 100; sleep 1000", env=env)
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
    frozen = slicer.start("-p", "x", "--gpu", "0", "-n", "f", "--", "sh", "-c", begin, env=env)
    frozen.said("up")
    assert slicer.command("pause", "f").code == 0
    busy = [line for line in fake_nvml.state.read_text().splitlines() if line.startswith("busy")]
    fake_nvml.remove(*busy)
    assert slicer.run("-p", "x", "--gpu", "1", "--", "sleep", "1000", env=env).code == ENDED  # two periods
    assert "not used" not in frozen.stderr
    assert slicer.command("resume", "f").code == 0
    assert frozen.end().code == ENDED
    assert "not used" in frozen.stderr
