"""The lease is held across the scope: until its last process is gone, whoever else dies first (K2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.model import Lease
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Gate, Job, Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

HEAVY = ("-p", "heavy")


def logging_job(slicer: Slicer, gate: Gate, *options: str, code: int = 0) -> Job:
    """Holds the CPU slot until the gate opens; writes "first began" and "first over" into ``log``."""
    script = f"echo first began >> log; echo up; : < {gate}; echo first over >> log; exit {code}"
    job = slicer.start(*HEAVY, *options, "--", "sh", "-c", script)
    job.said("up")
    return job


def waiting_job(slicer: Slicer, *options: str) -> Job:
    """Waits for the CPU slot, then writes "second began" into ``log``."""
    job = slicer.start(*HEAVY, *options, "--", "sh", "-c", "echo second began >> log")
    job.ticket()
    return job


def log(slicer: Slicer) -> list[str]:
    return slicer.path("log").read_text().splitlines()


def still_held(slicer: Slicer, lease: Lease, waiting: Job | None = None) -> None:
    """The probe is refused, with the first job named as the holder, and nobody else has started."""
    done = slicer.run("--no-wait", *HEAVY, "--", "true")
    assert done.code == 75, done
    assert lease.unit in done.stderr
    assert "second began" not in log(slicer)
    if waiting is not None:
        assert waiting.popen.poll() is None


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(processes.is_alive, pids)), f"{pids} are dead")


def test_slicer_killed_while_the_job_runs(slicer: Slicer) -> None:  # K2, X3
    gate = slicer.gate()
    job = logging_job(slicer, gate, code=7)
    waiting = waiting_job(slicer)
    lease = job.lease()
    kill(job.pid)
    still_held(slicer, lease, waiting)
    gate.open()
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]
    outcome = slicer.outcome(lease.job)
    assert (outcome.exit_code, outcome.reason) == (7, "exited")
    (finished,) = systemctl.journal(f"SLICER_JOB={lease.job}", "SLICER_EVENT=finished")
    assert finished["SLICER_EXIT_CODE"] == "7"
    assert systemctl.events(lease.job) == ["acquired", "started", "finished", "released"]


@pytest.mark.parametrize("waiter_first", [True, False])
def test_both_halves_of_slicer_killed(slicer: Slicer, waiter_first: bool) -> None:  # K2, X3
    slicer.dirty = True
    gate = slicer.gate()
    job = logging_job(slicer, gate)
    lease, command = job.lease(), job.command_pid()
    waiting = waiting_job(slicer) if waiter_first else None
    # Supervisor first: it would otherwise end the job of its dead keeper.
    kill(job.pid, lease.keeper)
    still_held(slicer, lease, waiting)
    waiting = waiting or waiting_job(slicer)
    assert processes.is_alive(command)
    gate.open()
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]
    lost = slicer.outcome(lease.job)
    assert (lost.reason, lost.exit_code, lost.slice) == ("unknown", 125, "cpu.slice")


CLOSING = """\
import os, sys
os.closerange(0, 4096)
open("log", "a").write("first began\\n")
os.close(os.open(sys.argv[1], os.O_RDONLY))
open("log", "a").write("first over\\n")
"""


def test_a_job_that_closes_all_its_descriptors_when_slicer_is_killed(slicer: Slicer) -> None:  # K2
    slicer.dirty = True
    gate = slicer.gate()
    job = slicer.start(*HEAVY, "--", sys.executable, "-c", CLOSING, str(gate))
    until(slicer.path("log").exists, "the job is up")
    lease = job.lease()
    still_held(slicer, lease)
    waiting = waiting_job(slicer)
    kill(job.pid, lease.keeper)  # no process has the lease's file open now
    still_held(slicer, lease, waiting)
    gate.open()
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]


DAEMON = """\
import os, signal, sys, time
gate, on_term = sys.argv[1:3]
read_end, write_end = os.pipe()
if os.fork():
    os.read(read_end, 1)  # until the daemon is ready
    os._exit(5)
os.setsid()
between = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == between:  # it would count as one more that outlives the command
    time.sleep(0.001)
def log(text):
    with open("log", "a") as file:
        file.write(text + "\\n")
def terminated(signo, frame):
    log("first got SIGTERM")
    if on_term == "leave":
        os._exit(0)
