"""Under a user manager some limits act and some do not, and slicer says which (X3, X10)."""

from __future__ import annotations

import sys

import pytest

from slicer.model import Outcome
from slicer.outcome import history
from tests.enforced.test_run_limits import RACES
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.enforced


def run(slicer: Slicer, alice: User, *arguments: str) -> tuple[Done, Outcome]:
    done = slicer.run(*arguments, via=alice.via)
    (entry,) = systemctl.journal("-t", "slicer", "SLICER_EVENT=finished", f"_PID={done.pid}")
    (outcome,) = history.read(alice.history, job=entry["SLICER_JOB"])
    return done, outcome


ASKED = {
    "CPUQuota=50%": ("cpu.max", "50000 100000"),
    "CPUWeight=33": ("cpu.weight", "33"),
    "MemoryMax=200M": ("memory.max", str(200 << 20)),
    "TasksMax=123": ("pids.max", "123"),
    "IOWeight=44": ("io.weight", "default 44"),
    "AllowedCPUs=0": ("cpuset.cpus", "0"),
}


@pytest.mark.core
def test_what_a_user_manager_enforces_is_told_truthfully(public_slicer: Slicer, alice: User) -> None:  # X3
    show = (
        'cd "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"; for f; do head -n1 "$f" 2>&1 || :;'
        " done; : < /dev/fuse && echo fuse open"
    )
    options = [f"--set={assignment}" for assignment in ASKED]
    files = [file for file, _ in ASKED.values()]
    done, outcome = run(
        public_slicer,
        alice,
        "-v",
        *options,
        "--set=DevicePolicy=closed",
        "--",
        "sh",
        "-c",
        show,
        "sh",
        *files,
    )
    *shown, device = done.stdout.splitlines()
    acting = {
        name.split("=")[0]
        for (name, (_, value)), line in zip(ASKED.items(), shown, strict=True)
        if line == value
    }
    assert acting == {"CPUQuota", "CPUWeight", "MemoryMax", "TasksMax"}
    assert device == "fuse open"  # in spite of the policy
    assert set(outcome.not_enforced) == {"IOWeight", "AllowedCPUs", "DevicePolicy"}
    assert acting <= set(outcome.enforced)
    assert "slicer: not enforced here: " in done.stderr
    assert outcome.usage.memory_peak_bytes
    assert outcome.usage.io_read_bytes is None  # not delegated: not known


def test_memory_max_kills_under_a_user_manager(public_slicer: Slicer, alice: User) -> None:  # K3, X3
    hungry = (sys.executable, "-c", "held = bytearray(200 << 20)")
    options = ("--set", "MemoryMax=64M", "--set", "MemorySwapMax=0")
    done, outcome = run(public_slicer, alice, *options, "--", *hungry)
    assert done.code == 137, done
    assert outcome.reason == "oom-kill"
    assert outcome.usage.memory_peak_bytes is not None
    assert 60 << 20 < outcome.usage.memory_peak_bytes <= 65 << 20


def test_a_memory_kill_of_the_whole_scope_is_told_though_it_took_slicers_half_along(
    public_slicer: Slicer, alice: User
) -> None:  # K2, X3
    hungry = (sys.executable, "-c", "held = bytearray(200 << 20)")
    options = ("--set", "MemoryMax=64M", "--set", "MemorySwapMax=0", "--set", "OOMPolicy=kill")
    for _ in range(RACES):
        done, outcome = run(public_slicer, alice, *options, "--", *hungry)
        assert (done.code, outcome.reason) == (137, "oom-kill"), done
        assert outcome.usage.oom_kills
