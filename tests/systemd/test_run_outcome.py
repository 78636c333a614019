"""What slicer says became of a job: in the outcome file, in history, and about what was enforced (X3)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.model import Outcome, Usage
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

BURN = "import time\nwhile time.process_time() < 0.4: pass"

# The file in which the kernel shows that a property acts, and what is in there.
ASKED = {
    "CPUQuota=150%": ("cpu.max", "150000 100000"),
    "CPUWeight=33": ("cpu.weight", "33"),
    "MemoryMax=400M": ("memory.max", str(400 << 20)),
    "MemoryHigh=300M": ("memory.high", str(300 << 20)),
    "TasksMax=123": ("pids.max", "123"),
    "AllowedCPUs=0": ("cpuset.cpus", "0"),
}


def test_cpu_time_wall_time_and_waiting_time_are_right(slicer: Slicer) -> None:  # X3
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    before = time.time()
    job = slicer.start("-p", "heavy", "--", sys.executable, "-c", BURN)
    ticket = job.ticket()
    queued = time.monotonic()
    gate.open()
    assert holder.end().code == 0
    done = job.end()
    passed = time.monotonic() - queued
    outcome = slicer.outcome(ticket.job)
    assert done.code == 0
    assert outcome.usage.cpu_s is not None
    assert 0.35 < outcome.usage.cpu_s < 2.0
    assert outcome.usage.cpu_user_s is not None
    assert outcome.usage.cpu_system_s is not None
    assert outcome.usage.cpu_user_s + outcome.usage.cpu_system_s == pytest.approx(
        outcome.usage.cpu_s, abs=0.05
    )
    assert 0.35 < outcome.wall_s < passed + 0.1
    assert 0 < outcome.waited_s < passed + 1.0
    assert before <= outcome.started_at <= time.time()


def test_cpu_time_of_all_processes_counts(slicer: Slicer) -> None:  # X3
    command = f'for i in 1 2 3; do {sys.executable} -c "$0" & done; wait'
    done = slicer.run("--", "sh", "-c", command, BURN)
    cpu_s = slicer.outcome_of(done).usage.cpu_s
    assert cpu_s is not None
    assert 1.1 < cpu_s < 6.0


def test_the_outcome_file_says_what_history_says(slicer: Slicer) -> None:  # X3
    path = slicer.path("outcome.json")
    done = slicer.run("-p", "heavy", "--name", "it's", "--outcome", str(path), "--", "sh", "-c", "exit 3")
    assert done.code == 3
    told = json.loads(path.read_text())
    outcome = slicer.outcome(told["job"])
    assert (told.pop("version"), told.pop("usage").keys()) == (1, set(Usage.__annotations__))
    for field in set(Outcome.__annotations__) - {"usage"}:
        kept = getattr(outcome, field)
        expected = pytest.approx(kept, abs=1e-5) if isinstance(kept, float) else kept
        assert told.pop(field) == (list(kept) if isinstance(kept, tuple) else expected), field
    assert not told
    assert (outcome.name, outcome.reason, outcome.exit_code, outcome.cpu_slots) == ("it's", "exited", 3, 1)
    assert (outcome.command, outcome.profile, outcome.slice) == (("sh", "-c", "exit 3"), "heavy", "cpu.slice")
    assert outcome.unit == f"slicer-{outcome.job}.scope"
    assert (outcome.backend, outcome.manager, outcome.uid) == ("systemd", "system", 0)


def test_the_outcome_file_is_written_when_slicer_was_killed(slicer: Slicer) -> None:  # X3
    path = slicer.path("outcome.json")
    gate = slicer.gate()
    job = slicer.hold(gate, "--outcome", str(path), code=9)
    lease = job.lease()
    job.kill()
    job.popen.wait()
    gate.open()
    assert slicer.outcome(lease.job).exit_code == 9
    # In this order: the file was asked for by name, history is kept for all.
    systemctl_events = systemctl.events(lease.job)
    assert systemctl_events[-1] in ("finished", "released")
    assert json.loads(path.read_text())["exit_code"] == 9


@pytest.mark.enforced
def test_what_is_enforced_is_told_truthfully(slicer: Slicer) -> None:  # X3, K3
    script = 'cd "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"; for f; do head -n1 "$f" 2>&1; done'
    files = [file for file, _ in ASKED.values()]
    options = [f"--set={assignment}" for assignment in ASKED]
    done = slicer.run("-v", *options, "--", "sh", "-c", script, "sh", *files)
    assert done.code in (0, 1), done
    found = dict(zip(ASKED, done.stdout.splitlines(), strict=True))
    acting = {
        assignment.split("=")[0] for assignment, (_, value) in ASKED.items() if found[assignment] == value
    }
    outcome = slicer.outcome_of(done)
    asked = {assignment.split("=")[0] for assignment in ASKED}
    assert set(outcome.enforced) & asked == acting, (found, outcome.enforced)
    assert set(outcome.not_enforced) & asked == asked - acting
    assert "TimeoutStopSec" in outcome.enforced
    if asked - acting:
        assert "slicer: not enforced here: " in done.stderr


def test_a_limit_of_the_command_line_that_does_not_act_is_said_each_time(slicer: Slicer) -> None:  # W18
    asked = ("--set", "TasksMax=4321", "--set", "AllowedCPUs=0", "--set", "MemoryHigh=1G")
    names = slicer.outcome_of(slicer.run(*asked, "--", "true")).not_enforced
    missing = ", ".join(name for name in names if f"{name}=" in " ".join(asked))
    if not missing:
        pytest.skip("everything acts here")
    # Also to whoever detaches the job, and never sees its log.
    for options in ((), (), ("--exec",), ("--detach", "--output", str(slicer.path("log")))):
        done = slicer.run(*options, *asked, "--", "true")
        assert f"slicer: {missing}: not enforced here: no cgroup controller for it" in done.stderr


@pytest.fixture
def nvidia_node() -> Iterator[Path]:
    """A node as the driver makes them. Without a driver, to open it is ENXIO; EPERM where it is denied."""
    path = Path("/dev/slicer-test-nvidia0")
    os.mknod(path, 0o666 | 0o020000, os.makedev(195, 0))
    yield path
    path.unlink()


@pytest.mark.enforced
def test_whether_the_device_policy_acts_is_told_truthfully(slicer: Slicer, nvidia_node: Path) -> None:  # X1
    probe = ("sh", "-c", f": < {nvidia_node}")
    open_to_all = slicer.run("-q", "--", *probe)
    assert "No such device" in open_to_all.stderr
    closed = slicer.run("-q", "--set", "DevicePolicy=closed", "--", *probe)
    acts = "not permitted" in closed.stderr or "ermission denied" in closed.stderr
    assert ("DevicePolicy" in slicer.outcome_of(closed).enforced) == acts, closed.stderr


def test_figures_are_never_missing_however_short_the_command(slicer: Slicer) -> None:  # X3
    for _ in range(40):
        outcome = slicer.outcome_of(slicer.run("-q", "--", "true"))
        assert outcome.usage.cpu_s is not None
        assert 0 < outcome.usage.cpu_s < 10
        assert 0 < outcome.wall_s < 30
