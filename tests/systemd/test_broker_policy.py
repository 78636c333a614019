"""Two users under the administrator's policy: caps, shares, and whose use is shown to whom."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import SERVICE, Broker
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

POLICY = "[default]\nmax_gpus = 1\n[users.bob]\nmax_gpus = 2\nweight = 2\n"


def shown(*command: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(systemctl.output(*command))
    return found


@pytest.mark.core
def test_caps_and_shares_hold_between_users_and_each_sees_its_own_use(
    broker: Broker, ann: User, ben: User
) -> None:  # L3, L5
    broker.configure("", POLICY)
    gpu = {"gpus": 1, "binding": "scope", "slice": "gpu", "start": True}
    first = broker.call(ann, **gpu, name="hers", profile="train", command="train --secret")
    first.await_("started")
    second = broker.call(ann, **gpu, name="more")
    said = f"{ann.name} may hold 1 GPU at a time (policy.toml:2) and holds 1"
    assert second.await_("waiting")["why"] == said
    busy = second.await_("waiting")["busy"]
    assert [each["job"] for each in busy["holders"]] == [first.job]
    his = broker.call(ben, **gpu, name="his", profile="serve")
    his.await_("started")  # the other GPU, past her second request

    # Hers has used more by now, for its weight; so his later request goes ahead of hers.
    more = broker.call(ben, **gpu, name="later")
    assert more.await_("waiting")["why"] == ""
    waiting = until(lambda: more.events("waiting"), "it waits")
    assert waiting[0]["busy"]["ahead"] == 0
    first.do("finish")
    first.do("end")
    more.await_("started")
    his.do("end")
    second.await_("started")

    for caller in (more, second):
        caller.do("end")
    until(lambda: not broker.leases(), "all have ended")
    rows = shown(*ann.bare, "slicer", "usage", "--json")["rows"]
    assert {row["profile"]: row["jobs"] for row in rows} == {"train": 1, "": 1}  # type: ignore[attr-defined]
    rows = shown("slicer", "usage", "--json")["rows"]
    assert {row["user"]: row["jobs"] for row in rows} == {ann.name: 2, ben.name: 2}  # type: ignore[attr-defined]
    assert all(row["gpu_s"] > 0 for row in rows)  # type: ignore[attr-defined]
    systemctl.output("systemctl", "stop", SERVICE)  # root reads the accounts without the broker, too
    jobs = shown("slicer", "history", "--all-users", "--json")["jobs"]
    assert {(row["user"], row["name"]) for row in jobs} == {  # type: ignore[attr-defined]
        (ann.name, "hers"), (ann.name, "more"), (ben.name, "his"), (ben.name, "later")
    }  # fmt: skip
    for command in (("slicer", "history", "--all-users"), ("cat", "/var/lib/slicer/usage.db")):
        done = subprocess.run((*ben.bare, *command), check=False, capture_output=True, text=True)
        assert done.returncode, done.stdout
        assert "secret" not in done.stdout + done.stderr
