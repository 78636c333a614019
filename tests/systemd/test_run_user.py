"""Ordinary users: their own manager, and a ledger of their own, with a session and without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slicer.outcome import history
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Job, Slicer, leases
from tests.systemd.helpers.queues import wide_open
from tests.systemd.helpers.users import User, end_session, start_manager, user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


def nothing_left(someone: User) -> None:
    """Of the user's jobs."""
    until(lambda: not systemctl.scopes(someone.systemctl), "no scope")
    assert not leases(someone.ledger)


def hold(
    slicer: Slicer, someone: User, *options: str, env: Mapping[str, str] | None = None
) -> tuple[Job, Path]:
    """A job of the user that is up, and the gate at which it waits."""
    gate = slicer.gate()
    slicer.ledger = someone.ledger
    job = slicer.start(
        *options, "--", "sh", "-c", f"echo up; : < {gate}; echo over", via=someone.via, env=env
    )
    job.said("up")
    return job, gate.path


def let_through(path: Path) -> None:
    until(lambda: _opened(path), "somebody waits at the gate")


def _opened(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.core
def test_a_users_job_runs_in_a_scope_of_the_user_manager(slicer: Slicer, alice: User) -> None:  # K1
    job, gate = hold(slicer, alice, "-p", "heavy", "--set", "MemoryMax=400M", "--name", "mine")
    lease = job.lease()
    assert (lease.manager, lease.uid) == ("user", alice.uid)
    inside = f"/user.slice/user-{alice.uid}.slice/user@{alice.uid}.service/"
    assert lease.cgroup.startswith(inside)
    assert lease.cgroup.endswith(f"cpu.slice/{lease.unit}")
    shown = systemctl.show(lease.unit, "Slice", "MemoryMax", "Description", prefix=alice.systemctl)
    assert (shown["Slice"], shown["MemoryMax"]) == ("cpu.slice", str(400 << 20))
    assert shown["Description"].startswith("mine (")
    assert processes.in_cgroup(lease.cgroup) >= {lease.keeper, job.command_pid()}
    let_through(gate)
    assert job.end().code == 0
    nothing_left(alice)


@pytest.mark.core
def test_a_users_jobs_wait_for_each_other(slicer: Slicer, alice: User) -> None:  # A1, A6
    job, gate = hold(slicer, alice, "-p", "heavy", "--name", "mine")
    busy = slicer.run("--no-wait", "-p", "heavy", "--", "true", via=alice.via)
    assert busy.code == 75
    assert json.loads(busy.stderr.splitlines()[-1])["holder"]["name"] == "mine"
    waiting = slicer.start("-p", "heavy", "--", "echo", "second", via=alice.via)
    waiting.ticket()
    let_through(gate)
    assert job.end().code == 0
    assert waiting.end().stdout == "second\n"
    nothing_left(alice)


@pytest.mark.core
def test_a_users_lease_outlives_a_killed_slicer(slicer: Slicer, alice: User) -> None:  # K2, X3
    job, gate = hold(slicer, alice, "-p", "heavy")
    lease = job.lease()
    job.kill()
    job.popen.wait()
    waiting = slicer.start("-p", "heavy", "--", "echo", "second", via=alice.via)
    waiting.ticket()
    let_through(gate)
    assert waiting.end().code == 0
    (outcome,) = until(lambda: history.read(alice.history, job=lease.job), "an outcome")
    assert (outcome.exit_code, outcome.manager, outcome.uid) == (0, "user", alice.uid)
    nothing_left(alice)


def test_systemctl_user_stop_ends_a_users_job(slicer: Slicer, alice: User) -> None:  # K6
    job, _ = hold(slicer, alice)
    systemctl.output(*alice.systemctl, "stop", job.lease().unit)
    done = job.end()
    assert done.code == 143
    assert "stopped" in done.stderr
    nothing_left(alice)


def test_a_users_events_are_found_by_the_user_unit(slicer: Slicer, alice: User) -> None:  # K7
    job, gate = hold(slicer, alice, "-p", "heavy")
    unit, name = job.lease().unit, job.lease().job
    let_through(gate)
    assert job.end().code == 0
    kinds = ["acquired", "started", "finished", "released"]
    assert systemctl.events(name) == kinds
    # By herself: journalctl's --user-unit means the reader's own.
    reader = ("setpriv", f"--reuid={alice.name}", "--regid=systemd-journal", "--clear-groups")
    found = systemctl.output(
        *reader, "journalctl", "--no-pager", "--output=cat", "--output-fields=SLICER_EVENT",
        "-t", "slicer", "--user-unit", unit,
    )  # fmt: skip
    assert found.split() == kinds


@pytest.mark.core
def test_a_missing_runtime_directory_variable_is_no_obstacle(slicer: Slicer, alice: User) -> None:  # K1
    done = slicer.run("--", "sed", "-n", "s/^0:://p", "/proc/self/cgroup", via=alice.bare)
    assert done.code == 0, done
    assert f"user@{alice.uid}.service/" in done.stdout
    nothing_left(alice)


def said(*command: str, cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done
    return done


def test_a_home_of_somebody_else_is_said_and_is_no_obstacle(slicer: Slicer, alice: User) -> None:
    """As with ``sudo -E -u alice``, or in a container with USER 1000 and HOME=/root."""
    for command in (("run", "-q", "true"), ("run", "--dry-run", "true"), ("history",), ("doctor",)):
        done = said(*alice.via, "env", "HOME=/root", "slicer", *command)
        assert done.returncode == 0 or command == ("doctor",), done
        assert command[0] != "run" or "/root/.config/slicer/config.toml: cannot read" in done.stderr
    own = alice.home / ".config"
    systemctl.output(*alice.via, "sh", "-c", f"mkdir -p {own}/slicer; chmod 0 {own}")
    try:  # one's own is an error, as before
        done = said(*alice.via, "slicer", "run", "true")
        assert (done.returncode, "; ignored" in done.stderr) == (125, False)
    finally:
        own.chmod(0o700)
        shutil.rmtree(own)


def test_without_a_home_no_directory_is_made_where_one_stands(slicer: Slicer, tmp_path: Path) -> None:
    """A container's user without an entry in /etc/passwd."""
    tmp_path.chmod(0o777)
    stranger = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "env", "-i")
    path = f"PATH={os.environ['PATH']}"
    for home in ((), ("HOME=",), ("HOME=here",)):
        command = (path, *home, "slicer", "run", "--backend", "plain", "--", "echo", "ran")
        done = said("env", "-C", str(tmp_path), *stranger, *command)
        assert (done.returncode, done.stdout) == (0, "ran\n"), done
        assert os.listdir(tmp_path) == []
    shutil.rmtree("/run/lock/slicer-54321")


@pytest.mark.core
def test_without_a_user_manager_it_is_125_with_the_way_out(slicer: Slicer) -> None:  # K1
    nobody = user("bob")
    assert not Path(nobody.runtime).exists(), "bob has a manager"
    done = slicer.run("--", "touch", "ran", via=nobody.bare)
    assert done.code == 125, done
    assert done.stderr.endswith(
        "slicer: bob is not logged in (cron, su, a system service) "
        "(once: loginctl enable-linger bob (by root if refused); or use --backend plain)\n"
    )
    assert not (slicer.directory / "ran").exists()
    assert not leases(nobody.ledger)
    shutil.rmtree(nobody.ledger)


# -- whose ledger ------------------------------------------------------------------------------------------


def status(slicer: Slicer, via: tuple[str, ...]) -> Any:
    command = (*via, "slicer", "status", "--json")
    return json.loads(subprocess.run(command, env=slicer.environ(), capture_output=True, check=True).stdout)


def names(found: Any) -> list[str]:
    return [job["name"] for job in found["jobs"]]


def test_whom_a_lease_excludes_is_said_once_a_boot(slicer: Slicer, alice: User) -> None:  # A1
    shutil.rmtree(alice.ledger, ignore_errors=True)
    first, second = (slicer.run("-p", "heavy", "--", "true", via=via) for via in (alice.via, alice.bare))
    assert (first.code, second.code) == (0, 0)
    assert first.stderr.count("another user can be given the same GPU") == 1
    assert "without the broker" not in second.stderr
    nothing_left(alice)


@pytest.mark.core
def test_the_ledgers_of_all_users_know_nothing_of_one_another(
    slicer: Slicer, alice: User, bob: User
) -> None:  # S1, S9
    everybody = {"alice": alice.via, "bob": bob.via, "root": ()}
    ledgers = {"alice": alice.ledger, "bob": bob.ledger, "root": SYSTEM_LEDGER}
    gate = slicer.gate()
    jobs = []
    for name, via in everybody.items():  # each takes "the" CPU slot
        slicer.ledger = ledgers[name]
        jobs.append(
            slicer.start("-p", "heavy", "--name", name, "--", "sh", "-c", f"echo up; : < {gate}", via=via)
        )
    for job in jobs:
        job.said("up")
    for name, via in everybody.items():
        found = status(slicer, via)
        assert (names(found), found["state"]["directory"]) == ([name], ledgers[name])
        assert found["cpu_slots"] == {"total": 1, "free": 0}
        assert os.stat(ledgers[name]).st_mode & 0o7777 == 0o700
    # Nor can they stop each other's jobs by their names.
    for via in ((), bob.via):
        stopped = subprocess.run([*via, "slicer", "stop", "alice"], env=slicer.environ(), capture_output=True)
        assert (stopped.returncode, b"no such job" in stopped.stderr) == (2, True), stopped
    assert [job.popen.poll() for job in jobs] == [None] * 3
    with wide_open(gate):
        assert [job.end().code for job in jobs] == [0] * 3
    for someone in (alice, bob):
        nothing_left(someone)


def test_who_takes_the_name_of_a_users_ledger_shuts_nobody_out(
    slicer: Slicer, alice: User, bob: User
) -> None:  # S12
    shutil.rmtree(alice.ledger, ignore_errors=True)
    systemctl.output(*bob.identity, "mkdir", "--mode=777", alice.ledger)
    gate = slicer.gate()
    job = slicer.start("-p", "heavy", "--", "sh", "-c", f"echo up; : < {gate}", via=alice.via)
    job.said("up")
    (hers,) = Path(alice.ledger).parent.glob(f"{Path(alice.ledger).name}.*")
    try:
        assert (hers.stat().st_uid, hers.stat().st_mode & 0o7777) == (alice.uid, 0o700)
        assert f"another user has made {alice.ledger}: your leases are in {hers}" in job.stderr
        assert len(leases(str(hers))) == 1
        assert not os.listdir(alice.ledger)
        for via in (alice.via, alice.bare):  # the same one again
            assert slicer.run("--no-wait", "-p", "heavy", "--", "true", via=via).code == 75
        let_through(gate.path)
        assert job.end().code == 0
    finally:
        shutil.rmtree(alice.ledger)
        shutil.rmtree(hers)


@pytest.mark.core
def test_the_ledger_is_the_same_with_a_session_without_it_and_after_it(
    slicer: Slicer, alice: User
) -> None:  # D12
    slicer.ledger = alice.ledger
    gate = slicer.gate()
    script = f"echo up; : < {gate}"
    command = ("slicer", "hold", "--cpu-slots", "1", "--name", "notebook", "--", "sh", "-c", script)
    holder = subprocess.Popen(
        [*alice.via, *command], env=slicer.environ(), stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        for via in (alice.via, alice.bare):
            assert is_kept_out(slicer, via)
        end_session(alice)
        assert is_kept_out(slicer, alice.bare)
        start_manager(alice)  # she logs in again
        assert is_kept_out(slicer, alice.via)
        waiting = slicer.start("-p", "heavy", "--", "true", via=alice.via)
        waiting.ticket()
        let_through(gate.path)
        assert (holder.wait(), waiting.end().code) == (0, 0)
    finally:
        holder.kill()
        holder.communicate()
        start_manager(alice)
    nothing_left(alice)


def is_kept_out(slicer: Slicer, via: tuple[str, ...]) -> bool:
    """Whether the slot is seen to be taken, by a job that has no need of a manager."""
    done = slicer.run("--no-wait", "--backend", "plain", "-p", "heavy", "--", "true", via=via)
    assert names(status(slicer, via)) == ["notebook"]
    return done.code == 75 and json.loads(done.stderr.splitlines()[-1])["holder"]["name"] == "notebook"


# D3: /proc shows nothing of others (hidepid=1 looks the same)
def test_a_users_jobs_run_where_proc_hides_others(slicer: Slicer, alice: User) -> None:
    service = ("systemd-run", "--quiet", "--pipe", "--wait", f"--uid={alice.name}")
    hidden = (*service, "-p", "ProtectProc=noaccess", *alice.via[len(alice.identity) :])
    script = "test -e /proc/1 && ! cat /proc/1/stat 2>/dev/null && echo hidden; setsid sleep 60 & exit 3"
    for backend in ("plain", "systemd"):
        done = slicer.run("--backend", backend, "-p", "heavy", "--", "sh", "-c", script, via=hidden)
        assert (done.code, done.stdout) == (3, "hidden\n"), done
        assert "Traceback" not in done.stderr
        assert "1 leftover process ended" in done.stderr
    nothing_left(alice)
