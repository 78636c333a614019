"""``slicer set``: limits of a running job are changed and shown, and who changed them is known."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Job, Slicer, leases
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


@pytest.fixture
def job(slicer: Slicer) -> Iterator[Job]:
    limits = ("--set", "CPUQuota=150%", "--set", "TasksMax=infinity")
    made = slicer.start("-p", "heavy", "--name", "x", *limits, "--", "sleep", "1000")
    made.lease()
    yield made
    if leases():
        slicer.command("stop", "x")
    made.end()


def shown(slicer: Slicer, via: tuple[str, ...] = ()) -> dict[str, tuple[str | None, str]]:
    told = json.loads(slicer.command("set", "x", "--json", via=via).stdout)
    return {each["name"]: (each["value"], each["source"]) for each in told["properties"]}


def test_values_have_their_sources(slicer: Slicer, job: Job) -> None:  # X6
    unit = job.lease().unit
    before = shown(slicer)
    assert before["CPUQuota"] == ("150%", "start")
    assert {source for _, source in before.values()} == {"start"}
    slicer.command("set", "x", "MemoryHigh=1G", "CPUQuota=50%")
    systemctl.output("systemctl", "set-property", unit, "CPUWeight=7", "TasksMax=77")
    changed = {name: value for name, value in shown(slicer).items() if before.get(name) != value}
    assert changed == {
        "MemoryHigh": ("1G", "slicer set"), "CPUQuota": ("50%", "slicer set"), "CPUWeight": ("7", "outside"),
        "TasksMax": ("77", "outside"),
    }  # fmt: skip
    assert systemctl.show(unit, "MemoryHigh", "CPUQuotaPerSecUSec") == {
        "MemoryHigh": str(1 << 30), "CPUQuotaPerSecUSec": "500ms",
    }  # fmt: skip
    text = slicer.command("set", "x").stdout
    assert "from outside (systemctl set-property)" in text
    assert "profile or --set" in text
    names = ("CPUQuota=", "MemoryHigh=", "TasksMax=", "CPUWeight=")
    slicer.command("set", "x", *names)
    assert shown(slicer) == before  # as it was started with


def test_a_change_is_in_the_outcome_and_the_journal(slicer: Slicer, job: Job) -> None:  # X6, K6
    lease = job.lease()
    slicer.command("set", "x", "MemoryHigh=1G", "MemoryLow=10M")
    slicer.command("set", "x", "MemoryHigh=2G")
    systemctl.output("systemctl", "set-property", lease.unit, "TasksMax=77")
    slicer.command("stop", "x")
    outcome = slicer.outcome(lease.job)
    assert set(outcome.changed) == {"MemoryHigh=2G", "MemoryLow=10M"}
    assert outcome.changed_outside == ("TasksMax=77",)
    assert {"MemoryLow", "TasksMax"} <= {*outcome.enforced, *outcome.not_enforced}
    entries = systemctl.journal("-t", "slicer", f"SLICER_JOB={lease.job}", "SLICER_EVENT=changed")
    assert [(each["MESSAGE"], each["SLICER_BY"]) for each in entries] == [
        ("x: MemoryHigh=1G, MemoryLow=10M set by root (slicer set)", "slicer"),
        ("x: MemoryHigh=2G set by root (slicer set)", "slicer"),
        ("x: TasksMax=77 was set from outside while it ran", "outside"),
    ]
    assert "TasksMax=77 (from outside)" in slicer.command("history", lease.job).stdout


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("RuntimeMaxSec=1h", "RuntimeMaxSec cannot be changed while the job runs"),
        ("KillMode=mixed", "KillMode cannot be changed while the job runs"),
        ("OOMPolicy=kill", "OOMPolicy cannot be changed while the job runs"),
        ("Slice=x.slice", "Slice cannot be set"),
        ("MemoryHigh=24", "no job fits into less than 1M"),
        ("Nonsense=1", "unknown resource property 'Nonsense'"),
        ("MemoryHigh", "expected PROPERTY=VALUE"),
    ],
)
def test_what_cannot_be_set_changes_nothing(slicer: Slicer, job: Job, wrong: str, said: str) -> None:  # X6
    before = shown(slicer)
    done = slicer.command("set", "x", "CPUWeight=9", wrong, code=2)
    assert said in done.stderr
    assert shown(slicer) == before


def test_what_this_systemd_does_not_know_is_refused_as_a_whole(slicer: Slicer, job: Job) -> None:  # X6
    """MemoryZSwapWriteback is of systemd 256."""
    version = int(systemctl.output("systemctl", "--version").split()[1])
    before = shown(slicer)
    knows = version >= 256
    slicer.command("set", "x", "CPUWeight=9", "MemoryZSwapWriteback=no", code=0 if knows else 125)
    assert (shown(slicer) == before) is not knows


def test_devices_of_a_running_job_are_taken_away(slicer: Slicer) -> None:  # X6
    node, here = Path("/dev/slicer-test"), slicer.path("said")
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(240, 7))  # without a driver
    except PermissionError:
        pytest.skip("no device nodes can be made here")
    script = 'while :; do cat "$2" 2> "$1"; sleep 0.05; done'
    job = slicer.start("--name", "x", "--", "sh", "-c", script, "sh", str(here), str(node))

    def says(text: str) -> None:
        until(lambda: here.exists() and text in here.read_text(), text)

    says("No such device or address")
    slicer.command("set", "x", "DeviceAllow=/dev/null rw", "DevicePolicy=closed")
    says("Operation not permitted")
    slicer.command("set", "x", "DeviceAllow=/dev/null rw", f"DeviceAllow={node} r")
    says("No such device or address")
    slicer.command("stop", "x")
    job.end()
    node.unlink()


def test_a_user_changes_her_own_job(slicer: Slicer, alice: User) -> None:  # X6, S8
    slicer.ledger = alice.ledger
    job = slicer.start("-p", "heavy", "--name", "x", "--", "sleep", "1000", via=alice.via)
    unit = job.lease().unit
    slicer.command("set", unit, "TasksMax=50", code=2)  # root has no such job
    slicer.command("set", "x", "TasksMax=50", via=alice.bare)
    assert systemctl.show(unit, "TasksMax", prefix=alice.systemctl) == {"TasksMax": "50"}
    assert shown(slicer, alice.via)["TasksMax"] == ("50", "slicer set")
    slicer.command("stop", "x", via=alice.via)
    job.end()
