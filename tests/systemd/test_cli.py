"""``status``, ``stop``, ``history`` and ``run --dry-run`` over jobs in real scopes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.outcome import history
from tests.fake_nvml import FakeNvml
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Done, Job, Slicer, leases, tickets
from tests.systemd.helpers.users import User
from tests.systemd.helpers.waiting import DEADLINE_S, wait_until

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


def command(slicer: Slicer, *line: str, code: int = 0, via: tuple[str, ...] = (), **env: str) -> Done:
    """Any command of slicer's, with the exit code that it must have."""
    done = subprocess.run(
        [*via, "slicer", *line],
        env=slicer.environ(**env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == code, done
    return Done(0, code, done.stdout, done.stderr)


def status(slicer: Slicer, **env: str) -> Any:
    return json.loads(command(slicer, "status", "--json", **env).stdout)


def up(slicer: Slicer, *options: str, script: str = "exec sleep 1000", via: tuple[str, ...] = ()) -> Job:
    """A job whose command runs."""
    job = slicer.start(*options, "--", "sh", "-c", f"echo up; {script}", via=via)
    job.said("up")
    return job


@pytest.mark.core
def test_status_names_holders_waiters_and_what_is_free(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # B2, B3
    gates = [slicer.gate() for _ in range(3)]
    env = fake_nvml.env
    train = slicer.hold(gates[0], "--gpus", "1", "--name", "train", "--expect", "1h", env=env)
    heavy = slicer.hold(gates[1], "-p", "heavy", env=env)
    light = slicer.hold(gates[2], "--name", "small")
    second = slicer.start("-p", "heavy", "--name", "second", "--", "true")
    ticket = second.ticket()
    found = status(slicer, **env)
    jobs = {job["job"]: job for job in found["jobs"]}
    assert set(jobs) == {each.lease().job for each in (train, heavy, light)}
    holder, lease = jobs[train.lease().job], train.lease()
    assert (holder["name"], holder["pid"], holder["unit"]) == ("train", train.pid, lease.unit)
    assert (holder["cgroup"], holder["manager"], holder["user"]) == (lease.cgroup, "system", "root")
    assert holder["gpus"][0]["uuid"] == lease.gpus[0]
    assert 3500 < holder["expected_remaining"] <= 3600
    assert jobs[heavy.lease().job]["cpu_slots"] == 1
    assert [waiting["job"] for waiting in found["waiting"]] == [ticket.job]
    assert len(found["gpus"]["free"]) == 1
    assert found["cpu_slots"] == {"total": 1, "free": 0}
    assert found["state"] == {"directory": "/run/slicer"}
    text = command(slicer, "status", **env).stdout
    assert f"\n  {lease.unit}: sh -c " in text
    assert f"\nCPU slots: 0 of 1 free; held by {heavy.lease().job}\nGPUs: 1 of 2 free " in text
    assert f"\n  held by {heavy.lease().job} - true\n" in text
    for gate in gates:
        gate.open()
    assert [job.end().code for job in (train, heavy, light, second)] == [0] * 4
    assert "No job runs." in command(slicer, "status").stdout


@pytest.mark.core
@pytest.mark.parametrize("by", ["name", "id", "unit"])
def test_stop_ends_the_scope_and_waits_for_the_lease(slicer: Slicer, by: str) -> None:  # K6, X3
    job = up(slicer, "-p", "heavy", "--name", "x", script="setsid sleep 1000 & exec sleep 1000")
    lease = job.lease()

    def all_three() -> set[int]:
        found = processes.in_cgroup(lease.cgroup)
        return found if len(found) == 3 else set()

    inside = wait_until("keeper, command and its child are in the scope", all_three)
    word = {"name": "x", "id": lease.job[:5], "unit": lease.unit}[by]
    assert command(slicer, "stop", word).stdout == f"stopped {lease.job}  x\n"
    assert not leases()
    wait_until("none of them is left", lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
    done = job.end()
    assert (done.code, "exit 143 (stopped)" in done.stderr) == (143, True)
    outcome = slicer.outcome(lease.job)
    assert (outcome.reason, outcome.exit_code) == ("stopped", 143)
    (told,) = systemctl.journal("-t", "slicer", f"SLICER_JOB={lease.job}", "SLICER_EVENT=stopping")  # W17
    assert (told["MESSAGE"], told["SLICER_BY_UID"]) == ("x: told to end by root (slicer stop)", "0")
    shown = command(slicer, "history", lease.job[:8]).stdout
    assert "\nended         stopped, exit code 143, SIGTERM\n" in shown
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
    command(slicer, "stop", "deaf")
    assert job.end().code == 137


def test_stop_ends_a_job_whose_slicer_was_killed(slicer: Slicer) -> None:  # K2, X3
    job = up(slicer, "-p", "heavy", "--name", "x")
    lease = job.lease()
    job.kill()
    job.popen.wait()
    command(slicer, "stop", "x")
    assert not leases()
    assert slicer.outcome(lease.job).reason == "stopped"


def test_stop_ends_a_job_without_a_supervisor(slicer: Slicer) -> None:
    job = up(slicer, "--exec", "-p", "heavy", "--name", "x")
    command(slicer, "stop", "x")
    assert job.end().code == -signal.SIGTERM
    assert not leases()


def test_stop_ends_a_job_that_ctrl_z_stopped(slicer: Slicer) -> None:
    job = up(slicer, "-p", "heavy", "--name", "x")
    pid = job.command_pid()
    for each in (pid, job.pid):
        os.kill(each, signal.SIGSTOP)
    wait_until("both are stopped", lambda: ") T " in Path(f"/proc/{job.pid}/stat").read_text())
    command(slicer, "stop", "x")
    assert not leases()
    assert job.end().code == 143


def test_stop_takes_a_waiting_job_out_of_the_queue(slicer: Slicer) -> None:
    first = up(slicer, "-p", "heavy", "--name", "first")
    second = slicer.start("-p", "heavy", "--name", "second", "--", "true")
    second.ticket()
    command(slicer, "stop", "second")
    assert not tickets()
    assert second.end().code == -signal.SIGTERM
    assert [lease.name for lease in leases()] == ["first"]
    command(slicer, "stop", "first")
    first.end()


def test_a_dry_run_asks_systemd_for_nothing(slicer: Slicer) -> None:
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy", "--name", "first")
    before = systemctl.scopes()
    out = command(
        slicer, "run", "--dry-run", "-p", "heavy", "--timeout", "90", "--", "touch", "/tmp/ran"
    ).stdout
    assert "\nunit       slicer-<id>.scope in cpu.slice\n" in out
    lease = job.lease()
    assert f"\nlease      1 CPU slot: busy: a CPU slot, held by first (pid {lease.pid}, {lease.unit}, " in out
    assert "\nbackend    systemd, the system manager\n" in out
    assert systemctl.scopes() == before
    assert not Path("/tmp/ran").exists()
    gate.open()
    job.end()


def test_install_units_says_the_next_step_and_remove_what_stays(slicer: Slicer) -> None:  # W12
    try:
        assert "\nnext: whoever is logged in runs `systemctl" in command(slicer, "install-units").stdout
    finally:
        out = command(slicer, "install-units", "--remove").stdout
    assert "\nstays  /var/lib/slicer  history of jobs; " in out


@pytest.mark.core
def test_a_user_sees_and_stops_her_own_jobs_and_nobody_elses_are_seen(
    slicer: Slicer, alice: User, bob: User
) -> None:  # B3, S8
    slicer.ledger = alice.ledger
    job = up(slicer, "-p", "heavy", "--name", "hers", via=alice.via)
    lease = job.lease()
    assert (lease.manager, lease.uid) == ("user", alice.uid)
    for other in ((), bob.via):
        assert "No job runs." in command(slicer, "status", via=other).stdout
        done = command(slicer, "stop", "hers", code=2, via=other)
        assert done.stderr == "slicer: no such job: 'hers' (no job runs or waits)\n"
    shown = command(slicer, "status", via=alice.bare).stdout
    assert f"{lease.unit} (--user): sh -c" in shown
    assert f"Jobs of this user only ({alice.ledger})." in shown
    command(slicer, "stop", "hers", via=alice.bare)
    assert not leases(alice.ledger)
    assert job.end().code == 143
    (outcome,) = wait_until("an outcome", lambda: history.read(alice.history, job=lease.job))
    assert outcome.reason == "stopped"


def test_a_user_stops_a_job_of_hers_without_a_supervisor(slicer: Slicer, alice: User) -> None:
    slicer.ledger = alice.ledger
    job = up(slicer, "--exec", "--name", "hers", via=alice.via)
    command(slicer, "stop", "hers", via=alice.via)
    assert job.end().code == -signal.SIGTERM
