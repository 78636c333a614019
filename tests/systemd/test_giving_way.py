"""Preemptible jobs in real scopes (U8); on simulated GPUs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.model import Lease
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Slicer, configured, leases

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

SIM_LEDGER = f"{SYSTEM_LEDGER}/sim-1x24G"
PROFILE = '[profiles.night]\ninherits = "gpu"\npreemptible = true\nmin_run = "0s"\ngrace = "{}"\n'
# Its end is no success: nobody learns from it how long such a job takes, and that it ends soon anyway.
TRAIN = "trap 'sleep 1; echo saved; exit 3' TERM; echo up; while :; do sleep 0.1; done"


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


def test_with_the_broker_no_job_gives_way_and_slicer_says_so(public: Slicer) -> None:  # U8
    done = public.run("--preemptible", "--cpu-slots", "1", "--", "true")
    assert done.code == 0, done
    assert "preemptible has no effect here: the broker asks no job to give way" in done.stderr
    public.path("jobs.txt").write_text("[gpus=0 slots=cpu preemptible] true\n")
    told = public.run("jobs.txt", "--log-dir", "logs", program="queue")
    assert told.code == 0, told
    assert "preemptible has no effect here" in told.stdout + told.stderr
