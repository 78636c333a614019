"""What jobs use over time, by real cgroups: in the history, and in the accounts of all users. (X8, L5)"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.systemd.helpers.broker import Broker, holds, leaving_nothing
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User

pytest_plugins = [
    "tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures", "tests.fake_nvml",
]  # fmt: skip
pytestmark = pytest.mark.systemd

# Three samples: the first is taken two seconds after the start.
BUSY = "end=$(($(date +%s) + 5)); while [ $(date +%s) -lt $end ]; do :; done"
IDLE = "sleep 5"


def samples(slicer: Slicer, job: str, *options: str, **more: Any) -> dict[str, Any]:
    done = slicer.command("history", job, "--json", *options, **more)
    found = json.loads(done.stdout)["samples"]
    assert found is not None, done.stdout
    return found


def check_busy(found: dict[str, Any]) -> None:
    assert len(found["cpu"]) >= 2
    assert min(found["cpu"]) > 0.02, found  # on a busy machine, too; who sleeps uses a tenth of that
    assert None not in found["stalled_cpu"]


def test_a_jobs_use_over_time_is_kept(slicer: Slicer, fake_nvml: FakeNvml) -> None:
    """Of its scope, and of its GPUs; `--plot` draws both."""
    script = f"{USE}use 1 2000; {BUSY}"
    options = ("--name", "busy", "--gpu", "1", "--vram", "4G")
    assert slicer.run(*options, "--", "sh", "-c", script, env=fake_nvml.env).code == 0
    found = samples(slicer, "busy")
    check_busy(found)
    (gpu,) = found["gpus"]
    assert (set(gpu["mib"]), set(gpu["busy"])) == ({2000}, {0})
    shown = slicer.command("history", "busy", "--plot").stdout
    assert "GPU 1 memory  4.0G" in shown
    assert "CPUs in use" in shown


def test_a_short_job_has_no_samples(slicer: Slicer) -> None:
    assert slicer.run("--name", "short", "--", "true").code == 0
    told = slicer.command("history", "short", "--plot", code=125)
    assert "there are no samples of short" in told.stderr


def test_a_queue_samples_its_jobs(slicer: Slicer) -> None:
    made = Queues(slicer)
    made.write(*(f"[gpus=0] {each}" for each in (BUSY, IDLE, "true")))
    assert made.run().code == 0
    busy, idle = (samples(slicer, made.job_id(number)) for number in (1, 2))
    check_busy(busy)
    assert max(idle["cpu"]) < min(0.5, *busy["cpu"])
    assert json.loads(slicer.command("history", made.job_id(3), "--json").stdout)["samples"] is None


@pytest.fixture
def public(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker, for every user."""
    yield from leaving_nothing(public_slicer, broker)


def test_the_accounts_have_the_samples_of_all_users(
    public: Slicer, broker: Broker, ann: User, ben: User
) -> None:
    mine = public.start("--name", "mine", "--", "sh", "-c", BUSY, via=ann.via)
    made = Queues(public, ben.via)
    made.write(f"[gpus=0] {BUSY}")
    assert made.run().code == 0
    assert mine.end().code == 0
    check_busy(samples(public, "mine", via=ann.via))
    for job in ("mine", made.job_id(1)):
        until(lambda job=job: samples(public, job, "--all-users"), "the accounts have them")
        check_busy(samples(public, job, "--all-users"))
    assert "CPUs in use" in public.command("history", "mine", "--all-users", "--plot").stdout


def test_a_jobs_own_history_has_its_samples_whatever_the_broker_does(
    public: Slicer, broker: Broker, ann: User
) -> None:
    job = public.start("--name", "alone", "--", "sh", "-c", f"echo up; {BUSY}", via=ann.via)
    job.said("up")
    pid = until(lambda: broker.pid, "the broker runs")
    os.kill(pid, signal.SIGSTOP)  # its answers are waited for, but not for long
    try:
        assert job.end().code == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    check_busy(samples(public, "alone", via=ann.via))


def test_a_killed_supervisor_costs_the_samples_alone(public: Slicer, ann: User) -> None:
    job, gate = holds(public, ann, "--name", "lost")
    job.kill(signal.SIGKILL)
    gate.open()
    until(lambda: "lost" in public.command("history", via=ann.via).stdout, "its keeper has kept the outcome")
