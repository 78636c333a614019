"""The jobs of an ordinary user wait for each other in her own manager, whatever becomes of any of them.

Nothing is promised between users: each has a ledger of her own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from slicer.model import Ticket
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Gate, Job, Slicer, tickets
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal
from tests.systemd.helpers.users import User, start_manager

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

# Jobs that outlive her manager.
PLAIN = ("--backend", "plain")


@pytest.fixture
def slicer(public_slicer: Slicer, alice: User) -> Iterator[Slicer]:
    public_slicer.ledger = alice.ledger
    yield public_slicer
    until(lambda: not left_in_ledger(public_slicer), "the ledger is empty")
    until(lambda: not systemctl.scopes(alice.systemctl), "no scope")


def left_in_ledger(slicer: Slicer) -> list[Path]:
    slicer.left()  # sweeps what killed owners left, where a test said that it killed some
    folders = ("leases", "tickets", "bells")
    return [path for folder in folders for path in Path(slicer.ledger, folder).iterdir()]


def hold(slicer: Slicer, someone: User, *options: str) -> tuple[Job, Gate]:
    gate = slicer.gate()
    script = f"echo up; : < {gate}"
    job = slicer.start("-p", "heavy", *options, "--", "sh", "-c", script, via=someone.via)
    job.said("up")
    return job, gate


def wait_in_line(slicer: Slicer, someone: User, name: str, *options: str) -> Job:
    script = f"echo {name} >> {slicer.path('order')}"
    job = slicer.start("-p", "heavy", "--name", name, *options, "--", "sh", "-c", script, via=someone.via)
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
    until(lambda: is_active(unit, someone), f"{unit} is active")
    return unit


def is_active(unit: str, someone: User) -> bool:
    return systemctl.show(unit, "ActiveState", prefix=someone.systemctl)["ActiveState"] == "active"


# A1, X4
def test_a_users_jobs_are_served_by_priority_and_then_in_their_order(
    slicer: Slicer, alice: User, order: Path
) -> None:
    holder, gate = hold(slicer, alice)
    jobs = [wait_in_line(slicer, alice, name) for name in ("first", "second", "third")]
    jobs.append(wait_in_line(slicer, alice, "urgent", "--priority", "5"))
    gate.open()
    assert [job.end().code for job in (holder, *jobs)] == [0] * 5
    assert order.read_text().split() == ["urgent", "first", "second", "third"]
    assert not [job.stderr for job in jobs if "Traceback" in job.stderr or "ignored" in job.stderr]


def kill_all(job: Job) -> None:
    lease = job.lease()
    pids = processes.in_cgroup(lease.cgroup)
    for pid in (job.pid, *pids):
        os.kill(pid, signal.SIGKILL)


# A2, K2, X4
@pytest.mark.parametrize("way", ["outer", "keeper", "all", "manager"])
def test_a_killed_holder_hands_over(slicer: Slicer, alice: User, order: Path, way: str) -> None:
    slicer.dirty = True
    holder, gate = hold(slicer, alice)
    lease = holder.lease()
    options = PLAIN if way == "manager" else ()
    jobs = [wait_in_line(slicer, alice, name, *options) for name in ("first", "second")]
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
    assert order.read_text().split() == ["first", "second"]
    start_manager(alice)


# A2, X4
@pytest.mark.parametrize("way", ["outer", "keeper", "stop", "slicer stop", "manager"])
def test_the_first_in_line_that_goes_makes_way(slicer: Slicer, alice: User, order: Path, way: str) -> None:
    slicer.dirty = True
    options = PLAIN if way == "manager" else ()
    holder, gate = hold(slicer, alice, *options)
    first = wait_in_line(slicer, alice, "first")
    jobs = [wait_in_line(slicer, alice, name, *options) for name in ("second", "third")]
    unit = scope_of(first, alice)
    if way == "outer":
        first.kill()
    elif way == "keeper":
        (keeper,) = processes.children(first.pid)
        os.kill(keeper, signal.SIGKILL)
    elif way == "stop":
        systemctl.output(*alice.systemctl, "stop", unit)
    elif way == "slicer stop":
        systemctl.output(*alice.via, "slicer", "stop", "first", env=slicer.environ())
    else:
        systemctl.output("systemctl", "stop", f"user@{alice.uid}.service")
    done = first.end()
    assert done.code != 0
    assert "Traceback" not in done.stderr
    if way != "manager":
        scope_of(jobs[0], alice)  # it leads now
    gate.open()
    assert [job.end().code for job in (holder, *jobs)] == [0, 0, 0]
    assert order.read_text().split() == ["second", "third"]
    start_manager(alice)


def sleeps_of(job: Job) -> int:
    """How often it has gone to sleep; 0 when it did so while this looked."""

    def count() -> int:
        lines = processes.read(job.pid, "status").split(b"\n")
        return next((int(line.split()[1]) for line in lines if line.startswith(b"voluntary_ctxt_sw")), 0)

    before = count()
    time.sleep(0.5)  # the measurement itself: a poller would have woken up meanwhile
    return before if count() == before else 0


# X4: no polling, though nobody but the scope is left to tell of the end
def test_who_waits_for_a_job_without_a_supervisor_sleeps(slicer: Slicer, alice: User, order: Path) -> None:
    slicer.dirty = True
    holder, gate = hold(slicer, alice)
    lease = holder.lease()
    jobs = [wait_in_line(slicer, alice, name) for name in ("first", "second")]
    for pid in (holder.pid, lease.keeper):  # only the scope, of her manager, holds the lease
        os.kill(pid, signal.SIGKILL)
    before = [until(partial(sleeps_of, job), "it sleeps soundly") for job in jobs]
    assert [sleeps_of(job) for job in jobs] == before
    gate.open()
    assert [job.end().code for job in jobs] == [0, 0]


# K6, X4
def test_ctrl_z_of_a_waiting_job_leaves_its_scope_ready_and_the_others_served(
    slicer: Slicer, alice: User, order: Path
) -> None:
    holder, gate = hold(slicer, alice)
    env = slicer.environ(HOME=str(alice.home), XDG_RUNTIME_DIR=alice.runtime)
    with Terminal(*alice.identity, *BASH, env=env, cwd=slicer.directory) as terminal:
        terminal.expect(PROMPT)
        terminal.line(f"slicer run -p heavy --name first -- sh -c 'echo first >> {order}'")
        terminal.expect("waiting for a CPU slot")
        first = until(lambda: next(iter(tickets_of(slicer, "first")), None), "its ticket")
        unit = f"slicer-{first.job}.scope"
        until(lambda: is_active(unit, alice), "its scope stands")
        terminal.type(CTRL_Z)
        terminal.expect(PROMPT)
        assert processes.state(first.pid) == "T"
        second = wait_in_line(slicer, alice, "second")
        gate.open()
        assert [holder.end().code, second.end().code] == [0, 0]
        assert order.read_text().split() == ["second"]
        assert is_active(unit, alice)
        terminal.line("fg")
        terminal.expect(PROMPT)
        assert order.read_text().split() == ["second", "first"]
        terminal.line("exit")
        terminal.end()


def tickets_of(slicer: Slicer, name: str) -> list[Ticket]:
    return [ticket for ticket in tickets(slicer.ledger) if ticket.name == name]


# K6, A2
@pytest.mark.parametrize("way", ["Ctrl-C", "closed"])
def test_the_terminal_of_a_waiting_job_takes_it_along(
    slicer: Slicer, alice: User, order: Path, way: str
) -> None:
    holder, gate = hold(slicer, alice)
    env = slicer.environ(HOME=str(alice.home), XDG_RUNTIME_DIR=alice.runtime)
    command = (*alice.identity, "slicer", "run", "-p", "heavy", "--name", "first", "--", "touch", "ran")
    with Terminal(*command, env=env, cwd=slicer.directory) as terminal:
        terminal.expect("waiting for a CPU slot")
        second = wait_in_line(slicer, alice, "second")
        if way == "closed":
            terminal.close()
        else:
            terminal.type(CTRL_C)
        assert terminal.end() == -(signal.SIGHUP if way == "closed" else signal.SIGINT)
    assert not tickets_of(slicer, "first")
    scope_of(second, alice)
    gate.open()
    assert [holder.end().code, second.end().code] == [0, 0]
    assert not slicer.path("ran").exists()
