"""``slicer doctor`` beside a real systemd: as root, as a user, and as a user without a session."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel import cgroup
from tests.patience import LONGEST_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User, user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


def examined(*via: str, **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [*via, "slicer", "doctor", "--json"], env={**os.environ, **env}, capture_output=True, text=True,
        timeout=LONGEST_S, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode in (0, 1), done
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if said["well"] else 1)
    assert not [each for each in said["findings"] if each["id"].startswith("look-")], said["findings"]
    return said


def ids(said: dict[str, Any]) -> set[str]:
    return {each["id"] for each in said["findings"]}


def facts(said: dict[str, Any], area: str) -> dict[str, str]:
    (found,) = (each for each in said["areas"] if each["area"] == area)
    return {"summary": found["summary"], **{fact["name"]: fact["value"] for fact in found["facts"]}}


@pytest.mark.core
def test_root_is_told_of_the_system_manager() -> None:  # X10
    said = examined()
    seen = facts(said, "systemd")
    version = systemctl.output("systemctl", "--version").split()[1]
    assert re.match(rf"systemd {version}\b.*, the system manager; cgroup v2", seen["summary"])
    assert (seen["manager"], seen["cgroup of the manager"]) == ("system", "/")
    assert set(seen["controllers there"].split()) == (cgroup.controllers("/sys/fs/cgroup") or {"none"})
    assert "manager-unreachable" not in ids(said)
    assert "no-linger" not in ids(said)


@pytest.mark.core
def test_what_it_says_of_limits_is_what_a_job_says(slicer: Slicer) -> None:  # X10, D11
    outcome = slicer.path("outcome.json")
    done = slicer.run("--outcome", str(outcome), "--profile", "heavy", "--", "true")
    assert done.code == 0, done
    ran = json.loads(outcome.read_text())
    (profile,) = (each for each in examined()["profiles"] if each["profile"] == "heavy")
    assert set(profile["enforced"]) == set(ran["enforced"]) - {"TimeoutStopSec", "RuntimeMaxSec"}
    assert {each["property"] for each in profile["not_enforced"]} == set(ran["not_enforced"])


@pytest.mark.core
def test_a_user_with_a_manager_is_told_of_it(alice: User) -> None:  # X10
    said = examined(*alice.via)
    seen = facts(said, "systemd")
    assert seen["manager"] == "user"
    assert seen["cgroup of the manager"] == f"/user.slice/user-{alice.uid}.slice/user@{alice.uid}.service"
    assert not ids(said) & {"manager-unreachable", "no-linger"}


@pytest.mark.core
def test_a_user_without_a_session_is_told_what_to_do() -> None:  # X10
    bob = user("bob")
    said = examined(*bob.bare)
    (found,) = (each for each in said["findings"] if each["id"] == "manager-unreachable")
    assert found["severity"] == "problem"
    assert "bob is not logged in" in found["what"]
    assert "loginctl enable-linger bob" in found["mend"][0]
    assert "controllers-missing" not in ids(said)  # that cannot be known yet
    # The command that it names does mend it.
    try:
        systemctl.output("loginctl", "enable-linger", "bob")
        until(lambda: "manager-unreachable" not in ids(examined(*bob.bare)), "bob's manager answers")
    finally:
        systemctl.output("loginctl", "disable-linger", "bob")
        systemctl.output("systemctl", "stop", f"user@{bob.uid}.service")


def test_a_bus_that_does_not_answer_is_not_waited_for(alice: User, tmp_path: Path) -> None:  # X10
    runtime = Path("/run/silent")
    runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(runtime / "bus"))
        silent.listen()
        os.chmod(runtime / "bus", 0o666)
        try:
            said = examined(*alice.via, f"XDG_RUNTIME_DIR={runtime}")
        finally:
            shutil.rmtree(runtime)
    assert "systemd-hangs" in ids(said)
    assert {area["area"] for area in said["areas"] if area["state"] == "ok"} >= {"kernel", "configuration"}


def test_installed_units_are_told_apart_from_edited_ones() -> None:  # K5, X10
    systemctl.output("slicer", "install", "--remove")  # an earlier test's
    assert "units-missing" in ids(examined())
    path = Path("/usr/local/lib/systemd/system/cpu.slice")
    try:
        systemctl.output("slicer", "install")
        said = examined()
        assert not ids(said) & {"units-missing", "units-outdated"}
        path.write_text(path.read_text() + "# mine\n")
        assert facts(examined(), "units")[str(path)] == "edited"
    finally:
        systemctl.output("slicer", "install", "--remove", "--force")


def test_a_masked_slice_is_a_problem() -> None:  # X10
    mask = Path("/etc/systemd/system/gpu.slice")
    mask.symlink_to("/dev/null")
    try:
        assert "slice-masked" in ids(examined())
    finally:
        mask.unlink()


def test_a_squatted_ledger_is_told_of_and_not_followed(alice: User) -> None:  # X10, S12
    squatted = Path(alice.ledger)
    shutil.rmtree(squatted, ignore_errors=True)
    os.mkfifo(squatted)
    os.chown(squatted, 60000, 60000)
    own = Path(f"{alice.ledger}.0123456789ab")
    own.mkdir(mode=0o700)
    os.chown(own, alice.uid, alice.uid)
    try:
        said = examined(*alice.via)
        assert str(own) in next(e["what"] for e in said["findings"] if e["id"] == "ledger-name-taken")
    finally:
        squatted.unlink()
        own.rmdir()


def test_slicer_alone_shows_the_state_to_a_user_without_a_session() -> None:  # X10
    bob = user("bob")
    shutil.rmtree(bob.ledger, ignore_errors=True)  # of a test before
    done = subprocess.run(
        [*bob.bare, "slicer"], capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd="/"
    )
    assert done.returncode == 0, done
    assert "No jobs are running." in done.stdout
    assert "does not answer" in done.stdout
    assert "slicer doctor" in done.stdout
    assert not Path(bob.ledger).exists()
