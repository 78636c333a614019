"""The broker's interface as systemd's own tool finds it."""

from __future__ import annotations

import json
import subprocess

import pytest

from slicer.state import BROKER
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.callers import Running, acquire
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.callers"]
pytestmark = [pytest.mark.systemd, pytest.mark.usefixtures("one_broker")]

ADDRESS = f"unix:{BROKER}"


def test_varlinkctl_introspects_and_calls_the_broker(alice: User, bob: User) -> None:  # L1
    assert systemctl.output("varlinkctl", "list-interfaces", ADDRESS).splitlines() == [
        "io.slicer.Broker", "org.varlink.service",
    ]  # fmt: skip
    assert "Product: slicer-broker" in systemctl.output("varlinkctl", "info", ADDRESS)
    said = systemctl.output("varlinkctl", "introspect", ADDRESS, "io.slicer.Broker")
    assert "method Acquire(" in said
    assert "error TooMany(" in said
    with Running(alice.uid, acquire(name="alices")) as job:
        call = ("varlinkctl", "call", "--json=short", ADDRESS)
        text = systemctl.output(*bob.identity, *call, "io.slicer.Broker.Status", "{}")
        (lease,) = json.loads(text)["leases"]
        assert (lease["job"], lease["name"], lease["uid"]) == (job.job, "alices", alice.uid)
        for method, parameters, error in (
            ("Stop", {"job": job.job}, "io.slicer.Broker.NoSuchJob"),
            ("Stop", {"job": "x"}, "org.varlink.service.InvalidParameter"),
            ("Reboot", {}, "org.varlink.service.MethodNotFound"),
        ):
            done = subprocess.run(
                [*bob.identity, *call, f"io.slicer.Broker.{method}", json.dumps(parameters)],
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode != 0
            assert error in done.stderr
