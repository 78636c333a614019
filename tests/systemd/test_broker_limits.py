"""Limits of users' jobs through the broker: the user's own, the administrator's, the driver's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers.broker import RUN, Broker, leaving_nothing
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

TRAPS = "trap 'echo told; exit 3' TERM; echo up; sleep infinity & wait"


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker, for every user."""
    yield from leaving_nothing(public_slicer, broker)


def test_the_administrator_ends_what_is_held_too_long_and_it_hears_of_that(
    slicer: Slicer, broker: Broker, ann: User
) -> None:  # L1, E1
    broker.configure("", "[default]\nmax_hold = '3s'\n")
    job = slicer.start("-g1", "--name", "long", "--", "sh", "-c", TRAPS, via=ann.via)
    job.said("up")
    assert slicer.command("pause", "long", via=ann.via).code == 0  # which gives it no more time
    done = job.end()
    assert ("told" in done.stdout, done.code) == (True, 124)
    assert "over its time limit" in done.stderr


@pytest.mark.parametrize(("folder", "module"), [("src", "slicer"), ("slicer-client", "slicer_client")])
def test_a_program_that_holds_too_long_is_ended(
    slicer: Slicer, broker: Broker, ann: User, folder: str, module: str
) -> None:  # L1, U2
    broker.configure("", "[default]\nmax_hold = '2s'\n")
    program = f"import signal, {module}; {module}.acquire(gpus=1); print('up', flush=True); signal.pause()"
    source = str(Path(__file__).parents[2] / folder)
    done = subprocess.run(
        [*ann.via, f"PYTHONPATH={source}", sys.executable, "-c", program], env=slicer.environ(),
        stdout=subprocess.PIPE, check=False, text=True,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("up\n", -signal.SIGTERM)
    until(lambda: not broker.leases(), "its GPU is free")


def test_what_may_not_be_asked_for_is_refused_before_anybody_waits(
    slicer: Slicer, ann: User, ben: User
) -> None:  # K2
    gate = slicer.gate()
    holder = slicer.start("-g2", "--", "sh", "-c", f"echo up; : < {gate}", via=ben.via)
    holder.said("up")
    for limit in ("MemoryLow=1G", "TimeoutStopSec=1h", "IOReadBandwidthMax=/home 1M"):
        done = slicer.run("-g1", "--set", limit, "--", "true", via=ann.via)
        assert (done.code, limit.partition("=")[0] in done.stderr) == (125, True)
    assert "MemoryLow" not in slicer.run("-g1", "--no-wait", "--", "true", via=ann.via).stderr
    gate.open()
    holder.end()


def test_the_driver_caps_the_scope_of_a_user(
    slicer: Slicer, broker: Broker, ann: User, nvml: FakeNvml
) -> None:  # X7, L1
    nvml.add("driver 615.20.01")  # it can cap a cgroup
    broker.environment(**nvml.env)
    assert slicer.command("status", via=ann.via).code == 0  # starts it; then its directory is there
    log = RUN / "asked"
    log.touch()
    nvml.add(f"log {log}")
    options = ("--vram", "4G", "--share", "cap", "--", "sh", "-c", f"tail -n1 /proc/self/cgroup; cat {log}")
    done = slicer.run(*options, env=nvml.env, via=ann.via)
    assert done.code == 0, done.stderr
    scope = done.stdout.splitlines()[0].removeprefix("0::")
    assert scope.startswith(f"/gpu.slice/gpu-{ann.uid}.slice/slicer-")
    assert f" limit 0 0 {4 << 30} /sys/fs/cgroup{scope}" in done.stdout
    outcome = slicer.outcome(scope.rpartition("-")[2].removesuffix(".scope"), ann.history)
    assert outcome.sharing is not None
    assert outcome.sharing.driver_cap == 1
