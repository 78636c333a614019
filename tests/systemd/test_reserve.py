"""Two users and reservations: `slicer reserve` with the broker. (U7)"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import SERVICE, Broker, holds
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

POLICY = '[users.bob]\nmax_reserve = "1h"\nmax_gpus = 1\n'


def reservations(slicer: Slicer, *options: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(slicer.command("reserve", *options, "--json", **more).stdout)[
        "reservations"
    ]
    return found


def test_a_reservation_keeps_gpus_for_one_user(
    public_slicer: Slicer, broker: Broker, ann: User, ben: User
) -> None:
    slicer = public_slicer
    broker.configure("", POLICY)
    (made,) = reservations(slicer, "--gpus", "2", "--for", "1h", "--for-user", ann.name)
    assert (made["user"], len(made["gpus"])) == (ann.name, 2)
    his = slicer.start("--gpus", "1", "--name", "his", "--", "true", via=ben.via)
    his.said(f"reserved for {ann.name} until ")
    hers, gate = holds(slicer, ann, "--gpus", "1", "--name", "hers")
    dry = slicer.command("run", "--dry-run", "--gpus", "1", "--", "true", via=ben.via).stdout
    assert "busy" in dry
    status = json.loads(slicer.command("status", "--json", via=ben.via).stdout)
    assert [each["id"] for each in status["reservations"]] == [made["id"]]
    systemctl.output("systemctl", "stop", SERVICE)
    assert reservations(slicer, via=ben.via) == [made]
    refused = slicer.command("reserve", "--remove", made["id"], via=ben.via, code=2)
    assert "is another user's" in refused.stderr
    reservations(slicer, "--remove", made["id"][:4], via=ann.via)
    assert his.end().code == 0
    gate.open()
    assert hers.end().code == 0


def test_it_ends_by_itself(public_slicer: Slicer, broker: Broker, ann: User, ben: User) -> None:
    reservations(public_slicer, "--gpus", "2", "--for", "3s", "--for-user", ann.name)
    his = public_slicer.start("--gpus", "1", "--", "true", via=ben.via)
    his.said(f"reserved for {ann.name} until ")
    assert his.end().code == 0
    assert reservations(public_slicer) == []


# U19: what runs there goes on; the next broker knows it still, and everybody is told why and how it ends
def test_root_takes_a_gpu_out_of_service(public_slicer: Slicer, broker: Broker, ann: User, ben: User) -> None:
    slicer = public_slicer
    hers, gate = holds(slicer, ann, "--gpu", "0", "--name", "hers")
    out = ("reserve", "--out-of-service", "0", "--why", "fell off the bus")
    assert "only root may" in slicer.command(*out, via=ann.via, code=2).stderr
    assert "expected GPUs" in slicer.command("reserve", "--out-of-service", "", "--why", "x", code=2).stderr
    slicer.command(*out)
    (made,) = reservations(slicer, "--gpus", "1", "--begin", "10h", "--for", "1h")
    assert [uuid[:12] for uuid in made["gpus"]] == ["SIM-00000001"]
    assert "is no reservation" in slicer.command("reserve", "--remove", "None", code=2).stderr
    reservations(slicer, "--remove", made["id"])
    his = slicer.start("--gpu", "0", "--name", "his", "--", "true", via=ben.via)
    why = "by root: fell off the bus; slicer reserve --remove SIM-00000000 puts it back"
    his.said(f"GPU 0 is out of service ({why})")
    systemctl.output("systemctl", "stop", SERVICE)
    listed = slicer.command("reserve", via=ben.via).stdout
    assert ("OUT OF SERVICE" in listed, "fell off the bus" in listed) == (True, True)
    doctor = [*ben.via, "slicer", "doctor", "--json"]
    said = subprocess.run(doctor, env=slicer.environ(), capture_output=True, text=True, check=False).stdout
    assert "gpu-taken-out" in {each["id"] for each in json.loads(said)["findings"]}
    remove = ("reserve", "--remove", "SIM-00000000")
    assert "only root may" in slicer.command(*remove, via=ann.via, code=2).stderr
    gate.open()
    assert hers.end().code == 0
    assert "no reservation and no GPU" in slicer.command("reserve", "--remove", "SIM-00000001", code=2).stderr
    slicer.command(*remove)
    assert his.end().code == 0
    left = json.loads(slicer.command("reserve", "--json").stdout)
    assert (left["reservations"], left["out_of_service"]) == ([], [])


def test_users_reserve_as_the_policy_allows(
    public_slicer: Slicer, broker: Broker, ann: User, ben: User
) -> None:
    slicer = public_slicer
    broker.configure("", POLICY)
    for options, who, says in (
        (("--gpus", "1", "--for", "1h"), ann, "only root may reserve GPUs"),
        (("--gpus", "1", "--for", "2h"), ben, "policy.toml:2: 2.0 hours were asked for, but"),
        (("--gpus", "2", "--for", "1h"), ben, "may hold 1 GPU at a time"),
        (("--gpus", "1", "--for", "1h", "--for-user", ann.name), ben, "may reserve GPUs for others"),
        (("--gpus", "9", "--for", "1h"), None, "9 wanted, but 2 of"),
        (("--gpu", "7", "--for", "1h"), None, "no such GPU"),
        (("--gpus", "1", "--for", "1h", "--for-user", "nobody-such"), None, "there is no user"),
        (("--gpus", "1",), None, "say how long"),
    ):
        via = () if who is None else who.via
        done = slicer.command("reserve", *options, via=via, code=2)
        assert says in done.stderr, done
    for number in range(5):
        begins = f"{100 + number}h"
        reservations(slicer, "--gpus", "1", "--begin", begins, "--for", "1h", via=ben.via)
    assert "5 of them yours" in slicer.command(
        "reserve", "--gpus", "1", "--begin", "200h", "--for", "1h", via=ben.via, code=75
    ).stderr
    listed = slicer.command("reserve", via=ann.via).stdout
    assert listed.count(ben.name) == 5
    for each in reservations(slicer):
        assert each["from_at"] > time.time()
        reservations(slicer, "--remove", each["id"])
