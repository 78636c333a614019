"""Where users' ledgers are, if /run/lock is root's (Arch, Fedora, NixOS, openSUSE), or in a namespace."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.attackers import BOB, THIRD, attempts
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

SIM = {"SLICER_SIM": "1x8G", "SLICER_BROKER": "off"}
PLACE = Path("/run/slicer.users")
UNIT = "test-ledger-place.service"


@pytest.fixture
def erin() -> Iterator[str]:
    """A user without a session, and a machine without a public place but /dev/shm."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine: only for test machines")
    systemctl.output("useradd", "--create-home", "--shell", "/bin/bash", "erin")
    Path("/run/lock").chmod(0o755)
    yield "erin"
    systemctl.output("systemctl", "stop", UNIT, check=False)
    Path("/run/lock").chmod(0o1777)
    systemctl.output("slicer", "install", "--remove")
    subprocess.run(["umount", "--lazy", PLACE], check=False, capture_output=True)
    uid = pwd.getpwnam("erin").pw_uid
    until(lambda: not Path(f"/run/systemd/users/{uid}").exists(), "logind has forgotten her")
    shutil.rmtree(f"/dev/shm/slicer-{uid}", ignore_errors=True)
    systemctl.output("userdel", "--remove", "erin", check=False)


def start(user: str) -> None:
    """A service of hers holds the only GPU, as a notebook of JupyterHub's does."""
    options = [f"--setenv={name}={value}" for name, value in {**SIM, "HOME": f"/home/{user}"}.items()]
    job = ("slicer", "run", "--backend", "plain", "--gpus", "1", "--", "sleep", "1000")
    service = ("systemd-run", "-q", "--collect", f"--unit={UNIT}", f"--property=User={user}")
    systemctl.output(*service, *options, *job)
    until(lambda: second(user).returncode == 75, "it holds the GPU")


def second(user: str, *command: str) -> subprocess.CompletedProcess[str]:
    run = command or ("run", "--backend", "plain", "--gpus", "1", "--no-wait", "--", "true")
    words = ["runuser", "-u", user, "--", "slicer", *run]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **SIM, "HOME": f"/home/{user}"}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False)


def log_in_and_out(user: str) -> None:
    uid = pwd.getpwnam(user).pw_uid
    systemctl.output("runuser", "-l", user, "-c", "true")
    until(lambda: not Path(f"/run/systemd/users/{uid}").exists(), "her last session is over")


def test_a_ledger_that_logind_deletes_gives_no_gpu_twice(erin: str) -> None:  # K2
    uid = pwd.getpwnam(erin).pw_uid
    assert "logind deletes leases in /dev/shm" in second(erin).stderr
    start(erin)
    log_in_and_out(erin)
    until(lambda: not Path(f"/dev/shm/slicer-{uid}").exists(), "logind has deleted it")
    done = second(erin)
    assert (done.returncode, "was deleted under jobs that still run" in done.stderr) == (75, True), done
    assert "was deleted under jobs" in second(erin, "status").stderr
    found = json.loads(second(erin, "doctor", "--json").stdout)["findings"]
    assert "ledger-emptied" in [each["id"] for each in found]
    systemctl.output("systemctl", "stop", UNIT)
    assert second(erin).returncode == 0


def test_an_installation_makes_a_place_where_nobody_cleans_up(erin: str) -> None:  # K2, S12
    uid = pwd.getpwnam(erin).pw_uid
    systemctl.output("slicer", "install")
    name = PLACE / f"slicer-{uid}"
    attempts(THIRD, "os.mkdir(sys.argv[1])", name)  # somebody took it
    start(erin)
    log_in_and_out(erin)
    systemctl.output("systemd-tmpfiles", "--clean")
    (ledger,) = PLACE.glob(f"slicer-{uid}.*")
    assert ledger.stat().st_mode & 0o7777 == 0o700
    done = second(erin)
    assert (done.returncode, "gpu-busy" in done.stderr) == (75, True), done
    found = json.loads(second(erin, "doctor", "--json").stdout)["findings"]
    assert "ledger-emptied" not in [each["id"] for each in found]
    # Who fills it does not fill /run, and a removal takes it from no job.
    assert os.statvfs(PLACE).f_blocks * os.statvfs(PLACE).f_frsize <= 32 << 20
    assert os.stat(PLACE).st_dev != os.stat("/run").st_dev
    systemctl.output("slicer", "install", "--remove")
    assert second(erin).returncode == 75
    assert systemctl.output("systemctl", "is-enabled", "run-slicer.users.mount", check=False) != "enabled"


# -- in a user namespace that maps one's own uid alone: NixOS' FHS shells, apptainer, bubblewrap -----------

INSIDE = ("unshare", "--map-current-user")


def run(someone: User, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **SIM, **env}
    words = [*someone.via, *command]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=LONGEST_S, check=False)


def test_a_job_in_a_user_namespace_shares_the_ledger_outside(alice: User) -> None:  # K1, K2
    asked = ("slicer", "run", "--gpus", "1", "--no-wait", "--")
    done = run(alice, *INSIDE, *asked, "cat", "/proc/self/cgroup")
    assert (done.returncode, "/gpu.slice/slicer-" in done.stdout) == (0, True), done
    env = {"PATH": os.environ["PATH"], **SIM}
    held = [*alice.via, *INSIDE, *asked, "sh", "-c", "echo up; cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(held, stdin=pipe, stdout=pipe, text=True, env=env) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        assert inside.stdout.readline() == "up\n"
        assert run(alice, *asked, "true").returncode == 75
        assert run(alice, *INSIDE, *asked, "true").returncode == 75
        inside.stdin.close()
    assert inside.returncode == 0
    assert run(alice, *asked, *INSIDE, *asked, "echo", "nested").stdout == "nested\n"


def test_nobodys_directories_are_not_taken_for_roots(alice: User, bob: User) -> None:  # S1, S2, S12
    """In the namespace bob's directories look like root's."""
    name = Path("/run/lock") / f"slicer-{alice.uid}"
    shutil.rmtree(name, ignore_errors=True)
    attempts(BOB, "os.mkdir(sys.argv[1]); os.mkdir(sys.argv[1] + '/leases')", name)
    hers = bob.home / "hers"
    attempts(BOB, "os.mkdir(sys.argv[1], 0o755); os.chmod(sys.argv[1], 0o1777)", hers)
    bob.home.chmod(0o755)
    asked = ("slicer", "run", "--backend", "plain", "--gpus", "1", "--", "true")
    try:
        done = run(alice, *INSIDE, *asked)
        assert done.returncode == 0, done
        assert os.listdir(name / "leases") == []
        (own,) = Path("/run/lock").glob(f"{name.name}.*")
        assert own.stat().st_uid == alice.uid
        done = run(alice, *INSIDE, *asked, SLICER_STATE_DIR=f"{hers}/state")
        assert (done.returncode, os.listdir(hers)) == (125, [])
        assert f"{bob.home}: belongs to uid 65534" in done.stderr
        assert "this user namespace does not show whose it is" in done.stderr
        cured = run(alice, *INSIDE, *asked, SLICER_STATE_DIR=f"{alice.home}/state")
        assert cured.returncode == 0, cured
        as_root = run(alice, "unshare", "--map-root-user", *asked)
        assert (as_root.returncode, "root in this user namespace only" in as_root.stderr) == (125, True)
    finally:
        for path in (*Path("/run/lock").glob(f"{name.name}*"), hers, alice.home / "state"):
            shutil.rmtree(path)
