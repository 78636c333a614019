"""``slicer status --watch`` beside jobs in real scopes; what it does to a terminal is in tests/process."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.patience import until
from tests.systemd.helpers import processes
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.terminal import CTRL_C, Terminal

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

# Within an hour nothing can be seen but what the kernel tells of.
WATCH = ("slicer", "top", "--interval", "3600")


# B3
def test_a_scope_that_comes_and_goes_is_seen_at_once(slicer: Slicer) -> None:
    slicer.run("-q", "--", "true")  # so that there is a ledger to be watched
    gate = slicer.gate()
    with Terminal(*WATCH, env=slicer.environ()) as terminal:
        terminal.expect("No jobs are running.")
        job = slicer.hold(gate, "-p", "heavy", "--name", "train")
        terminal.expect(f"{job.lease().unit}: sh -c ")
        gate.open()
        assert job.end().code == 0
        terminal.expect("No jobs are running.")
        terminal.type(CTRL_C)
        assert terminal.end() == 0


# Holds its lease by nothing but its scope.
CLOSING = """\
import os, sys
os.closerange(0, 4096)
os.close(os.open("up", os.O_CREAT))
os.close(os.open(sys.argv[1], os.O_RDONLY))
"""


# B3, K2: that the scope is empty is an event of its cgroup, and of nothing else
def test_the_end_of_a_scope_that_outlived_slicer_is_seen(slicer: Slicer) -> None:
    gate = slicer.gate()
    job = slicer.start("-p", "heavy", "--name", "train", "--", sys.executable, "-c", CLOSING, str(gate))
    until(slicer.path("up").exists, "the command is up")
    lease = job.lease()
    with Terminal(*WATCH, env=slicer.environ()) as terminal:
        terminal.expect("  train         running  1 CPU slot")
        slicer.dirty = True
        job.kill()
        os.kill(lease.keeper, signal.SIGKILL)
        job.popen.wait()
        until(lambda: watches(terminal.pid) == 3, "its cgroup is watched")
        gate.open()
        terminal.expect("No jobs are running.")
        terminal.type("q")
        assert terminal.end() == 0


def watches(pid: int) -> int:
    """How many things the process watches by inotify."""
    return sum(text.count("inotify wd:") for text in processes.fdinfo(pid))
