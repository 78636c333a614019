"""The broker's units, installed as an administrator does it, under a real systemd."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.backend import feature_units
from tests.patience import LONGEST_S, until
from tests.systemd.helpers import systemctl

pytestmark = [pytest.mark.systemd, pytest.mark.core]

SOCKET = Path("/run/slicer-broker/socket")
UNITS = Path(__file__).parents[2] / "units" / "system"
# Of a template, an instance: systemd tells nothing of the template itself.
NAMES = sorted(name.rpartition("/")[2].replace("@.", "@it.") for name, _, _ in feature_units.table("broker"))
SERVICE, LISTENS = "slicer-broker.service", "slicer-broker.socket"
MOST_EXPOSED = 2.5
_DROP_IN = Path(f"/run/systemd/system/{SERVICE}.d/looks.conf")


@pytest.fixture(scope="module")
def installed() -> Iterator[str]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    yield systemctl.output("slicer", "install", "--broker")
    systemctl.output("slicer", "install", "--remove")


def test_it_is_switched_on_and_started_by_its_first_caller(installed: str) -> None:  # L1
    assert "\nbroker: on; " in installed
    assert systemctl.output("systemctl", "is-enabled", LISTENS).strip() == "enabled"
    info = SOCKET.lstat()
    assert (stat.S_ISSOCK(info.st_mode), info.st_uid, stat.S_IMODE(info.st_mode)) == (True, 0, 0o666)
    assert stat.S_IMODE(SOCKET.parent.lstat().st_mode) == 0o755
    systemctl.output("systemctl", "stop", SERVICE)
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "inactive"}
    # The doctor asks it, and so it runs.
    shown = json.loads(
        subprocess.run(("slicer", "doctor", "--json"), capture_output=True, text=True, check=False).stdout
    )
    (area,) = [area for area in shown["areas"] if area["area"] == "broker"]
    assert area["summary"] == "on: one ledger for all users", area
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "active"}


def test_systemd_finds_nothing_wrong_in_the_units(installed: str) -> None:  # K5
    done = subprocess.run(("systemd-analyze", "verify", *NAMES), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_sandbox_is_tight_and_each_open_row_is_explained(installed: str) -> None:  # L1
    told = json.loads(systemctl.output("systemd-analyze", "security", "--json=short", SERVICE))
    words = systemctl.output("systemd-analyze", "security", "--no-pager", SERVICE)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", words)
    assert float(exposure) <= MOST_EXPOSED
    explained = "".join(re.findall(r"^#   (\S.*)$", (UNITS / SERVICE).read_text(), re.MULTILINE))
    exposed = [re.sub(r"^CapabilityBoundingSet=~", "", row["name"]) for row in told if row["exposure"]]
    assert "User=/DynamicUser=" in exposed
    assert [name for name in exposed if name.partition("=")[0] not in explained] == []


LOOKS = """\
for path in /etc/x /run/x /run/lock/x /var/x /root/x /home/x /run/user/x /proc/sys/kernel/x; do
    touch "$path" 2>/dev/null && echo "can write $path"
done
touch /run/slicer-broker/x /var/lib/slicer/x && rm /run/slicer-broker/x /var/lib/slicer/x && echo fine
grep CapEff /proc/self/status
"""


def test_the_sandbox_is_one(installed: str) -> None:  # L1
    assert looks(LOOKS)[:2] == ["fine", "CapEff:\t0000000400200020"]


def looks(script: str) -> list[str]:
    """What a shell in the broker's place prints, until it says CapEff."""
    _DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    # Its limits of processes and system calls are for one program; this is a shell that starts others.
    _DROP_IN.write_text(
        "[Service]\nExecStart=\nExecStart=/bin/sh -c '" + script.replace("\n", "; ").replace("do;", "do")
        + "true'\nRestart=no\nStandardOutput=truncate:/tmp/looks\nExecStopPost=\n"
    )  # fmt: skip
    try:
        systemctl.output("systemctl", "daemon-reload")
        systemctl.output("systemctl", "stop", SERVICE)
        systemctl.output("systemctl", "start", SERVICE)
        until(lambda: "CapEff" in Path("/tmp/looks").read_text(), "it has looked")
    finally:
        _DROP_IN.unlink()
        systemctl.output("systemctl", "daemon-reload")
        systemctl.output("systemctl", "stop", SERVICE)
    return Path("/tmp/looks").read_text().split("\n")


def test_the_end_of_a_scope_wakes_it(installed: str) -> None:  # L2
    systemctl.output("systemctl", "stop", SERVICE)
    line = ("systemd-run", "--quiet", "--scope", "--property=OnSuccess=slicer-job-ended@it.target", "true")
    systemctl.output(*line)
    until(lambda: systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "active"}, "it was woken")
    until(
        lambda: systemctl.show("slicer-job-ended@it.target", "ActiveState") == {"ActiveState": "inactive"},
        "it can be reached again",
    )


def test_without_its_program_it_is_switched_off_and_keeps_no_job_waiting(installed: str) -> None:  # W23
    """As after `pipx uninstall` without `slicer install --remove` before it."""
    program = Path(feature_units.broker_program())
    gone = program.with_name("moved-away")
    job = ("slicer", "run", "-q", "--profile", "heavy", "--", "true")
    systemctl.output("systemctl", "restart", LISTENS)
    program.rename(gone)
    try:
        systemctl.output("systemctl", "stop", SERVICE)
        subprocess.run(job, check=False, capture_output=True)
        until(lambda: not SOCKET.exists(), "the socket is gone")
        assert systemctl.show(SERVICE, "ActiveState", "SubState")["SubState"] != "auto-restart"
        done = subprocess.run(job, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        # Nor does it come back with the next boot.
        systemctl.output("systemctl", "start", LISTENS)
        assert systemctl.show(LISTENS, "ActiveState", "ConditionResult") == {
            "ActiveState": "inactive", "ConditionResult": "no",
        }  # fmt: skip
    finally:
        gone.rename(program)
    systemctl.output("systemctl", "start", LISTENS)
    assert subprocess.run(job, check=False).returncode == 0
    assert systemctl.show(SERVICE, "ActiveState") == {"ActiveState": "active"}


def test_the_moment_of_an_upgrade_does_not_switch_it_off(installed: str) -> None:  # L1
    program = Path(feature_units.broker_program())
    gone = program.with_name("moved-away")
    systemctl.output("systemctl", "start", LISTENS)
    systemctl.output("systemctl", "stop", SERVICE)
    program.rename(gone)
    try:
        job = subprocess.Popen(("slicer", "run", "-q", "--profile", "heavy", "--", "true"))
        until(lambda: systemctl.show(SERVICE, "SubState")["SubState"] == "stop-post", "it was missed")
    finally:
        gone.rename(program)
    assert job.wait(LONGEST_S) == 0
    assert systemctl.show(LISTENS, "ActiveState") == {"ActiveState": "active"}


def test_stopped_it_is_absent_and_removed_it_is_gone(installed: str) -> None:  # L1
    systemctl.output("systemctl", "stop", LISTENS)
    assert not SOCKET.exists()  # else users' jobs would wait for it, and fail
    systemctl.output("slicer", "install")  # which brings all that is there up to date
    assert SOCKET.exists()
    told = systemctl.output("slicer", "install", "--broker", "--remove")
    assert "gpu.slice" not in told
    assert not SOCKET.exists()
    assert [name for name in NAMES if systemctl.show(name, "LoadState") != {"LoadState": "not-found"}] == []
