"""A job is paused, frozen, stopped and killed, by slicer and from outside: it keeps its lease."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.kernel import cgroup
from slicer.outcome import history
from slicer.record import replace
from slicer.state import statefile
from tests.patience import LONGEST_S, until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Done, Slicer, leases
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

COUNTS = 'n=0; while :; do n=$((n+1)); echo $n > "$1"; sleep 0.02; done'


@pytest.fixture
def slicer(public_slicer: Slicer) -> Iterator[Slicer]:
    yield public_slicer
    for unit in systemctl.scopes():  # else a failed test's frozen job would outlive it
        systemctl.output("systemctl", "thaw", unit, check=False)


class Counting:
    """A heavy job that counts as long as it runs."""

    def __init__(self, slicer: Slicer, *options: str, name: str = "x", via: tuple[str, ...] = ()) -> None:
        self.path = slicer.path(f"count-{name}")
        self.path.touch()
        self.path.chmod(0o666)
        self.slicer = slicer
        self.name = name
        self.job = slicer.start(
            "-p", "heavy", "--name", name, *options, "--", "sh", "-c", COUNTS, "sh", str(self.path), via=via
        )
        self.lease = self.job.lease()
        self.goes_on()

    def count(self) -> int:
        return int(self.path.read_text() or 0)

    def goes_on(self) -> None:
        before = self.count()
        until(lambda: self.count() > before, f"{self.name} counts")

    def is_frozen(self) -> bool:
        return cgroup.is_frozen(f"/sys/fs/cgroup{self.lease.cgroup}")


def halted(slicer: Slicer, job: str, via: tuple[str, ...] = ()) -> str | None:
    told = json.loads(slicer.command("status", "--json", via=via).stdout)
    found = next(each for each in told["jobs"] if each["job"] == job)
    word: str | None = found["halted"]
    return word


def watched(counting: Counting) -> None:
    """Wait until the supervisor follows the scope: it begins after a second."""
    events = f"/sys/fs/cgroup{counting.lease.cgroup}/cgroup.events"
    until(lambda: events in processes.descriptors(counting.job.pid).values(), "it follows")


def told(job: str) -> list[tuple[str, str]]:
    entries = systemctl.journal("-t", "slicer", f"SLICER_JOB={job}")
    kinds = ("paused", "resumed", "changed", "stopping")
    return [(each["SLICER_EVENT"], each["MESSAGE"]) for each in entries if each["SLICER_EVENT"] in kinds]


def test_a_paused_job_stands_still_keeps_its_lease_and_goes_on(slicer: Slicer) -> None:  # X6
    job = Counting(slicer)
    assert slicer.command("pause", "x").stdout == f"paused {job.lease.job}  x\n"
    assert job.is_frozen()
    before = job.count()
    assert slicer.is_busy("-p", "heavy")
    assert halted(slicer, job.lease.job) == "paused"
    shown = slicer.command("status").stdout
    assert "  paused  1 CPU slot  " in shown
    assert "; slicer resume x\n" in shown
    assert slicer.command("pause", "x").stdout == f"{job.lease.job}  x: is already paused\n"
    assert job.count() == before
    assert slicer.command("resume", "x").stdout == f"resumed {job.lease.job}  x\n"
    job.goes_on()
    assert halted(slicer, job.lease.job) is None
    slicer.command("stop", "x")
    assert job.job.end().code == 143
    outcome = slicer.outcome(job.lease.job)
    assert (outcome.paused_s or 0) > 0
    assert (outcome.reason, outcome.ended_by) == ("stopped", "slicer stop")
    assert told(job.lease.job) == [
        ("paused", "x: paused by root (slicer pause)"),
        ("resumed", "x: resumed by root (slicer resume)"),
        ("stopping", "x: told to end by root (slicer stop) while it held 1 CPU slot"),
    ]
    assert re.search(r"\npaused +for ", slicer.command("history", job.lease.job).stdout)


def test_a_user_pauses_her_own_jobs_and_nobody_elses(
    slicer: Slicer, alice: User, bob: User
) -> None:  # X6, S8
    slicer.ledger = alice.ledger
    job = Counting(slicer, name="hers", via=alice.via)
    for other in ((), bob.via):
        done = slicer.command("pause", "hers", code=2, via=other)
        assert done.stderr == "slicer: no such job: 'hers' (no job runs or waits)\n"
        slicer.command("pause", job.lease.unit, code=2, via=other)
    assert not job.is_frozen()
    slicer.command("pause", "hers", via=alice.bare)
    assert job.is_frozen()
    assert halted(slicer, job.lease.job, alice.via) == "paused"
    slicer.command("resume", "hers", via=alice.bare)
    job.goes_on()
    slicer.command("pause", "hers", via=alice.via)
    slicer.command("stop", "hers", via=alice.via)
    assert job.job.end().code == 143
    (outcome,) = until(lambda: history.read(alice.history, job=job.lease.job), "an outcome")
    assert (outcome.reason, outcome.ended_by) == ("stopped", "slicer stop")


def test_of_several_jobs_those_that_are_there_are_paused(slicer: Slicer) -> None:  # X6
    first = Counting(slicer, name="first")
    waits = slicer.start("-p", "heavy", "--name", "waits", "--", "true")
    waits.ticket()
    done = slicer.command("pause", "nope", "waits", "first", "first", code=2)
    assert done.stdout == f"paused {first.lease.job}  first\n"
    assert "no such job: 'nope'" in done.stderr
    assert "waits waits, and has no process yet (slicer stop waits takes it out of the queue)" in done.stderr
    told = json.loads(slicer.command("resume", "first", "--json").stdout)
    assert told["jobs"] == [
        {"job": first.lease.job, "name": "first", "was_halted": "paused", "changed": True}
    ]
    slicer.command("stop", "first")
    assert first.job.end().code == 143
    assert waits.end().code == 0


@pytest.mark.parametrize("by", ["slicer pause", "systemctl freeze"])
def test_stop_ends_a_job_that_stands_still_by_sigterm(slicer: Slicer, by: str) -> None:  # X6, K6
    job = Counting(slicer, "--set", "TimeoutStopSec=1h")
    freeze(slicer, job, by)
    slicer.command("stop", "x")
    assert job.job.end().code == 143
    assert not leases()


def freeze(slicer: Slicer, job: Counting, by: str) -> None:
    if by == "slicer pause":
        slicer.command("pause", job.name)
    else:
        systemctl.output("systemctl", "freeze", job.lease.unit)
    assert job.is_frozen()


def test_freeze_and_thaw_from_outside_are_seen_and_told(slicer: Slicer) -> None:  # K6
    job = Counting(slicer)
    watched(job)
    systemctl.output("systemctl", "freeze", job.lease.unit)
    assert halted(slicer, job.lease.job) == "frozen"
    assert "frozen from outside (systemctl freeze)" in slicer.command("status").stdout
    assert slicer.is_busy("-p", "heavy")
    until(lambda: len(told(job.lease.job)) == 1, "the freeze is told")
    systemctl.output("systemctl", "thaw", job.lease.unit)
    until(lambda: len(told(job.lease.job)) == 2, "the thaw is told")
    (_, frozen), (kind, thawed) = told(job.lease.job)
    assert frozen == "x: frozen from outside (systemctl freeze)"
    assert (kind, thawed.endswith(", thawed from outside (systemctl thaw)")) == ("resumed", True)
    slicer.command("stop", "x")
    job.job.end()
    assert (slicer.outcome(job.lease.job).paused_s or 0) > 0


@pytest.mark.parametrize(
    ("command", "reason", "by"),
    [
        (("systemctl", "stop"), "stopped", "systemd"),
        (("systemctl", "kill", "--signal=TERM"), "signal", "systemd"),
        (("systemctl", "kill", "--signal=INT"), "signal", "systemd"),
        (("systemctl", "kill", "--signal=KILL"), "signal", "outside"),
    ],
    ids=["stop", "TERM", "INT", "KILL"],
)
def test_who_ended_a_job_from_outside_is_recorded(
    slicer: Slicer, command: tuple[str, ...], reason: str, by: str
) -> None:  # K6
    job = Counting(slicer)
    systemctl.output(*command, job.lease.unit)
    job.job.end()
    outcome = slicer.outcome(job.lease.job)
    assert (outcome.reason, outcome.ended_by) == (reason, by)
    assert not leases()


def test_a_time_limit_ends_a_job_that_is_paused(slicer: Slicer) -> None:  # X6, D4
    job = Counting(slicer, "--timeout", "2s", "--set", "TimeoutStopSec=1h")
    slicer.command("pause", "x")
    assert job.job.end().code == 124
    outcome = slicer.outcome(job.lease.job)
    assert (outcome.reason, outcome.ended_by) == ("timeout", "")
    assert [kind for kind, _ in told(job.lease.job)] == ["paused"]  # nobody outside has thawed it


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_slicer_run_ends_a_paused_job(slicer: Slicer, signo: int) -> None:  # X6
    job = Counting(slicer)
    slicer.command("pause", "x")
    job.job.kill(signo)
    done = job.job.end()
    assert done.code == (-signo if signo == signal.SIGINT else 128 + signo)  # as a shell has it
    assert "slicer: the job was paused; it is resumed so that it can end\n" in done.stderr
    assert slicer.outcome(job.lease.job).ended_by == "slicer run"


def test_a_paused_job_whose_slicer_was_killed_keeps_its_lease_and_ends(slicer: Slicer) -> None:  # K2, X6
    job = Counting(slicer)
    slicer.command("pause", "x")
    slicer.dirty = True
    job.job.kill()
    job.job.popen.wait()
    assert slicer.is_busy("-p", "heavy")
    assert halted(slicer, job.lease.job) == "paused"
    slicer.command("resume", "x")
    job.goes_on()
    slicer.command("pause", "x")
    slicer.command("stop", "x")
    until(lambda: not leases(), "the lease is given back")
    outcome = slicer.outcome(job.lease.job)
    assert (outcome.reason, outcome.ended_by) == ("stopped", "slicer stop")


def test_pause_and_stop_at_the_same_time_end_the_job(slicer: Slicer) -> None:  # X6
    job = Counting(slicer)
    racing = [slicer.start_command("stop", "x"), *(slicer.start_command("pause", "x") for _ in range(4))]
    codes = [each.wait(LONGEST_S) for each in racing]
    assert codes[0] == 0
    assert set(codes[1:]) <= {0, 2, 125}
    assert job.job.end().code == 143


def test_a_queues_job_is_paused_seen_and_cancelled(slicer: Slicer) -> None:  # X6
    queues = Queues(slicer)
    queues.write("[name=one profile=heavy] sleep 1000")
    queue = queues.start("--watch")
    lease = until(lambda: next((each for each in leases() if each.cgroup), None), "a lease")
    slicer.command("pause", "one")
    assert halted(slicer, lease.job) == "paused"
    systemctl.output("systemctl", "thaw", lease.unit)
    until(lambda: any(kind == "resumed" for kind, _ in told(lease.job)), "the queue has seen the thaw")
    slicer.command("pause", "one")
    queue.kill(signal.SIGINT)
    until(lambda: queue.events("stopping"), "it stops")
    queue.kill(signal.SIGINT)
    queue.end()
    outcome = slicer.outcome(lease.job)
    assert (outcome.reason, outcome.ended_by) == ("stopped", "slicer queue")
    assert (outcome.paused_s or 0) > 0


# -- who means harm -----------------------------------------------------------------------------------------


def test_a_forged_lease_makes_root_freeze_nobody_elses_unit(slicer: Slicer, alice: User) -> None:  # S8, X6
    slicer.ledger = alice.ledger
    job = Counting(slicer, via=alice.via)
    slicer.run("-p", "light", "--", "true")  # makes root's ledger
    for forged in (
        replace(job.lease, uid=0, manager="system"), replace(job.lease, uid=0, manager="user"),
        replace(job.lease, uid=0, manager="system", cgroup=f"/cpu.slice/{job.lease.unit}"),
    ):  # fmt: skip
        path = Path(SYSTEM_LEDGER, "leases", job.lease.job)
        path.write_bytes(statefile.encode(forged))
        try:
            done = refused(slicer, "pause", job.lease.job)
            assert "paused" not in done.stdout
            refused(slicer, "set", job.lease.job, "CPUQuota=1%")
        finally:
            path.unlink(missing_ok=True)
        assert not job.is_frozen()
    job.goes_on()
    slicer.command("stop", "x", via=alice.via)
    job.job.end()


def refused(slicer: Slicer, *line: str) -> Done:
    command = ["slicer", *line]
    done = subprocess.run(command, env=slicer.environ(), capture_output=True, text=True, check=False)
    assert done.returncode in (2, 125), done
    return Done(0, done.returncode, done.stdout, done.stderr)


def test_what_lies_in_place_of_the_control_log_is_not_waited_for(slicer: Slicer) -> None:  # S9
    job = Counting(slicer)
    place = Path(SYSTEM_LEDGER, f"{job.lease.job}.control")
    os.mkfifo(place)
    refused(slicer, "pause", "x")
    assert not job.is_frozen()
    assert halted(slicer, job.lease.job) is None
    slicer.command("stop", "x")
    assert job.job.end().code == 143
    assert not place.exists()


def test_slicer_leaves_nothing_of_a_pause_behind(slicer: Slicer) -> None:
    job = Counting(slicer)
    slicer.command("pause", "x")
    assert Path(SYSTEM_LEDGER, f"{job.lease.job}.control").exists()
    slicer.command("stop", "x")
    job.job.end()
    assert not list(Path(SYSTEM_LEDGER).glob("*.control"))