signal.signal(signal.SIGTERM, terminated)
log("first began")
os.write(write_end, b"x")
os.closerange(0, 4096)
os.close(os.open(gate, os.O_RDONLY))
log("first over")
"""


def daemonising(slicer: Slicer, gate: Gate, on_term: str, *options: str) -> Job:
    job = slicer.start(*HEAVY, *options, "--", sys.executable, "-c", DAEMON, str(gate), on_term)
    until(slicer.path("log").exists, "the daemon is up")
    return job


def test_what_outlives_the_command_gets_sigterm(slicer: Slicer) -> None:  # K2
    job = daemonising(slicer, slicer.gate(), "leave")
    done = job.end()
    assert done.code == 5
    assert "1 leftover process ended" in done.stderr
    assert log(slicer) == ["first began", "first got SIGTERM"]
    assert slicer.outcome_of(done).leftovers == 1


def test_what_ignores_sigterm_is_killed_after_the_stop_timeout(slicer: Slicer) -> None:  # K2
    job = daemonising(slicer, slicer.gate(), "stay", "--set", "TimeoutStopSec=1s")
    until(lambda: "first got SIGTERM" in log(slicer), "SIGTERM has come")
    still_held(slicer, job.lease())
    waiting = waiting_job(slicer)
    assert job.end().code == 5
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first got SIGTERM", "second began"]


def only_the_daemon(slicer: Slicer, lease: Lease) -> bool:
    """Whether the keeper has adopted the daemon and reaped the command."""
    return "first began" in log(slicer) and len(processes.children(lease.keeper)) == 1


def test_linger_waits_for_what_outlives_the_command(slicer: Slicer) -> None:  # K2
    gate = slicer.gate()
    job = daemonising(slicer, gate, "stay", "--linger")
    lease = job.lease()
    waiting = waiting_job(slicer)
    until(lambda: only_the_daemon(slicer, lease), "the main process is reaped")
    still_held(slicer, lease, waiting)
    gate.open()
    done = job.end()
    assert done.code == 5
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]
    assert slicer.outcome_of(done).leftovers == 0


def test_sigterm_ends_lingering(slicer: Slicer) -> None:  # K2
    job = daemonising(slicer, slicer.gate(), "leave", "--linger")
    lease = job.lease()
    until(lambda: only_the_daemon(slicer, lease), "the main process is reaped")
    job.kill(signal.SIGTERM)
    assert job.end().code == 5
    assert log(slicer) == ["first began", "first got SIGTERM"]


def test_a_daemon_keeps_the_lease_when_both_halves_are_killed(slicer: Slicer) -> None:  # K2
    slicer.dirty = True
    gate = slicer.gate()
    job = daemonising(slicer, gate, "stay", "--linger")
    lease = job.lease()
    kill(job.pid, lease.keeper)
    still_held(slicer, lease)
    waiting = waiting_job(slicer)
    gate.open()
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]


def test_stopping_the_scope_gives_the_lease_to_the_next(slicer: Slicer) -> None:  # K2, K6
    gate = slicer.gate()
    job = logging_job(slicer, gate)
    waiting = waiting_job(slicer)
    systemctl.output("systemctl", "stop", job.lease().unit)
    assert job.end().code == 143
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "second began"]


def test_stopping_the_scope_of_a_killed_slicer(slicer: Slicer) -> None:  # K2, X3
    gate = slicer.gate()
    job = logging_job(slicer, gate)
    waiting = waiting_job(slicer)
    lease = job.lease()
    kill(job.pid)
    systemctl.output("systemctl", "stop", lease.unit)
    assert waiting.end().code == 0
    outcome = slicer.outcome(lease.job)
    assert (outcome.exit_code, outcome.reason) == (143, "stopped")


def test_the_keeper_killed_ends_the_job_before_the_next_begins(slicer: Slicer) -> None:  # K2
    gate = slicer.gate()
    job = logging_job(slicer, gate)
    command = job.command_pid()
    waiting = waiting_job(slicer)
    kill(job.lease().keeper)
    done = job.end()
    assert done.code == 137, done
    assert not processes.is_alive(command)
    assert waiting.end().code == 0
    assert slicer.outcome_of(done).exit_code == 137


def test_exec_keeps_the_lease_with_the_command(slicer: Slicer) -> None:  # K2
    slicer.dirty = True  # nobody stays to remove the file of the lease
    gate = slicer.gate()
    job = logging_job(slicer, gate, "--exec", code=6)
    lease = job.lease()
    assert processes.read(job.pid, "cmdline").startswith(b"sh\0-c\0")  # slicer became the command
    assert processes.in_cgroup(lease.cgroup) == {job.pid}
    still_held(slicer, lease)
    waiting = waiting_job(slicer)
    gate.open()
    assert job.end().code == 6
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]


def test_exec_keeps_the_lease_with_what_outlives_the_command(slicer: Slicer) -> None:  # K2
    slicer.dirty = True
    gate = slicer.gate()
    job = daemonising(slicer, gate, "stay", "--exec")
    lease = job.lease()
    assert job.end().code == 5
    still_held(slicer, lease)
    waiting = waiting_job(slicer)
    gate.open()
    assert waiting.end().code == 0
    assert log(slicer) == ["first began", "first over", "second began"]


def test_the_time_limit_holds_when_slicer_is_dead(slicer: Slicer) -> None:  # K2, K3
    slicer.dirty = True
    job = logging_job(slicer, slicer.gate(), "--timeout", "8s")
    lease = job.lease()
    kill(job.pid, lease.keeper)
    waiting = waiting_job(slicer)
    assert waiting.end().code == 0  # systemd has kept the time
    assert log(slicer) == ["first began", "second began"]


def test_slicer_killed_at_any_instant_of_its_start_leaves_nothing(slicer: Slicer) -> None:  # A2, K2
    slicer.dirty = True
    for delay_ms in range(0, 120, 4):
        job = slicer.start(*HEAVY, "--", "true")
        try:
            job.popen.wait(delay_ms / 1000)  # not for an event: every instant is a case of its own
        except subprocess.TimeoutExpired:
            job.kill()
            job.popen.wait()
    assert slicer.run(*HEAVY, "--", "true").code == 0
    assert not list(Path("/run/slicer/leases").iterdir())
    until(lambda: not systemctl.scopes(), "no scope is left", 5.0)
