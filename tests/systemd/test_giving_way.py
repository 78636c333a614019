"""Preemptible jobs in real scopes (U8); on simulated GPUs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.model import Lease
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Slicer, configured, leases
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

SIM_LEDGER = f"{SYSTEM_LEDGER}/sim-1x24G"
PROFILE = '[profiles.night]\ninherits = "gpu"\npreemptible = true\nmin_run = "0s"\ngrace = "{}"\n'
# Its end is no success: nobody learns from it how long such a job takes, and that it ends soon anyway.
FOREVER = "while :; do sleep 0.1; done"
TRAIN = f"trap 'sleep 1; echo saved; exit 3' TERM; echo up; {FOREVER}"


@pytest.fixture
def env(slicer: Slicer, tmp_path: Path) -> Iterator[dict[str, str]]:
    yield configured(tmp_path, PROFILE.format("30s")) | {"SLICER_SIM": "1"}
    until(lambda: not leases(SIM_LEDGER), "the simulated ledger is empty")


def lease_of(name: str) -> Lease:
    return until(
        lambda: next((each for each in leases(SIM_LEDGER) if each.name == name and each.keeper), None),
        f"{name} runs",
    )


@pytest.mark.core
@pytest.mark.parametrize("happens", ["it is served", "it leaves", "the job is paused"])
def test_a_detached_job_gives_way_and_begins_again(
    slicer: Slicer, env: dict[str, str], happens: str
) -> None:  # U8
    options = ("-p", "night", "--name", "train")
    job = slicer.run("--detach", *options, "--", "sh", "-c", TRAIN, env=env).stdout.strip()

    def log() -> list[str]:
        return slicer.command("logs", job, **env).stdout.splitlines()

    until(lambda: log() == ["up"], "it runs")
    first = lease_of("train")
    if happens == "the job is paused":
        slicer.command("pause", "train", **env)
    waiter = slicer.start("--gpus", "1", "--name", "eval", "--", "true", env=env)
    if happens == "it leaves":
        until(lambda: lease_of("train").gives_way_to == "eval", "it gives way")
        waiter.kill(signal.SIGTERM)
    done = waiter.end()
    assert (done.code == 0) == (happens != "it leaves"), done
    again = ["up", "saved", "slicer: gave way to another job, and begins again", "up"]
    until(lambda: log() == again, "it runs again")
    second = lease_of("train")
    assert (second.job, second.unit, second.pid) == (job, first.unit, first.pid)
    assert second.keeper != first.keeper
    slicer.command("stop", "--grace", "5s", "train", **env)
    assert slicer.outcome(job).ended_by == "slicer stop"
    events = systemctl.journal("-t", "slicer", f"SLICER_JOB={job}")
    told = [each["MESSAGE"] for each in events if each["SLICER_EVENT"] in ("stopping", "finished")]
    assert told[0] == "train: gives way to eval"
    assert "exit 75 (stopped to give way to another job)" in told[1]


@pytest.mark.core
def test_who_ignores_the_signal_is_killed_after_its_grace(
    slicer: Slicer, env: dict[str, str], tmp_path: Path
) -> None:  # U8
    env |= configured(tmp_path, PROFILE.format("2s"))
    script = "trap : TERM; echo up; while :; do sleep 0.1; done"
    train = slicer.start("-p", "night", "--name", "train", "--", "sh", "-c", script, env=env)
    train.said("up")
    unit = lease_of("train").unit
    assert slicer.run("--gpus", "1", "--name", "eval", "--", "true", env=env).code == 0
    done = train.end()
    assert done.code == 75
    assert "gives way to eval" in done.told
    outcome = slicer.outcome_of(done)
    assert (outcome.unit, outcome.ended_by, outcome.signal) == (unit, "gave way", signal.SIGKILL)
    assert not [pid for pid in processes.pids() if unit in processes.cgroup(pid)]
    shown = json.loads(slicer.command("status", "--json", **env).stdout)
    assert shown["jobs"] == shown["waiting"] == []


@pytest.fixture
def public(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker."""
    yield from leaving_nothing(public_slicer, broker)


HERS = ("--cpu-slots", "1", "--gpus", "2", "-p", "night", "--name", "train")


@pytest.fixture
def night(public: Slicer, broker: Broker) -> Slicer:
    """A profile of the administrator's, for jobs that give way at once."""
    broker.configure("[slots]\ncpu = 1\n" + PROFILE.format("30s"))
    return public


def status(slicer: Slicer, who: User) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(slicer.command("status", "--json", via=who.via).stdout)
    return found


def noted(broker: Broker, job: str) -> str:
    return broker.lease(job)["GIVES_WAY_TO"] if job in broker.leases() else ""


