"""Users of the group slicer, and root, wait for each other in one ledger, whatever becomes of any of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from slicer.model import Ticket
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Gate, Job, Slicer, tickets
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal
from tests.systemd.helpers.users import User, sharing
from tests.systemd.helpers.waiting import wait_until

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

# What others cannot open, they cannot ring or read.
SECRETIVE = ("sh", "-c", 'umask 077; exec "$@"', "sh")


@pytest.fixture
def group(alice: User, bob: User) -> Iterator[None]:
    yield from sharing("alice", "bob")


@pytest.fixture
def slicer(public_slicer: Slicer, alice: User, bob: User, group: None) -> Iterator[Slicer]:
    yield public_slicer
    wait_until("the ledger is empty", lambda: not left_in_ledger(public_slicer))
    for someone in (alice, bob):
        wait_until("no scope", partial(has_no_scope, someone))


def has_no_scope(someone: User) -> bool:
    return not systemctl.scopes(someone.systemctl)


def left_in_ledger(slicer: Slicer) -> list[Path]:
    slicer.left()  # sweeps what killed owners left, where a test said that it killed some
    return [
        path for folder in ("leases", "tickets", "bells") for path in Path(SYSTEM_LEDGER, folder).iterdir()
    ]


def hold(slicer: Slicer, someone: User) -> tuple[Job, Gate]:
    gate = slicer.gate()
    job = slicer.start(
        "-p", "heavy", "--", "sh", "-c", f"echo up; : < {gate}", via=(*someone.via, *SECRETIVE)
    )
    job.said("up")
    return job, gate


def wait_in_line(slicer: Slicer, via: tuple[str, ...], name: str, *options: str) -> Job:
    script = f"echo {name} >> {slicer.path('order')}"
    job = slicer.start("-p", "heavy", "-n", name, *options, "--", "sh", "-c", script, via=(*via, *SECRETIVE))
    job.ticket()
    return job


@pytest.fixture
def order(slicer: Slicer) -> Path:
    """Where the jobs of :func:`wait_in_line` write their names."""
    path = slicer.path("order")
    path.touch()
    path.chmod(0o666)
    return path


def scope_of(job: Job, someone: User) -> str:
    """The scope of the first in line, once it stands."""
    unit = f"slicer-{job.ticket().job}.scope"
    wait_until(f"{unit} is active", lambda: is_active(unit, someone))
    return unit


def is_active(unit: str, someone: User) -> bool:
    return systemctl.show(unit, "ActiveState", prefix=someone.systemctl)["ActiveState"] == "active"


# A1, X4
@pytest.mark.core
def test_users_are_served_by_priority_and_then_in_their_order(
    slicer: Slicer, alice: User, bob: User, order: Path
) -> None:
    holder, gate = hold(slicer, alice)
    jobs = [
        wait_in_line(slicer, bob.via, "bob"),
        wait_in_line(slicer, (), "root"),
        wait_in_line(slicer, alice.via, "alice"),
        wait_in_line(slicer, bob.via, "urgent", "--priority", "5"),
    ]
    gate.open()
    assert [job.end().code for job in (holder, *jobs)] == [0] * 5
    assert order.read_text().split() == ["urgent", "bob", "root", "alice"]
    assert not [job.stderr for job in jobs if "Traceback" in job.stderr or "ignored" in job.stderr]


def kill_all(job: Job) -> None:
    lease = job.lease()
    pids = processes.in_cgroup(lease.cgroup)
    for pid in (job.pid, *pids):
        os.kill(pid, signal.SIGKILL)


# A2, K2, X4
@pytest.mark.core
@pytest.mark.parametrize("way", ["outer", "keeper", "all", "manager"])
def test_a_killed_holder_hands_over_to_another_user(
    slicer: Slicer, alice: User, bob: User, order: Path, way: str
) -> None:
    slicer.dirty = True
    holder, gate = hold(slicer, alice)
    lease = holder.lease()
    jobs = [wait_in_line(slicer, bob.via, "bob"), wait_in_line(slicer, (), "root")]
    if way == "all":
        kill_all(holder)
    elif way == "manager":  # what logging out does
        systemctl.output("systemctl", "stop", f"user@{alice.uid}.service")
    else:
        os.kill(holder.pid if way == "outer" else lease.keeper, signal.SIGKILL)
    if way == "outer":
        assert not order.read_text()  # the job lives on, and so does its lease
        gate.open()
    holder.popen.wait()
    assert [job.end().code for job in jobs] == [0, 0]
    assert order.read_text().split() == ["bob", "root"]
    systemctl.output("systemctl", "start", f"user@{alice.uid}.service")


# A2, X4
@pytest.mark.parametrize("way", ["outer", "keeper", "stop", "slicer stop", "manager"])
def test_the_first_in_line_that_goes_makes_way_for_another_user(
    slicer: Slicer, alice: User, bob: User, order: Path, way: str
) -> None:
    slicer.dirty = True
    holder, gate = hold(slicer, bob)
    first = wait_in_line(slicer, alice.via, "alice")
    jobs = [wait_in_line(slicer, bob.via, "bob"), wait_in_line(slicer, (), "root")]
    unit = scope_of(first, alice)
    if way == "outer":
        first.kill()
    elif way == "keeper":
        (keeper,) = processes.children(first.pid)
        os.kill(keeper, signal.SIGKILL)
    elif way == "stop":
        systemctl.output(*alice.systemctl, "stop", unit)
    elif way == "slicer stop":
        systemctl.output("slicer", "stop", "alice", env=slicer.environ())
    else:
        systemctl.output("systemctl", "stop", f"user@{alice.uid}.service")
    done = first.end()
    assert done.code != 0
    assert "Traceback" not in done.stderr
    scope_of(jobs[0], bob)  # it leads now
    gate.open()
    assert [job.end().code for job in (holder, *jobs)] == [0, 0, 0]
    assert order.read_text().split() == ["bob", "root"]
    systemctl.output("systemctl", "start", f"user@{alice.uid}.service")


def sleeps_of(job: Job) -> int:
    """How often it has gone to sleep; 0 when it did so while this looked."""

    def count() -> int:
        lines = processes.read(job.pid, "status").split(b"\n")
        return next((int(line.split()[1]) for line in lines if line.startswith(b"voluntary_ctxt_sw")), 0)

    before = count()
    time.sleep(0.5)  # the measurement itself: a poller would have woken up meanwhile
    return before if count() == before else 0


# X4: no polling, though what is waited for belongs to others
def test_who_waits_for_another_users_job_sleeps(slicer: Slicer, alice: User, bob: User, order: Path) -> None:
    slicer.dirty = True
    holder, gate = hold(slicer, alice)
    lease = holder.lease()
    jobs = [wait_in_line(slicer, bob.via, "bob"), wait_in_line(slicer, (), "root")]
    for pid in (holder.pid, lease.keeper):  # only the scope, of another user's manager, holds the lease
        os.kill(pid, signal.SIGKILL)
    before = [wait_until("it sleeps soundly", partial(sleeps_of, job)) for job in jobs]
    assert [sleeps_of(job) for job in jobs] == before
    gate.open()
    assert [job.end().code for job in jobs] == [0, 0]


# K6, X4
def test_ctrl_z_of_a_waiting_job_leaves_its_scope_ready_and_the_others_served(
    slicer: Slicer, alice: User, bob: User, order: Path
) -> None:
    holder, gate = hold(slicer, bob)
    env = slicer.environ(HOME=str(alice.home), XDG_RUNTIME_DIR=alice.runtime)
    with Terminal(*alice.identity, *BASH, env=env, cwd=slicer.directory) as terminal:
        terminal.expect(PROMPT)
        terminal.line(f"slicer run -p heavy -n first -- sh -c 'echo first >> {order}'")
        terminal.expect("waiting for a CPU slot")
        first = wait_until("its ticket", lambda: next(iter(jobs_tickets("first")), None))
        unit = f"slicer-{first.job}.scope"
        wait_until("its scope stands", lambda: is_active(unit, alice))
        terminal.type(CTRL_Z)
        terminal.expect(PROMPT)
        assert processes.state(first.pid) == "T"
        second = wait_in_line(slicer, bob.via, "bob")
        gate.open()
        assert [holder.end().code, second.end().code] == [0, 0]
        assert order.read_text().split() == ["bob"]
        assert is_active(unit, alice)
        terminal.line("fg")
        terminal.expect(PROMPT)
        assert order.read_text().split() == ["bob", "first"]
        terminal.line("exit")
        terminal.end()


def jobs_tickets(name: str) -> list[Ticket]:
    return [ticket for ticket in tickets() if ticket.name == name]


# K6, A2
@pytest.mark.parametrize("way", ["Ctrl-C", "closed"])
def test_the_terminal_of_a_waiting_job_takes_it_along(
    slicer: Slicer, alice: User, bob: User, order: Path, way: str
) -> None:
    holder, gate = hold(slicer, bob)
    env = slicer.environ(HOME=str(alice.home), XDG_RUNTIME_DIR=alice.runtime)
    command = (*alice.identity, "slicer", "run", "-p", "heavy", "-n", "first", "--", "touch", "ran")
    with Terminal(*command, env=env, cwd=slicer.directory) as terminal:
        terminal.expect("waiting for a CPU slot")
        second = wait_in_line(slicer, bob.via, "bob")
        if way == "closed":
            terminal.close()
        else:
            terminal.type(CTRL_C)
        assert terminal.end() == -(signal.SIGHUP if way == "closed" else signal.SIGINT)
    assert not jobs_tickets("first")
    scope_of(second, bob)
    gate.open()
    assert [holder.end().code, second.end().code] == [0, 0]
    assert not slicer.path("ran").exists()
