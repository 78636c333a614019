"""A broker that does not listen: stopped for a moment, or switched off while its jobs go on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import SERVICE, SOCKET, SOCKET_UNIT, Broker, holds, queues
from tests.systemd.helpers.jobs import Done, Slicer, tickets
from tests.systemd.helpers.queues import Queues
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
    assert f"switched on, but its socket is missing (systemctl start {SOCKET_UNIT}" in refused.told
    free = slicer.run("--", "true", via=bob.via)  # it wants nothing that anybody could hold
    assert (free.code, "its socket is missing" in free.told) == (0, True)
    assert "its socket is missing" in slicer.command("status", via=bob.via).stderr
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
    left = "still running: 1 job of the broker. Until they end, every job that requests GPUs or slots fails"
    assert left in told
    systemctl.output("slicer", "install", "--broker")
    systemctl.output("systemctl", "disable", "--now", SOCKET_UNIT)
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "inactive"}
    refused = wants_a_slot(slicer, bob)
    assert refused.code == 75
    assert f"was switched off, but one of its jobs still runs: {unit} (wait until" in refused.told
    gate.open()
    assert job.end().code == 0
    until(lambda: not systemctl.scopes(), "the scope has ended")
    jobs = subprocess.run(("systemctl", "list-jobs"), capture_output=True, text=True, check=True).stdout
    assert "slicer" not in jobs  # nothing is on its way
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "inactive"}
    assert systemctl.show(SOCKET_UNIT, "ActiveState") == {"ActiveState": "inactive"}
    assert not Path(SOCKET).exists()
    assert wants_a_slot(slicer, bob).code == 0  # a ledger of bob's own


def test_switched_on_it_alone_gives_out_slots(slicer: Slicer, bob: User) -> None:  # L1
    """Those who waited in private ledgers do not go on there."""
    systemctl.output("systemctl", "disable", "--now", SOCKET_UNIT)
    job, gate = holds(slicer, bob, "-p", "heavy")
    ran, still = slicer.path("ran"), slicer.gate()
    waiter = queues(slicer, bob, "-p", "heavy", script=f"touch {ran}")
    files = Queues(slicer, bob.via)
    files.write(f"[profile=light] : < {still}", f"[profile=heavy] touch {ran}")
    queue = files.start()
    queue.told("started", 1)
    until(lambda: len(tickets(bob.ledger)) == 2, "its second job waits, too")
    systemctl.output("slicer", "install", "--broker")
    gate.open()
    assert job.end().code == 0
    ended = waiter.end()
    assert (ended.code, "a broker was switched on in the meantime (run it again)" in ended.told) == (75, True)
    until(lambda: "a broker was switched on: start the queue again" in queue.stdout, "the queue says it")
    still.open()
    assert queue.end().code == 75
    assert (files.exit_codes(), ran.exists()) == ({1: 0}, False)
    assert files.run().code == 0
    assert ran.exists()


def test_a_queue_does_not_wait_for_a_broker_that_was_switched_off(  # L1
    slicer: Slicer, ann: User, bob: User
) -> None:
    job, gate = holds(slicer, ann, "-p", "heavy")
    ran = slicer.path("ran")
    waiter = queues(slicer, bob, "-p", "heavy", script=f"touch {ran}")
    files = Queues(slicer, bob.via)
    files.write(f"[profile=heavy] touch {ran}")
    queue = files.start()
    queue.told("waiting")
    systemctl.output("systemctl", "disable", "--now", SOCKET_UNIT)
    assert waiter.end(2 * DEADLINE_S).code == 75  # for half a minute it tries to be heard again
    until(lambda: "was switched off, but one of its jobs still runs" in queue.stdout, "so does the queue")
    gate.open()
    assert job.end().code == 0
    assert queue.end(2 * DEADLINE_S).code == 75
    assert "the broker was switched off: start the queue again" in queue.stdout
    assert (files.exit_codes(), ran.exists()) == ({}, False)
    assert files.run().code == 0  # in a ledger of bob's own
    assert ran.exists()
