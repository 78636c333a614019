"""The namespace machine is what the other tests take it for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines.recipe import MARKER, SUITES

pytestmark = [pytest.mark.systemd, pytest.mark.core]


def output(*argv: str, **env: str) -> str:
    done = subprocess.run(argv, env={**os.environ, **env}, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def as_alice(*argv: str) -> str:
    identity = ("setpriv", "--reuid=alice", "--regid=alice", "--init-groups")
    return output(*identity, *argv, XDG_RUNTIME_DIR="/run/user/1000")


def test_the_first_process_is_systemd_of_the_suite() -> None:
    suite = SUITES[os.environ["SLICER_TEST_SUITE"]]
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    assert output("systemctl", "--version").split()[1] == str(suite.systemd)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" == suite.python


def test_it_booted_without_failed_units() -> None:
    assert output("systemctl", "list-units", "--failed", "--plain", "--no-legend") == ""


def test_its_root_is_the_images_tree_and_not_the_hosts() -> None:
    assert Path("/", MARKER).exists()
    assert not Path("/.host").exists()


def test_the_hosts_kernel_knobs_are_read_only() -> None:
    with pytest.raises(OSError, match="Read-only"):
        Path("/proc/sys/kernel/pid_max").write_text("4194304")


def test_a_scope_is_a_cgroup_of_this_machine() -> None:
    cgroup = output("systemd-run", "--scope", "--quiet", "--unit=probe.scope", "cat", "/proc/self/cgroup")
    assert cgroup.splitlines()[-1] == "0::/system.slice/probe.scope"


def test_a_user_manager_makes_scopes() -> None:
    output("loginctl", "enable-linger", "alice")
    try:
        # Returns when the manager is up; enable-linger may return before.
        output("systemctl", "start", "user@1000.service")
        cgroup = as_alice("systemd-run", "--user", "--scope", "--quiet", "cat", "/proc/self/cgroup")
    finally:
        output("loginctl", "disable-linger", "alice")
    assert cgroup.splitlines()[-1].startswith("0::/user.slice/user-1000.slice/user@1000.service/")


def test_the_journal_takes_and_shows_messages() -> None:
    subprocess.run(["systemd-cat", "-t", "machine-probe"], input=b"hello\n", check=True)
    output("journalctl", "--sync")
    assert output("journalctl", "-t", "machine-probe", "-o", "cat") == "hello"
