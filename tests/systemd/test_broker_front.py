"""Who is next in line has its scope before its lease: the same scope, and nothing more to be had by it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import RUN, Broker, holds, leaving_nothing, queues
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = [
    "tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures", "tests.systemd.helpers.nodes",
]  # fmt: skip
pytestmark = pytest.mark.systemd

# Before the grant, and after it.
BEFORE = ("broker-early-noted", "broker-early-asked", "broker-early-started")
AFTER = ("broker-claimed", "broker-leased", "broker-early-granted", "broker-early-opened")


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    yield from leaving_nothing(public_slicer, broker)
    until(lambda: not early(), "nothing is noted of scopes before their leases")


def early() -> set[str]:
    """The jobs whose scopes were started before their leases, and go on."""
    return {name.removesuffix(".early") for name in os.listdir(RUN / "commands") if name.endswith(".early")}


def ready(*others: str) -> str:
    """The job of the one that stands ready besides these, once it does."""

    def found() -> str | None:
        for job in early() - {*others}:
            record = (RUN / "commands" / f"{job}.early").read_text()
            line = next(line for line in record.splitlines() if line.startswith("CGROUP="))
            place = Path(f"/sys/fs/cgroup{line.removeprefix('CGROUP=')}/cgroup.procs")
            if place.exists() and place.read_text():
                return job
        return None

    return str(until(found, "one stands ready"))


@pytest.mark.core
def test_the_first_in_line_stands_ready_and_runs_in_its_scope(
    slicer: Slicer, broker: Broker, ann: User, ben: User
) -> None:  # L1
    holder, gate = holds(slicer, ann, "-g2")
    second = queues(slicer, ben, "-g2", "--set", "TasksMax=30")
    first_ready = ready()
    unit = f"slicer-{first_ready}.scope"
    shown = systemctl.show(unit, "Slice", "TasksMax", "ActiveState")
    assert shown == {"Slice": f"gpu-{ben.uid}.slice", "TasksMax": "30", "ActiveState": "active"}
    assert len(broker.leases()) == 1
    third = queues(slicer, ann, "--exec", "-g2")
    exec_ready = ready(first_ready)
    limited = queues(slicer, ann, "-g2", "--timeout", "1h")
    urgent = queues(slicer, ann, "-g2", "--priority", "5")
    urgent_ready = ready(first_ready, exec_ready)  # who is not the first any more stays
    assert early() == {first_ready, exec_ready, urgent_ready}
    gate.open()
    for job in (holder, urgent, second, third, limited):
        assert job.end().code == 0
    assert second.stdout.strip().endswith(f"/{unit}")
    assert third.stdout.strip().endswith(f"/slicer-{exec_ready}.scope")


@pytest.mark.core
def test_who_leaves_takes_its_scope_along(slicer: Slicer, ann: User, ben: User) -> None:  # L1
    holder, gate = holds(slicer, ann, "-g2")
    killed = queues(slicer, ben, "-g1")
    scope = ready()
    killed.kill()
    ended = {"ActiveState": "inactive"}
    until(lambda: systemctl.show(f"slicer-{scope}.scope", "ActiveState") == ended, "it is gone")
    stopped = queues(slicer, ben, "-g1")
    systemctl.output("systemctl", "stop", f"slicer-{ready(scope)}.scope")
    done = stopped.end()
    assert done.code == 125
    assert "its scope was stopped while the job waited" in done.stderr
    for options in ((), ("--exec",)):
        late = slicer.run("-g1", "--max-wait", "1s", *options, "--", "true", via=ben.via)
        assert late.code == 75, late
    until(lambda: not early(), "all have ended")
    gate.open()
    holder.end()
    systemctl.output("systemctl", "daemon-reload")  # scopes of a moment may stay loaded


@pytest.mark.parametrize("point", BEFORE)
def test_a_kill_while_it_is_started_loses_and_doubles_nothing(
    slicer: Slicer, broker: Broker, ann: User, ben: User, point: str
) -> None:  # L1
    holder, gate = holds(slicer, ann, "-g2")
    broker.stop_at(point)
    waiting = queues(slicer, ben, "-g1", script="echo ran")
    until(broker.is_stopped, f"it comes to {point}")
    broker.go_on()
    broker.kill()
    ready()
    gate.open()
    assert holder.end().code == 0
    done = waiting.end()
    assert (done.code, done.stdout) == (0, "ran\n"), done


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("point", ["", *AFTER])
def test_its_gpus_are_open_before_it_begins_wherever_the_broker_is_killed(
    slicer: Slicer, broker: Broker, ann: User, ben: User, eight: FakeNvml, look: str, point: str
) -> None:  # L1, X1
    broker.environment(**eight.env)
    holder, gate = holds(slicer, ann, "-g8", **eight.env)
    waiting = queues(slicer, ben, "-g1", "--gpu", "1", script=look, **eight.env)
    unit = f"slicer-{ready()}.scope"
    shown = systemctl.show(unit, "DevicePolicy", "DeviceAllow")
    assert shown["DevicePolicy"] == "strict"
    assert "195:" not in shown["DeviceAllow"]
    if point:
        broker.stop_at(point, **eight.env)  # it is started anew, and they come back
    gate.open()
    if point:
        until(broker.is_stopped, f"it comes to {point}")
        broker.go_on()
        broker.kill()
    done = waiting.end()
    assert (done.code, done.stdout) == (0, "open: 6 ctl\n"), done
    assert holder.end().code == 0
    assert "fence" not in done.stderr
