"""`slicer serve` under a real systemd: started by its socket, its server a scope of its own. B6"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from slicer.backend import serve_units
from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import processes, systemctl

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

EVENTS = Path("/run/serve-events")
CONFIG = f"""\
[serve.fake]
kind = "ollama"
listen = ["127.0.0.1:8131"]
command = ["/opt/slicer/bin/python3", "-m", "tests.fake_server", "--log", "{EVENTS}"]
env = {{ PYTHONPATH = "/src" }}
profile = "heavy"
release_timeout = "10s"
"""
SERVICE = serve_units.service_of("fake")


@pytest.fixture
def installed() -> Iterator[None]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    settings = Path("/etc/slicer/config.toml")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(CONFIG)
    systemctl.output("slicer", "install")
    systemctl.output("slicer", "install", "--serve", "fake")
    yield
    systemctl.output("slicer", "install", "--remove")
    settings.unlink()
    settings.parent.rmdir()
    EVENTS.unlink(missing_ok=True)
    until(lambda: not systemctl.scopes(), "no scope is left")


def ask(path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(f"http://127.0.0.1:8131{path}", data, DEADLINE_S) as answer:
        return bytes(answer.read())


def generate() -> bytes:
    return ask("/api/generate", {"model": "m", "prompt": "x"})


def status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(systemctl.output("slicer", "status", "--json"))
    return found


def scope() -> str:
    """The unit of the server's job, once it holds its lease."""
    jobs = status()["jobs"]
    return next((each["unit"] for each in jobs if each["name"] == "serve:fake"), "")


def main_pid() -> int:
    return int(systemctl.show(SERVICE, "MainPID")["MainPID"])


def test_the_first_request_starts_it_and_stopping_it_gives_all_back(installed: None) -> None:  # B6, X1
    assert main_pid() == 0
    assert b'"done": true' in generate()
    unit = scope()
    assert unit in systemctl.scopes()
    assert "cpu.slice" in systemctl.show(unit, "ControlGroup")["ControlGroup"]
    until(lambda: status()["servers"][0]["state"] == "ready", "it is written down, too")
    (served,) = status()["servers"]
    assert (served["server"], served["pid"]) == ("fake", main_pid())
    systemctl.output("systemctl", "stop", SERVICE)
    assert status()["jobs"] == []
    assert not systemctl.scopes()
    assert systemctl.show(SERVICE, "Result") == {"Result": "success"}
    assert b'"done": true' in generate()  # its socket starts it again


def test_a_killed_proxy_is_followed_by_one_that_ends_what_it_left(installed: None) -> None:  # B6, K2
    assert b'"done": true' in generate()
    left = scope()
    os.kill(main_pid(), signal.SIGKILL)
    until(lambda: systemctl.show(SERVICE, "Result") == {"Result": "signal"} or main_pid(), "it was seen")
    assert b'"done": true' in generate()
    assert scope() != left
    until(lambda: left not in systemctl.scopes(), "what was left is gone")
    assert [each["name"] for each in status()["jobs"]] == ["serve:fake"]


def test_it_leaves_when_it_is_idle_and_comes_with_the_next_request(installed: None) -> None:  # B6
    Path("/etc/slicer/config.toml").write_text(f'{CONFIG}idle = "1s"\n')
    assert b'"done": true' in generate()
    pid = main_pid()
    until(lambda: not processes.is_alive(pid), "it has left", 90.0)
    assert systemctl.show(SERVICE, "Result") == {"Result": "success"}
    assert status()["jobs"] == []
    assert b'"done": true' in generate()
