"""`slicer install --web` and `--metrics` under a real systemd: the board of all users, without rights."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

NAMES = ("slicer-web.socket", "slicer-web.service", "slicer-metrics.timer", "slicer-metrics.service")
MOST_EXPOSED = 1.8
FOLDER = Path("/var/lib/prometheus/node-exporter")


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    FOLDER.mkdir(parents=True, exist_ok=True)  # the timer starts the service at once
    systemctl.output("slicer", "install", "--broker")
    for feature in ("web", "metrics"):
        systemctl.output("slicer", "install", f"--{feature}")
    yield
    systemctl.output("slicer", "install", "--remove")


def ask(path: str) -> bytes:
    asked = http.client.HTTPConnection("127.0.0.1", 8750)
    try:
        asked.request("GET", path)
        answer = asked.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read()
    finally:
        asked.close()


def test_systemd_finds_nothing_wrong_in_the_units(installed: None) -> None:  # K5
    done = subprocess.run(("systemd-analyze", "verify", *NAMES), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["slicer-web.service", "slicer-metrics.service"])
def test_the_sandbox_is_tight(installed: None, name: str) -> None:  # U13, X8
    words = systemctl.output("systemd-analyze", "security", "--no-pager", name)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", words)
    assert float(exposure) <= MOST_EXPOSED


def test_the_board_shows_the_jobs_of_all_users_and_no_commands(
    installed: None, broker: Broker, ann: User, ben: User
) -> None:  # U13
    pytest.importorskip("aiohttp")
    assert systemctl.show("slicer-web.service", "ActiveState") == {"ActiveState": "inactive"}
    gpu = {"gpus": 1, "binding": "scope", "slice": "gpu", "start": True, "command": "train --secret"}
    running = [broker.call(user, **gpu, name=f"job-of-{user.name}") for user in (ann, ben)]
    for each in running:
        each.await_("started")
    waiting = broker.call(ben, **gpu, name="next")
    waiting.await_("waiting")

    def names(part: str) -> set[str]:
        return {each["name"] for each in json.loads(ask("/board.json"))[part]}

    until(lambda: names("jobs") == {"job-of-alice", "job-of-bob"}, "both are on the board")
    until(lambda: names("waiting") == {"next"}, "and who waits")
    text = ask("/board.json")
    assert json.loads(text)["all_users"]
    assert b"secret" not in text
    found = systemctl.show("slicer-web.service", "ActiveState", "MainPID")
    assert found["ActiveState"] == "active"
    assert Path("/proc", found["MainPID"]).stat().st_uid not in (0, ann.uid, ben.uid)
    for each in running:
        each.do("end")
    waiting.await_("started")
    waiting.do("end")
    until(lambda: not broker.leases(), "all have ended")


def test_the_metrics_are_written_where_the_collector_reads_them(installed: None) -> None:  # X8
    pytest.importorskip("prometheus_client")
    systemctl.output("systemctl", "start", "slicer-metrics.service", check=False)
    result = systemctl.show("slicer-metrics.service", "Result")["Result"]
    assert result == "success", systemctl.output("journalctl", "-u", "slicer-metrics.service", "--no-pager")
    assert "slicer_jobs_running" in (FOLDER / "slicer.prom").read_text()


def test_removal_leaves_nothing(installed: None) -> None:  # K5
    """Not even a failure that systemd remembers, nor figures that no longer change."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "slicer.prom").touch()
    systemctl.output("slicer", "install", "--remove", "--metrics")
    assert not list(FOLDER.glob("slicer*"))
    systemctl.output("slicer", "install", "--metrics")
    # The timer has started it at once, with the folder there.
    systemctl.output("systemctl", "stop", "slicer-metrics.timer", "slicer-metrics.service")
    for path in FOLDER.glob("*"):
        path.unlink()
    FOLDER.rmdir()
    systemctl.output("systemctl", "start", "slicer-metrics.service", check=False)
    assert systemctl.show("slicer-metrics.service", "Result") == {"Result": "exit-code"}
    systemctl.output("slicer", "install", "--remove", "--web")
    systemctl.output("slicer", "install", "--remove")
    for name in NAMES:
        assert systemctl.show(name, "LoadState") == {"LoadState": "not-found"}
        assert not list(Path("/etc/systemd/system").glob(f"*/{name}"))
    assert "slicer" not in systemctl.output("systemctl", "--failed", "--no-legend", "--all")
