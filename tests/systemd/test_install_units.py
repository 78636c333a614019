"""Units installed over the root of a machine that is thrown away, under a real systemd."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from slicer.backend.install_units import InstallReport, apply, plan, remove
from slicer.outcome import journal
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


# It also looks for the manual pages that the units name.
VERIFY = ("systemd-analyze", "verify")


def verified(*units: str) -> str:
    """What systemd says of unit files, on both streams; it fails on an error and only warns of the rest."""
    done = subprocess.run((*VERIFY, *units), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed() -> Iterator[InstallReport]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    whole = plan(user_delegation=True)
    report = apply(whole)
    yield report
    remove(whole)


def test_every_file_and_command_succeeds(installed: InstallReport) -> None:  # K5
    assert {done.status for done in installed.files} <= {"created", "unchanged"}
    assert {ran.exit_code for ran in installed.commands} == {0}, installed.commands


@pytest.mark.parametrize("name", ["gpu", "cpu"])
def test_systemd_knows_the_slices(installed: InstallReport, name: str) -> None:  # K5, K6
    assert f"{name.upper()} jobs run by slicer" in output("systemctl", "cat", f"{name}.slice")
    shown = output("systemctl", "show", f"{name}.slice", "-p", "LoadState,CPUWeight,Description")
    assert "LoadState=loaded" in shown
    assert f"CPUWeight={'50' if name == 'gpu' else '15'}" in shown
    assert "man:slicer(1)" in output("systemctl", "show", f"{name}.slice", "-p", "Documentation")
    assert verified(f"{name}.slice") == ""


def test_user_managers_know_the_slices_and_get_io_and_cpuset(
    installed: InstallReport, tmp_path: Path
) -> None:  # K5
    assert "CPUWeight=15" in output("cat", "/usr/local/lib/systemd/user/cpu.slice")
    environ = ("env", f"XDG_RUNTIME_DIR={tmp_path}")
    done = output(*environ, *VERIFY, "--user", "cpu.slice", "gpu.slice")
    assert done == ""
    shown = output("systemctl", "show", "user@1000.service", "-p", "DelegateControllers").strip()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(shown.partition("=")[2].split())


CONFIGURATION = """\
[slices.gpu]
memory_max = "48G"
memory_high = "50%"
memory_swap_max = 0
cpu_weight = "idle"
cpu_quota = "400%"
tasks_max = "10%"
allowed_cpus = "0"
io_weight = 7
[slices.cpu]
cpu_quota = "infinity"
tasks_max = "infinity"
"""


@pytest.fixture
def configuration() -> Iterator[Path]:
    """/etc/slicer/config.toml, gone again with what was installed of it."""
    path = Path("/etc/slicer/config.toml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONFIGURATION)
    yield path
    path.unlink()
    path.parent.rmdir()
    output("slicer", "install")


LIMITS = ("MemoryMax", "MemorySwapMax", "CPUWeight", "CPUQuotaPerSecUSec", "AllowedCPUs", "IOWeight")


def test_limits_of_the_configuration_are_those_of_the_running_slice(
    installed: InstallReport, configuration: Path, slicer: Slicer
) -> None:  # K5
    gate = slicer.gate()
    job = slicer.hold(gate, "--gpus", "1", env={"SLICER_SIM": "1x24G"})
    before = systemctl.show("gpu.slice", *LIMITS)
    assert before["MemoryMax"] == "infinity"
    output("slicer", "install")
    assert verified("gpu.slice", "cpu.slice") == ""
    assert systemctl.show("gpu.slice", *LIMITS) == {
        "MemoryMax": str(48 << 30), "MemorySwapMax": "0", "CPUWeight": "idle", "CPUQuotaPerSecUSec": "4s",
        "AllowedCPUs": "0", "IOWeight": "7",
    }  # fmt: skip
    said = output("systemctl", "cat", "gpu.slice")
    assert "# /etc/slicer/config.toml:2\nMemoryMax=48G\n" in said
    # What the administrator says to systemd itself goes before it, and stays when slicer installs again.
    output("systemctl", "set-property", "gpu.slice", "MemoryMax=10G")
    try:
        output("slicer", "install")
        assert systemctl.show("gpu.slice", "MemoryMax") == {"MemoryMax": str(10 << 30)}
    finally:
        output("systemctl", "revert", "gpu.slice")
    configuration.write_text("")
    assert "removed    /usr/local/lib/systemd/system/gpu.slice.d/" in output("slicer", "install")
    assert systemctl.show("gpu.slice", *LIMITS) == {**before, "CPUWeight": "50", "IOWeight": "50"}
    gate.open()
    assert job.end().code == 0


# Each shell says whether it has found the script by itself, without being told of it.
FINDS = {
    "bash": ". /usr/share/bash-completion/bash_completion; _completion_loader slicer; complete -p slicer",
    "zsh": "autoload -U compinit; compinit -u -D; print $_comps[slicer]",
    "fish": 'complete -C "slicer histo"',
}
SAYS = {"bash": "_slicer slicer", "zsh": "_slicer", "fish": "history"}
OF_USERS = ("bash", "fish")  # zsh reads nothing of a user by itself


def finds(shell: str, *prefix: str) -> bool:
    """Whether it is so in an environment like that of a login over ssh."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environ = ("env", "-i", f"PATH={os.environ['PATH']}", "LANG=C.UTF-8")
    done = subprocess.run(
        (*prefix, *environ, f"HOME={os.path.expanduser('~')}" if not prefix else "HOME=/home/alice", shell,
         "-c", FINDS[shell]),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return SAYS[shell] in done.stdout


@pytest.mark.parametrize("shell", FINDS)
def test_each_shell_finds_its_completion(installed: InstallReport, shell: str) -> None:
    assert finds(shell)


@pytest.mark.parametrize("shell", OF_USERS)
def test_a_users_shells_find_the_users_completion(alice: User, shell: str) -> None:
    remove(plan(user_delegation=True))
    try:
        assert not finds(shell, *alice.identity)
        systemctl.output(*alice.via, "slicer", "install", "--user")
        assert finds(shell, *alice.identity)
    finally:
        systemctl.output(*alice.via, "slicer", "install", "--user", "--remove")
        apply(plan(user_delegation=True))
    assert not [path for path in (alice.home / ".local/share").rglob("*slicer*") if path.is_file()]


def test_a_users_limits_are_those_of_the_users_own_slice(alice: User) -> None:  # K5
    settings = alice.home / ".config/slicer"
    text = "[slices.cpu]\\ntasks_max = 77\\n"
    systemctl.output(*alice.via, "sh", "-c", f"mkdir -p {settings}; printf '{text}' >{settings}/config.toml")
    try:
        systemctl.output(*alice.via, "slicer", "install", "--user")
        shown = systemctl.show("cpu.slice", "TasksMax", "CPUWeight", prefix=alice.systemctl)
        assert shown == {"TasksMax": "77", "CPUWeight": "15"}
        assert systemctl.output(*alice.via, *VERIFY, "--user", "cpu.slice", "gpu.slice") == ""
    finally:
        systemctl.output(*alice.via, "slicer", "install", "--user", "--remove")
        systemctl.output(*alice.via, "rm", "-r", str(settings))


def test_no_group_is_made_and_nothing_is_opened_to_anybody(installed: InstallReport) -> None:  # S1
    assert "slicer" not in [group.gr_name for group in grp.getgrall()]
    for path in ("/run/slicer", "/var/lib/slicer"):
        if os.path.exists(path):
            assert not os.lstat(path).st_mode & 0o022, path


def test_journalctl_explains_every_event(installed: InstallReport) -> None:  # K7
    job = uuid.uuid4().hex[:12]
    fields = {"exit_code": 3, "reason": "exited"}
    for kind in journal.KINDS:
        told = partial(journal.event, kind, job=job, name="train", unit=f"slicer-{job}.scope", fields=fields)
        until(told, "journald has room for it")  # its socket takes ten at a time
    output("journalctl", "--sync")
    explained = output("journalctl", "--no-pager", "-x", f"SLICER_JOB={job}")
    assert explained.count("Defined-By: slicer") == len(journal.KINDS)
    assert f"The command of the job {job} has ended (exited) with exit code 3." in explained
    assert "Job train has its lease" in explained
    done = subprocess.run(("journalctl", "--update-catalog"), capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_installing_again_changes_nothing(installed: InstallReport) -> None:  # K5
    assert {done.status for done in apply(plan(user_delegation=True)).files} == {"unchanged"}


# It removes what the others look at: the last of this module.
def test_install_units_says_the_next_step_and_remove_what_stays(slicer: Slicer) -> None:  # W12
    slicer.run("-q", "--", "true")  # for a history that stays
    try:
        assert "\nnext: users who are logged in run `systemctl" in slicer.command("install").stdout
    finally:
        out = slicer.command("install", "--remove").stdout
    assert "\nstays  /var/lib/slicer  history of jobs; " in out
