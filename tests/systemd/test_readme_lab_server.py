"""README's lab server, pasted into root's shell on a machine that has never had a configuration (L1, L4)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import ETC, Broker
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User, user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

README = (Path(__file__).parents[2] / "README.md").read_text()
GPUS = {"SLICER_SIM": "4x80G", "SLICER_STATE_DIR": "/run/broker-test"}


@pytest.fixture
def bare(alice: User) -> Iterator[None]:
    """A machine that nobody has configured yet. Alice is logged in."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test installs a service: only for test machines")
    if ETC.exists():
        shutil.rmtree(ETC)  # what an earlier test has left
    subprocess.run(("groupadd", "phd"), check=True)
    yield
    subprocess.run(("groupdel", "phd"), check=True)
    systemctl.output("slicer", "install", "--closed-shop", "--remove")
    Broker.taken_away()
    systemctl.output("slicer", "install", "--remove")
    assert not ETC.exists()


@pytest.mark.usefixtures("bare")
def test_every_line_of_the_lab_server_works(public_slicer: Slicer) -> None:
    lines = README.partition("## I run the lab's server")[2].partition("\nUsers type")[0].splitlines()
    script = "\n".join(line.removeprefix("    ") for line in lines if line.startswith("    "))
    # What asks a question is the last line: it would take the next one for the answer (W33).
    assert script.splitlines()[-1].startswith("slicer install --closed-shop ")
    # Nobody is there to say yes; and what a test machine's kernel lacks makes doctor fail.
    for asks, answered in (("--closed-shop ", "--closed-shop --yes "), ("slicer doctor ", "true ")):
        assert asks in script
        script = script.replace(asks, answered)
    shell = ("bash", "-euc", f"umask 077\n{script}")  # of an administrator who is careful
    done = subprocess.run(shell, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)
    assert done.returncode == 0, done
    assert re.search(rf"^created +{ETC} ", done.stdout, re.MULTILINE), done
    assert (ETC.stat().st_mode & 0o777, ETC.stat().st_uid) == (0o755, 0)
    found = json.loads(systemctl.output("slicer", "doctor", "--json", check=False))["findings"]
    about = ("broker-", "policy-", "closed-")
    odd = [each for each in found if each["id"].startswith(about) and each["id"] != "closed-shop"]
    assert (odd, "closed-shop" in {each["id"] for each in found}) == ([], True)
    said = systemctl.output(*user("bob").bare, "slicer", "doctor", "--json", check=False)
    found = json.loads(said)["findings"]
    assert [each["id"] for each in found if each["area"] in ("systemd", "session")] == [], "cron will do"
    Broker.environment(**GPUS)
    options = ("-q", "--gpus", "3", "--", "true")
    refused = public_slicer.run(*options, via=user("alice").bare)
    assert (refused.code, "alice may hold 2 GPUs at a time" in refused.stderr) == (2, True), refused
