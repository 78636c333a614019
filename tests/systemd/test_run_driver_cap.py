"""The driver's own limit of GPU memory by cgroup keeps a job's cap, where it can (X7).

The driver is a fake library under the real pynvml, which writes down what it is asked for.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd
NEW = "driver 615.20.01"


@pytest.fixture
def log(fake_nvml: FakeNvml, tmp_path: Path) -> Path:
    """What the driver was asked for."""
    path = tmp_path / "log"
    fake_nvml.add(f"log {path}")
    return path


def asked(log: Path) -> list[str]:
    return [line.partition(" limit ")[2] for line in log.read_text().splitlines() if " limit " in line]


def test_it_is_set_for_the_scope_before_the_command_starts(
    slicer: Slicer, fake_nvml: FakeNvml, log: Path
) -> None:  # X7
    fake_nvml.add(NEW)
    done = slicer.run("--vram", "4G", "--share", "cap", "--", "cat", str(log), env=fake_nvml.env)
    outcome = slicer.outcome_of(done)
    line = f"0 0 {4 << 30} /sys/fs/cgroup/gpu.slice/{outcome.unit}"
    assert line in done.stdout
    assert asked(log) == [line]
    assert outcome.sharing is not None
    assert (outcome.sharing.driver_cap, outcome.sharing.troubles) == (1, ())
    dry = slicer.run("--vram", "4G", "--share", "cap", "--dry-run", "--", "cat", str(log), env=fake_nvml.env)
    assert "and the driver would enforce the cap, too" in dry.stdout


def test_an_older_driver_leaves_it_to_the_library(
    slicer: Slicer, fake_nvml: FakeNvml, log: Path
) -> None:  # X7
    done = slicer.run("--vram", "4G", "--share", "both", "--", "true", env=fake_nvml.env)
    outcome = slicer.outcome_of(done)
    assert outcome.sharing is not None
    assert (outcome.sharing.driver_cap, asked(log)) == (0, [])


def test_a_lock_alone_limits_nothing(slicer: Slicer, fake_nvml: FakeNvml, log: Path) -> None:  # X7
    fake_nvml.add(NEW)
    done = slicer.run("--vram", "4G", "--share", "lock", "--", "true", env=fake_nvml.env)
    assert (done.code, asked(log)) == (0, [])


def test_a_program_that_the_library_cannot_reach_starts_under_the_drivers_limit(
    slicer: Slicer, fake_nvml: FakeNvml, log: Path
) -> None:  # X7
    source, program = slicer.path("static.c"), slicer.path("static")
    source.write_text("int main(void) { return 7; }\n")
    subprocess.run(["cc", "-static", "-o", str(program), str(source)], check=True)
    options = ("--vram", "4G", "--share", "cap", "--", str(program))
    refused = slicer.run(*options, env=fake_nvml.env)
    assert refused.code == 2
    assert "statically linked" in refused.stderr
    fake_nvml.add(NEW)
    done = slicer.run(*options, env=fake_nvml.env)
    assert (done.code, len(asked(log))) == (7, 1)
    assert "only the driver enforces the cap" in done.stderr
    outcome = slicer.outcome_of(done)
    assert outcome.sharing is not None
    assert (outcome.sharing.driver_cap, outcome.sharing.troubles) == (1, ("not-preloaded",))
    fake_nvml.add("error nvmlDeviceSetMemoryLimits 3")  # it turns out only when it is asked
    failed = slicer.run(*options, env=fake_nvml.env)
    assert failed.code == 125
    assert "nor does the driver enforce it" in failed.stderr
