"""``slicer stop`` over jobs in real scopes, and what status and history say of them afterwards."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from slicer.outcome import history
from tests.patience import until
from tests.process.harness import TRAINER
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Job, Slicer, leases, tickets
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


def up(slicer: Slicer, *options: str, script: str = "exec sleep 1000", via: tuple[str, ...] = ()) -> Job:
    """A job whose command runs."""
    job = slicer.start(*options, "--", "sh", "-c", f"echo up; {script}", via=via)
    job.said("up")
    return job


@pytest.mark.core
@pytest.mark.parametrize("by", ["name", "id", "unit"])
def test_stop_ends_the_scope_and_waits_for_the_lease(slicer: Slicer, by: str) -> None:  # K6, X3
    job = up(slicer, "-p", "heavy", "--name", "x", script="setsid sleep 1000 & exec sleep 1000")
    lease = job.lease()

    def all_three() -> set[int]:
        found = processes.in_cgroup(lease.cgroup)
        return found if len(found) == 3 else set()

    inside = until(all_three, "keeper, command and its child are in the scope")
    word = {"name": "x", "id": lease.job[:5], "unit": lease.unit}[by]
    assert slicer.command("stop", word).stdout == f"stopped {lease.job}  x\n"
    assert not leases()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), "none of them is left")
    done = job.end()
    assert (done.code, "exit 143 (stopped)" in done.stderr) == (143, True)
    outcome = slicer.outcome(lease.job)
    assert (outcome.reason, outcome.exit_code) == ("stopped", 143)
    (told,) = systemctl.journal("-t", "slicer", f"SLICER_JOB={lease.job}", "SLICER_EVENT=stopping")  # W17
    said = "x: told to end by root (slicer stop) while it held 1 CPU slot"
    assert (told["MESSAGE"], told["SLICER_BY_UID"]) == (said, "0")
    shown = slicer.command("history", lease.job[:8]).stdout
    assert re.search(r"\nended +stopped, exit code 143, SIGTERM, by slicer stop\n", shown)
    assert f"\nunit          {lease.unit} in cpu.slice\n" in shown


def test_stop_kills_what_will_not_end(slicer: Slicer) -> None:
    job = up(
        slicer,
        "--set",
        "TimeoutStopSec=300ms",
        "--name",
        "deaf",
        script="trap '' TERM; while :; do sleep 1; done",
    )
    slicer.command("stop", "deaf")
    assert job.end().code == 137


def test_stop_ends_a_job_whose_slicer_was_killed(slicer: Slicer) -> None:  # K2, X3
    job = up(slicer, "-p", "heavy", "--name", "x")
    lease = job.lease()
    job.kill()
    job.popen.wait()
    slicer.command("stop", "x")
    assert not leases()
    assert slicer.outcome(lease.job).reason == "stopped"


def test_stop_ends_a_job_without_a_supervisor(slicer: Slicer) -> None:
    job = up(slicer, "--exec", "-p", "heavy", "--name", "x")
    slicer.command("stop", "x")
    assert job.end().code == -signal.SIGTERM
    assert not leases()


def test_stop_ends_a_job_that_ctrl_z_stopped(slicer: Slicer) -> None:
    job = up(slicer, "-p", "heavy", "--name", "x")
    pid = job.command_pid()
    for each in (pid, job.pid):
        os.kill(each, signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{job.pid}/stat").read_text(), "both are stopped")
    slicer.command("stop", "x")
    assert not leases()
    assert job.end().code == 143


def test_stop_takes_a_waiting_job_out_of_the_queue(slicer: Slicer) -> None:
    first = up(slicer, "-p", "heavy", "--name", "first")
    second = slicer.start("-p", "heavy", "--name", "second", "--", "true")
    second.ticket()
    slicer.command("stop", "second")
    assert not tickets()
    done = second.end()
    assert (done.code, done.stderr.splitlines()[-1]) == (143, "slicer: taken out of the queue (slicer stop)")
    assert [lease.name for lease in leases()] == ["first"]
    slicer.command("stop", "first")
    first.end()


@pytest.mark.core
def test_a_user_sees_and_stops_her_own_jobs_and_nobody_elses_are_seen(
    slicer: Slicer, alice: User, bob: User
) -> None:  # B3, S8
    slicer.ledger = alice.ledger
    job = up(slicer, "-p", "heavy", "--name", "hers", via=alice.via)
    lease = job.lease()
    assert (lease.manager, lease.uid) == ("user", alice.uid)
    for other in ((), bob.via):
        assert "No jobs are running." in slicer.command("status", via=other).stdout
        done = slicer.command("stop", "hers", code=2, via=other)
        assert done.stderr == "slicer: no such job: 'hers' (no job runs or waits)\n"
    shown = slicer.command("status", via=alice.bare).stdout
    assert f"{lease.unit} (--user): sh -c" in shown
    assert f"Jobs of this user only ({alice.ledger})." in shown
    slicer.command("stop", "hers", via=alice.bare)
    assert not leases(alice.ledger)
    assert job.end().code == 143
    (outcome,) = until(lambda: history.read(alice.history, job=lease.job), "an outcome")
    assert outcome.reason == "stopped"


def test_a_user_stops_a_job_of_hers_without_a_supervisor(slicer: Slicer, alice: User) -> None:
    slicer.ledger = alice.ledger
    job = up(slicer, "--exec", "--name", "hers", via=alice.via)
    slicer.command("stop", "hers", via=alice.via)
    assert job.end().code == -signal.SIGTERM


# -- the command first --------------------------------------------------------------------------------------

@pytest.mark.core
@pytest.mark.parametrize("options", [(), ("--set", "KillMode=mixed", "--set", "TimeoutStopSec=1min")])
@pytest.mark.parametrize("by", ["slicer stop", "slicer stop --grace", "systemctl", "slice", "time limit"])
def test_the_command_is_asked_while_its_workers_live(
    slicer: Slicer, tmp_path: Path, options: tuple[str, ...], by: str
) -> None:  # U15, K6
    program = tmp_path / "train.py"
    program.write_text(TRAINER)
    limit = ("--timeout", "6s") if by == "time limit" else ()  # a Python may take seconds to start
    command = ("python3", str(program), "SIGTERM")
    job = slicer.start("-p", "heavy", "--name", "x", *limit, *options, "--", *command)
    job.said("up")
    lease = job.lease()
    if by.startswith("slicer stop"):
        slicer.command("stop", "x", *(("--grace", "1m") if "grace" in by else ()))
    elif by != "time limit":
        systemctl.output("systemctl", "stop", lease.unit if by == "systemctl" else "cpu.slice")
    done = job.end()
    assert done.stdout.splitlines()[-2:] == ["fed", "saved"]
    outcome = slicer.outcome(lease.job)
    assert outcome.reason == ("timeout" if by == "time limit" else "stopped")
    assert outcome.ended_by == ("" if by == "time limit" else "slicer stop" if "slicer" in by else "systemd")


def test_a_job_whose_keeper_was_killed_is_asked_by_slicer_stop(slicer: Slicer, tmp_path: Path) -> None:  # U15
    saved = tmp_path / "saved"
    script = f"trap 'touch {saved}; exit' TERM; sleep 1000 & wait"
    job = up(slicer, "-p", "heavy", "--name", "x", "--linger", script=script)
    lease = job.lease()
    job.kill()
    os.kill(lease.keeper, signal.SIGKILL)
    slicer.command("stop", "x")
    assert saved.exists()
    assert not leases()


def test_a_job_without_a_keeper_is_asked_by_systemd_alone(slicer: Slicer) -> None:  # U15
    job = up(slicer, "--exec", "-p", "heavy", "--name", "x")
    refused = slicer.command("stop", "x", "--grace", "1m", code=2)
    assert "x has no keeper that could do that" in refused.stderr
    assert systemctl.show(job.lease().unit, "KillSignal") == {"KillSignal": "15"}
    slicer.command("stop", "x")
    assert job.end().code == -signal.SIGTERM