# U8, L1
@pytest.mark.core
@pytest.mark.parametrize("happens", ["it is served", "it leaves", "the broker is killed"])
def test_a_users_detached_job_gives_way_to_anothers(
    night: Slicer, broker: Broker, ann: User, ben: User, happens: str
) -> None:
    finish = night.path("finish")
    saves = f"echo saving; until test -e {finish}; do sleep 0.1; done; exit 3"
    script = f"trap '{saves}' TERM; echo up; {FOREVER}"
    job = night.run("--detach", *HERS, "--", "sh", "-c", script, via=ann.via).stdout.strip()

    def log() -> list[str]:
        return night.command("logs", job, via=ann.via).stdout.splitlines()

    until(lambda: log() == ["up"], "it runs")
    waiter = night.start("--gpus", "1", "--name", "eval", "--", "true", via=ben.via)
    until(lambda: log()[-1] == "saving", "it is asked")
    (shown,) = status(night, ben)["jobs"]
    assert (shown["preemptible"], shown["gives_way_to"], shown["command"]) == (True, "eval", "")
    assert 0 < shown["gives_way_in"] <= 37
    if happens == "it leaves":
        waiter.kill(signal.SIGTERM)
        waiter.end()
    elif happens == "the broker is killed":
        broker.kill()
        until(lambda: [each["name"] for each in status(night, ben)["waiting"]] == ["eval"], "it is back")
    finish.touch()
    if happens != "it leaves":
        assert waiter.end().code == 0
    until(lambda: log().count("up") == 2, "it runs again")
    assert log() == ["up", "saving", "slicer: gave way to another job, and begins again", "up"]
    assert noted(broker, job) == ""
    night.command("stop", job, via=ann.via)
    assert night.outcome(job, ann.history).ended_by == "slicer stop"


def test_in_the_foreground_it_ends_with_75_also_for_ones_own_job(
    night: Slicer, broker: Broker, ann: User
) -> None:  # U8, L1
    train = night.start(*HERS, "--", "sh", "-c", TRAIN, via=ann.via)
    train.said("up")
    (job,) = broker.leases()
    assert night.run("--gpus", "1", "--name", "eval", "--", "true", via=ann.via).code == 0
    done = train.end()
    assert (done.code, "gives way to eval" in done.told) == (75, True)
    assert night.outcome(job, ann.history).ended_by == "gave way"


# U8, L1: nobody gets round it by a supervisor that does nothing
@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGSTOP])
def test_the_broker_ends_what_its_supervisor_does_not(
    night: Slicer, broker: Broker, ann: User, ben: User, signo: signal.Signals
) -> None:
    train = night.start(*HERS, "--", "sh", "-c", TRAIN, via=ann.via)
    train.said("up")
    (job,) = broker.leases()
    train.kill(signo)
    assert night.run("--gpus", "1", "--name", "eval", "--", "true", via=ben.via).code == 0
    assert "saved" in train.stdout
    if signo == signal.SIGSTOP:
        train.kill(signal.SIGCONT)
        assert train.end().code == 75
    assert night.outcome(job, ann.history).ended_by == "gave way"


# U8, L1
def test_a_line_of_a_users_queue_runs_again(night: Slicer, ann: User, ben: User) -> None:
    once = night.path("once")
    night.path("train.sh").write_text(f"trap 'touch {once}; exit 3' TERM; test -e {once} && exit; {FOREVER}")
    hers = Queues(night, ann.via)
    hers.write("[profile=night gpus=0 slots=cpu name=train] sh train.sh")
    queue = hers.start()
    queue.told("started", 1)
    assert night.run("--cpu-slots", "1", "--name", "eval", "--", "true", via=ben.via).code == 0
    assert queue.told("requeued", 1)["why"] == "it gave way to another job"
    assert queue.end().code == 0


# U8, L3
def test_what_gives_way_is_free_of_caps_if_the_policy_says_so(
    night: Slicer, broker: Broker, ann: User
) -> None:
    broker.configure("[slots]\ncpu = 1\n" + PROFILE.format("5s"), "[default]\nmax_gpus = 1\n")
    refused = night.run(*HERS, "--no-wait", "--", "true", via=ann.via)
    assert "but alice may hold 1 GPU at a time" in refused.stderr
    broker.configure(
        "[slots]\ncpu = 1\n" + PROFILE.format("5s"), "preemptible_free = true\n[default]\nmax_gpus = 1\n"
    )
    train = night.start(*HERS, "--", "sh", "-c", TRAIN, via=ann.via)
    train.said("up")
    assert night.run("--gpus", "1", "--", "true", via=ann.via).code == 0
    assert train.end().code == 75
