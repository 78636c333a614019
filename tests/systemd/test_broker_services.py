"""System services of users, whose jobs would be outside of their sandbox (S20)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from slicer.broker.protocol import messages, wire
from tests.broker_client import DEFAULTS
from tests.systemd.helpers.broker import SOCKET, Broker, leaving_nothing
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

ACQUIRES = "import slicer\nwith slicer.acquire('api', slots={'cpu': 1}): print('got it')"


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker, for every user."""
    yield from leaving_nothing(public_slicer, broker)


def in_service(who: User, *command: str, unit: str = "confined.service") -> tuple[int, str]:
    """Exit code and output of a system service that is confined, as that user."""
    limits = ("--property=DevicePolicy=closed", "--property=TasksMax=20", "--property=IPAddressDeny=any")
    run = ("systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--unit={unit}", f"--uid={who.uid}")
    done = subprocess.run((*run, *limits, *command), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_job_leads_out_of_no_services_sandbox(slicer: Slicer, broker: Broker, ann: User) -> None:  # S20
    where = ("slicer", "run", "-p", "heavy", "--", "tail", "-n1", "/proc/self/cgroup")
    code, told = in_service(ann, *where)
    assert code not in (0, 1), told
    assert "allow_services: confined.service is a system service, and a job would be outside of its" in told
    assert "/gpu-" not in told
    assert "/cpu-" not in told
    code, told = in_service(ann, "/opt/slicer/bin/python", "-c", ACQUIRES)  # which stays where it is
    assert (code, told) == (0, "got it\n")
    code, told = in_service(ann, *where, unit="atd.service")  # what users have ordered
    assert (code, f"/cpu-{ann.uid}.slice/slicer-" in told) == (0, True), told
    broker.configure("[slots]\ncpu = 1\n", policy="allow_services = true\n")
    code, told = in_service(ann, *where)
    assert (code, f"/cpu-{ann.uid}.slice/slicer-" in told) == (0, True), told


ORPHAN = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connector = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == connector:
    pass
connection.sendall(bytes.fromhex(sys.argv[2]))
print(connection.recv(65536).decode())
"""


def test_a_child_does_not_ask_in_the_place_of_a_service_that_has_ended(
    broker: Broker, ann: User
) -> None:  # S20
    wish = {**DEFAULTS, "job": "0123456789ab", "binding": "scope", "slots": {"cpu": 1}}
    asked = wire.encode_call(messages.Acquire(**wish), more=True).hex()
    shell = '/opt/slicer/bin/python -c "$1" "$2" "$3" | cat'  # cat waits for the child
    code, told = in_service(ann, "sh", "-c", shell, "sh", ORPHAN, SOCKET, asked)
    assert code == 0
    is_hung_up_on = told.strip() == "" or "ConnectionResetError" in told  # with what it wrote unread
    assert is_hung_up_on or "has ended" in told, told
    assert broker.leases() == broker.tickets() == []
