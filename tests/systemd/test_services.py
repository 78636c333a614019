"""docs/services.md: its units, as they are written there. W32"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

PAGE = (Path(__file__).parents[2] / "docs" / "services.md").read_text()
UNITS = dict(re.findall(r"^```ini\n# (\S+)\n(.*?)^```", PAGE, re.M | re.S))
NAME = "model-server.service"
PLACE = Path("/etc/systemd/system", NAME)
SERVER = Path("/usr/local/bin/model-server")
PROGRAMS = {
    "polite": "trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done",
    "ended by SIGTERM": "exec sleep 1000",
    "rude": "trap '' TERM; while :; do sleep 0.1; done",
}


@pytest.fixture
def unit() -> Iterator[None]:
    """The unit of the page, with a GPU and jobs that are simulated, and a job that ends in a second."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test installs a service: only for test machines")
    assert shutil.which("slicer") == "/usr/local/bin/slicer"
    settings = Path("/etc/slicer/config.toml")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text('[profiles.gpu]\ntimeout_stop = "1s"\n')
    drop_in = PLACE.with_name(f"{NAME}.d")
    drop_in.mkdir()
    (drop_in / "test.conf").write_text("[Service]\nEnvironment=SLICER_SIM=1x80G\n")
    PLACE.write_text(UNITS[str(PLACE)])
    yield
    systemctl.output("systemctl", "stop", NAME, check=False)
    shutil.rmtree(drop_in)
    for path in (PLACE, SERVER, settings):
        path.unlink()
    settings.parent.rmdir()
    systemctl.output("systemctl", "daemon-reload")
    systemctl.output("systemctl", "reset-failed", NAME, check=False)


def begin(program: str, prefix: tuple[str, ...] = ("systemctl",)) -> None:
    """Start the service; returned once its job runs."""
    SERVER.write_text(f"#!/bin/sh\n{PROGRAMS[program]}\n")
    SERVER.chmod(0o755)
    systemctl.output("systemctl", "daemon-reload")
    systemctl.output("systemctl", "start", NAME)
    until(lambda: running(prefix), "the job runs")


def running(prefix: tuple[str, ...] = ("systemctl",)) -> list[str]:
    shown = {scope: systemctl.show(scope, "ActiveState", prefix=prefix) for scope in systemctl.scopes(prefix)}
    return [scope for scope, state in shown.items() if state["ActiveState"] == "active"]


def how() -> tuple[str, str]:
    found = systemctl.show(NAME, "ActiveState", "Result")
    return found["ActiveState"], found["Result"]


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_stopped_service_has_ended_well_and_its_job_too(program: str) -> None:
    begin(program)
    systemctl.output("systemctl", "stop", NAME)
    # Who had to be killed has failed, as with any service.
    assert how() == (("failed", "exit-code") if program == "rude" else ("inactive", "success"))
    assert running() == []


@pytest.mark.usefixtures("unit")
def test_a_killed_slicer_leaves_no_job_in_the_way_of_the_next_start() -> None:
    begin("ended by SIGTERM")
    (before,) = running()
    systemctl.output("systemctl", "kill", "--kill-who=main", "--signal=KILL", NAME)
    until(lambda: running() not in ([], [before]), "the service has started again, with a new job")
    systemctl.output("systemctl", "stop", NAME)
    assert running() == []


@pytest.mark.usefixtures("unit")
def test_a_users_service_takes_a_user_that_lingers(alice: User) -> None:
    drop_in = Path("/etc/systemd/system", f"{NAME}.d", "user.conf")
    drop_in.write_text(UNITS[str(drop_in)])
    begin("polite", alice.systemctl)
    assert running() == []  # root's systemd has none
    systemctl.output("systemctl", "stop", NAME)
    assert how() == ("inactive", "success")
    assert running(alice.systemctl) == []


def test_a_sandbox_that_hides_the_ledgers_place_is_said_with_the_way_out() -> None:  # U12
    """DynamicUser=yes implies ProtectSystem=strict."""
    service = ("systemd-run", "--quiet", "--wait", "--pipe", "--property=DynamicUser=yes")
    job = ("slicer", "run", "--backend", "plain", "--cpu-slots", "1", "--", "echo", "ran")
    refused = subprocess.run((*service, *job), capture_output=True, text=True, check=False)
    assert (refused.returncode, "ReadWritePaths=/run/lock" in refused.stderr) == (125, True), refused
    cured = subprocess.run(
        (*service, "--property=ReadWritePaths=/run/lock", *job), capture_output=True, text=True, check=False
    )
    assert (cured.returncode, cured.stdout) == (0, "ran\n"), cured
    for path in Path("/run/lock").glob("slicer-6*"):  # of systemd's dynamic users
        shutil.rmtree(path)
