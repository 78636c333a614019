"""Ordinary users: their own manager, their own ledger or the one shared by the group slicer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slicer import history
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Job, Slicer, leases
from tests.systemd.helpers.users import User, sharing, user
from tests.systemd.helpers.waiting import wait_until

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


def nothing_left(someone: User) -> None:
    """Of the user's jobs."""
    wait_until("no scope", lambda: not systemctl.scopes(someone.systemctl))
    assert not leases(someone.ledger)


def hold(
    slicer: Slicer, someone: User, *options: str, ledger: str = "", env: Mapping[str, str] | None = None
) -> tuple[Job, Path]:
    """A job of the user that is up, and the gate at which it waits."""
    gate = slicer.gate()
    slicer.ledger = ledger or someone.ledger
    job = slicer.start(
        *options, "--", "sh", "-c", f"echo up; : < {gate}; echo over", via=someone.via, env=env
    )
    job.said("up")
    return job, gate.path


def let_through(path: Path) -> None:
    wait_until("somebody waits at the gate", lambda: _opened(path))


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
    assert shown["Description"] == "mine"
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
    (outcome,) = wait_until("an outcome", lambda: history.read(alice.history, job=lease.job))
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
    # As under cron, and under sudo -u.
    bare = (
        *alice.identity,
        "env",
        "-u",
        "XDG_RUNTIME_DIR",
        "-u",
        "DBUS_SESSION_BUS_ADDRESS",
        f"HOME={alice.home}",
    )
    done = slicer.run("--", "sed", "-n", "s/^0:://p", "/proc/self/cgroup", via=bare)
    assert done.code == 0, done
    assert f"user@{alice.uid}.service/" in done.stdout
    nothing_left(alice)


@pytest.mark.core
def test_without_a_user_manager_it_is_125_with_the_way_out(slicer: Slicer) -> None:  # K1
    nobody = user("bob")
    assert not Path(nobody.runtime).exists(), "bob has a manager"
    bare = (*nobody.identity, "env", f"HOME={nobody.home}")
    done = slicer.run("--", "touch", "ran", via=bare)
    assert done.code == 125, done
    assert done.stderr.endswith(
        "slicer: bob is not logged in (cron, su) "
        "(once, as root: loginctl enable-linger bob; or use --backend plain)\n"
    )
    assert not (slicer.directory / "ran").exists()
    assert not leases(f"/dev/shm/slicer-{nobody.uid}")
    shutil.rmtree(f"/dev/shm/slicer-{nobody.uid}", ignore_errors=True)


def test_a_private_ledger_is_said_to_be_one(slicer: Slicer, alice: User) -> None:  # A1
    shutil.rmtree(alice.ledger, ignore_errors=True)
    done = slicer.run("-p", "heavy", "--", "true", via=alice.via)
    assert done.code == 0
    assert "only" in done.stderr.splitlines()[0], done.stderr
    assert "group slicer" in done.stderr or "other users" in done.stderr, done.stderr
    nothing_left(alice)


def test_private_ledgers_of_two_users_know_nothing_of_each_other(
    slicer: Slicer, alice: User, bob: User
) -> None:
    # A1
    job, gate = hold(slicer, alice, "-p", "heavy")
    assert slicer.run("-q", "--no-wait", "-p", "heavy", "--", "true", via=bob.via).code == 0
    let_through(gate)
    assert job.end().code == 0


@pytest.fixture
def group(alice: User, bob: User) -> Iterator[None]:
    """Alice and bob share the system's ledger."""
    yield from sharing("alice", "bob")


@pytest.mark.core
def test_members_of_the_group_exclude_each_other_and_root(
    slicer: Slicer, alice: User, bob: User, group: None
) -> None:  # A1, K2
    shared = "/run/slicer"
    job, gate = hold(slicer, alice, "-p", "heavy", "--name", "alices", ledger=shared)
    for who in (bob.via, ()):
        busy = slicer.run("--no-wait", "-p", "heavy", "--", "true", via=who)
        assert busy.code == 75, busy
        assert json.loads(busy.stderr)["holder"]["name"] == "alices"
    waiting = slicer.start("-p", "heavy", "--", "echo", "bobs", via=bob.via)
    waiting.ticket()
    let_through(gate)
    assert job.end().code == 0
    done = waiting.end()
    assert (done.code, done.stdout) == (0, "bobs\n")
    assert not leases(shared)


def test_a_member_sweeps_what_another_members_killed_job_left(
    slicer: Slicer, alice: User, bob: User, group: None
) -> None:  # A2, K2
    shared = "/run/slicer"
    slicer.dirty = True
    job, gate = hold(slicer, alice, "-p", "heavy", ledger=shared)
    lease = job.lease()
    job.kill()
    os.kill(lease.keeper, 9)
    waiting = slicer.start("-p", "heavy", "--", "echo", "bobs", via=bob.via)
    waiting.ticket()  # the lease is held by the scope alone, of another user's manager
    let_through(gate)
    assert waiting.end().code == 0
    assert not leases(shared)


def test_root_waits_for_a_member_and_a_member_for_root(
    slicer: Slicer, alice: User, group: None
) -> None:  # A1
    slicer.ledger = "/run/slicer"
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy", "--name", "roots")
    busy = slicer.run("--no-wait", "-p", "heavy", "--", "true", via=alice.via)
    assert busy.code == 75, busy
    assert json.loads(busy.stderr)["holder"]["name"] == "roots"
    waiting = slicer.start("-p", "heavy", "--", "true", via=alice.via)
    waiting.ticket()
    gate.open()
    assert holder.end().code == 0
    assert waiting.end().code == 0


def test_an_outsider_cannot_touch_the_shared_ledger(
    slicer: Slicer, alice: User, bob: User, group: None
) -> None:
    # B7
    systemctl.output("gpasswd", "--delete", "bob", "slicer")
    listed = systemctl.output(*bob.identity, "ls", "/run/slicer/leases", check=False)
    assert listed == ""
    assert slicer.run("-q", "-p", "heavy", "--", "true", via=bob.via).code == 0  # in a ledger of his own
    systemctl.output("gpasswd", "--add", "bob", "slicer")


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
