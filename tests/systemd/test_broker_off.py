"""A broker that does not listen: stopped for a moment, or switched off while its jobs go on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import SERVICE, SOCKET, SOCKET_UNIT, Broker, holds
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Slicer:
    """slicer in a machine with a broker, for every user."""
    return public_slicer


def wants_a_slot(slicer: Slicer, who: User) -> Done:
    return slicer.run("-p", "heavy", "--no-wait", "--", "true", via=who.via)


def test_while_its_socket_is_stopped_nobody_decides_alone(slicer: Slicer, ann: User, bob: User) -> None:  # N2
    job, gate = holds(slicer, ann, "-p", "heavy")
    systemctl.output("systemctl", "stop", SOCKET_UNIT)
    refused = wants_a_slot(slicer, bob)
    assert refused.code == 75
    assert f"switched on, and its socket is not there (systemctl start {SOCKET_UNIT}" in refused.told
    free = slicer.run("--", "true", via=bob.via)  # it wants nothing that anybody could hold
    assert (free.code, "its socket is not there" in free.told) == (0, True)
    assert "its socket is not there" in slicer.command("status", via=bob.via).stderr
    systemctl.output("systemctl", "start", SOCKET_UNIT)
    busy = wants_a_slot(slicer, bob)
    assert (busy.code, json.loads(busy.told.splitlines()[-1])["holder"]["user"]) == (75, "alice")
    gate.open()
    assert job.end().code == 0
    assert wants_a_slot(slicer, bob).code == 0


def test_switched_off_it_stays_off_and_what_its_jobs_hold_is_theirs(  # W22
    slicer: Slicer, ann: User, bob: User
) -> None:
    job, gate = holds(slicer, ann, "-p", "heavy")
    unit = systemctl.scopes()[0]
    told = systemctl.output("slicer", "install", "--broker", "--remove")
    assert "still running: 1 job of the broker. What wants GPUs or slots fails until they have ended" in told
    systemctl.output("slicer", "install", "--broker")
    systemctl.output("systemctl", "disable", "--now", SOCKET_UNIT)
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "inactive"}
    refused = wants_a_slot(slicer, bob)
    assert refused.code == 75
    assert f"was switched off, and a job of it still runs: {unit} (wait until" in refused.told
    gate.open()
    assert job.end().code == 0
    until(lambda: not systemctl.scopes(), "the scope has ended")
    jobs = subprocess.run(("systemctl", "list-jobs"), capture_output=True, text=True, check=True).stdout
    assert "slicer" not in jobs  # nothing is on its way
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "inactive"}
    assert systemctl.show(SOCKET_UNIT, "ActiveState") == {"ActiveState": "inactive"}
    assert not Path(SOCKET).exists()
    assert wants_a_slot(slicer, bob).code == 0  # a ledger of bob's own
