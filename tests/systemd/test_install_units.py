"""Units installed over the root of a machine that is thrown away, under a real systemd."""

from __future__ import annotations

import grp
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.backend.install_units import Report, apply, plan, remove
from slicer.outcome import journal
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def installed() -> Iterator[Report]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    whole = plan(user_delegation=True)
    report = apply(whole)
    yield report
    remove(whole)


def test_every_file_and_command_succeeds(installed: Report) -> None:  # K5
    assert {done.status for done in installed.files} <= {"created", "unchanged"}
    assert [ran.exit_code for ran in installed.commands] == [0] * 2, installed.commands


@pytest.mark.parametrize("name", ["gpu", "cpu"])
def test_systemd_knows_the_slices(installed: Report, name: str) -> None:  # K5, K6
    assert f"{name.upper()} jobs run by slicer" in output("systemctl", "cat", f"{name}.slice")
    shown = output("systemctl", "show", f"{name}.slice", "-p", "LoadState,CPUWeight,Description")
    assert "LoadState=loaded" in shown
    assert f"CPUWeight={'50' if name == 'gpu' else '15'}" in shown
    assert output("systemd-analyze", "verify", f"{name}.slice") == ""


def test_user_managers_know_the_slices_and_get_io_and_cpuset(installed: Report, tmp_path: Path) -> None:  # K5
    assert "CPUWeight=15" in output("cat", "/usr/local/lib/systemd/user/cpu.slice")
    environ = ("env", f"XDG_RUNTIME_DIR={tmp_path}")
    assert output(*environ, "systemd-analyze", "--user", "verify", "cpu.slice", "gpu.slice") == ""
    shown = output("systemctl", "show", "user@1000.service", "-p", "DelegateControllers").strip()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(shown.partition("=")[2].split())


def test_no_group_is_made_and_nothing_is_opened_to_anybody(installed: Report) -> None:  # S1
    assert "slicer" not in [group.gr_name for group in grp.getgrall()]
    assert not installed.closed
    for path in ("/run/slicer", "/var/lib/slicer"):
        if os.path.exists(path):
            assert not os.lstat(path).st_mode & 0o022, path


def test_journalctl_explains_every_event(installed: Report) -> None:  # K7
    job = uuid.uuid4().hex[:12]
    for kind in journal.KINDS:
        assert journal.event(
            kind,
            job=job,
            name="train",
            unit=f"slicer-{job}.scope",
            fields={"exit_code": 3, "reason": "exited"},
        )
    output("journalctl", "--sync")
    explained = output("journalctl", "--no-pager", "-x", f"SLICER_JOB={job}")
    assert explained.count("Defined-By: slicer") == len(journal.KINDS)
    assert f"The command of the job {job} has ended (exited) with exit code 3." in explained
    assert "Job train has its lease" in explained


def test_installing_again_changes_nothing(installed: Report) -> None:  # K5
    assert {done.status for done in apply(plan(user_delegation=True)).files} == {"unchanged"}


# It removes what the others look at: the last of this module.
def test_install_units_says_the_next_step_and_remove_what_stays(slicer: Slicer) -> None:  # W12
    slicer.run("-q", "--", "true")  # for a history that stays
    try:
        assert "\nnext: whoever is logged in runs `systemctl" in slicer.command("install").stdout
    finally:
        out = slicer.command("install", "--remove").stdout
    assert "\nstays  /var/lib/slicer  history of jobs; " in out
