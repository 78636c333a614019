"""In the QEMU machine the kernel does what systemd asks of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.machines.recipe import SUITES

pytestmark = [pytest.mark.enforced, pytest.mark.core, pytest.mark.with_ci]

CGROUPS = Path("/sys/fs/cgroup")


def scope(*argv: str, **properties: str) -> subprocess.CompletedProcess[str]:
    options = [f"--property={name}={value}" for name, value in properties.items()]
    command = ["systemd-run", "--scope", "--quiet", "--collect", *options, "--", *argv]
    return subprocess.run(command, capture_output=True, text=True)


def own(file: str) -> tuple[str, ...]:
    """A command that prints a file of its own cgroup."""
    return "sh", "-c", f'cat "{CGROUPS}$(sed -n s/^0:://p /proc/self/cgroup)/{file}"'


def test_the_first_process_is_systemd_of_the_suite() -> None:
    version = subprocess.run(["systemctl", "--version"], check=True, capture_output=True, text=True).stdout
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    assert version.split()[1] == str(SUITES[os.environ["SLICER_TEST_SUITE"]].systemd)


def test_all_controllers_are_there() -> None:
    controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(controllers)


def test_memory_max_kills() -> None:
    hungry = scope("python3", "-c", "len(bytearray(200 << 20))", MemoryMax="64M", MemorySwapMax="0")
    assert hungry.returncode in (-9, 137)


def test_cpu_quota_reaches_the_kernel() -> None:
    assert scope(*own("cpu.max"), CPUQuota="150%").stdout.split() == ["150000", "100000"]


def test_io_weight_reaches_the_kernel() -> None:
    assert scope(*own("io.weight"), IOWeight="50").stdout.splitlines()[0] == "default 50"


def test_a_closed_device_policy_denies() -> None:
    assert scope("sh", "-c", ": < /dev/kmsg", DevicePolicy="closed").returncode != 0
    assert scope("sh", "-c", ": < /dev/kmsg").returncode == 0


def test_the_journal_is_reachable() -> None:
    subprocess.run(["systemd-cat", "-t", "machine-probe"], input=b"hello\n", check=True)
    subprocess.run(["journalctl", "--sync"], check=True)
    shown = subprocess.run(["journalctl", "-t", "machine-probe", "-o", "cat"], capture_output=True, text=True)
    assert shown.stdout == "hello\n"
