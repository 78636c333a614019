"""``slicer run --detach``: as a service where that outlives the session, else as a process; the broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.users import User, stop_manager, user

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

ROOT: tuple[str, ...] = ()
SYSTEM = ("systemctl",)
SESSION = "detaching-session.service"


@pytest.fixture
def slicer(public_slicer: Slicer) -> Iterator[Slicer]:
    yield public_slicer
    for manager in (SYSTEM, user("alice").systemctl, user("bob").systemctl):
        for unit in services(manager):  # of a test that failed
            systemctl.output(*manager, "kill", "--signal=KILL", unit, check=False)


def services(manager: tuple[str, ...]) -> list[str]:
    """The services of detached jobs."""
    listed = systemctl.output(
        *manager, "list-units", "--plain", "--no-legend", "slicer-run-*.service", check=False
    )
    return [line.split()[0] for line in listed.splitlines() if line.startswith("slicer-run-")]


def detached(slicer: Slicer, *line: str, via: tuple[str, ...] = ROOT) -> tuple[str, Done]:
    done = slicer.run("--detach", *line, via=via)
    assert done.code == 0, done
    assert len(done.stdout) == 13, done
    return done.stdout.strip(), done


def shown(slicer: Slicer, job: str, via: tuple[str, ...] = ROOT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(slicer.command("show", "--json", job, via=via).stdout)
    return found


def has_printed(slicer: Slicer, job: str, what: str, via: tuple[str, ...] = ROOT) -> None:
    until(lambda: what in slicer.command("logs", job, via=via).stdout, f"it has printed {what!r}")


def file_of(slicer: Slicer, job: str, via: tuple[str, ...] = ROOT) -> dict[str, Any]:
    log = Path(shown(slicer, job, via)["log"])
    found: dict[str, Any] = json.loads(log.with_suffix(".json").read_text())
    return found


def cgroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("::")[2]


# -- where it runs ------------------------------------------------------------------------------------------


@pytest.mark.core
def test_roots_is_a_service_of_the_system_and_its_command_in_a_scope(slicer: Slicer) -> None:  # U1, K1
    gate = slicer.gate()
    job, done = detached(slicer, "--name", "x", "--", "sh", "-c", f"echo up; : < {gate}; exit 6")
    has_printed(slicer, "x", "up\n")
    assert services(SYSTEM) == [f"slicer-run-{job}.service"]
    assert f"slicer-run-{job}.service" in done.stderr
    found = shown(slicer, "x")
    assert found["running"]["unit"] == f"slicer-{job}.scope"
    assert found["running"]["limits"], found
    assert "MemoryMax" in slicer.command("show", "x").stdout
    assert cgroup_of(file_of(slicer, job)["pid"]).endswith(f"/slicer-run-{job}.service")
    gate.open()
    slicer.command("wait", "x", code=6)
    until(lambda: not services(SYSTEM), "the service is gone")
    assert slicer.outcome(job).log.endswith(f"/jobs/{job}.log")


@pytest.mark.core
def test_a_lingering_users_is_a_service_of_the_users_manager(slicer: Slicer, alice: User) -> None:  # U1
    gate = slicer.gate()
    job, done = detached(slicer, "--", "sh", "-c", f"echo up; : < {gate}", via=alice.via)
    has_printed(slicer, job, "up\n", alice.via)
    assert services(alice.systemctl) == [f"slicer-run-{job}.service"]
    assert "linger" not in done.stderr
    gate.open()
    slicer.command("wait", job, via=alice.via)
    until(lambda: not services(alice.systemctl), "the service is gone")


def test_without_linger_it_leaves_its_callers_unit_and_says_what_the_last_logout_does(slicer: Slicer) -> None:
    # U1
    bob = user("bob")
    systemctl.output("systemctl", "start", f"user@{bob.uid}.service")
    gate = slicer.gate()
    try:
        job, done = detached(slicer, "--", "sh", "-c", f"echo up; : < {gate}", via=bob.via)
        assert "loginctl enable-linger bob" in done.stderr
        has_printed(slicer, job, "up\n", bob.via)
        assert services(bob.systemctl) == [f"slicer-run-{job}.service"]
        gate.open()
        slicer.command("wait", job, via=bob.via)
    finally:
        stop_manager(bob)


@pytest.mark.core
def test_it_survives_the_end_of_the_session_that_started_it(slicer: Slicer, alice: User) -> None:  # U1
    gate = slicer.gate()
    said = slicer.path("said")
    said.touch()
    said.chmod(0o666)
    environ = [f"--setenv={name}={value}" for name, value in slicer.environ().items() if name != "HOME"]
    script = f"slicer run -d --name x -- sh -c 'echo up; : < {gate}; exit 4' > {said}; exec sleep 1000"
    systemctl.output(
        "systemd-run", "--quiet", "--collect", f"--unit={SESSION}", "--property=User=alice",
        "--property=PAMName=login",
        *environ, "sh", "-c", script,
    )  # fmt: skip
    job = until(lambda: said.read_text().strip(), "it is detached")
    has_printed(slicer, job, "up\n", alice.via)
    systemctl.output("systemctl", "kill", "--signal=KILL", SESSION)
    systemctl.output("systemctl", "stop", SESSION, check=False)
    assert shown(slicer, job, alice.via)["state"] == "running"
    gate.open()
    slicer.command("wait", job, via=alice.via, code=4)


def test_stopping_its_service_stops_the_job(slicer: Slicer) -> None:  # U1
    gate = slicer.gate()
    job, _ = detached(slicer, "--", "sh", "-c", f"echo up; : < {gate}")
    has_printed(slicer, job, "up\n")
    systemctl.output("systemctl", "stop", f"slicer-run-{job}.service")
    slicer.command("wait", job, code=143)


def start_16(slicer: Slicer, via: tuple[str, ...]) -> None:
    """Detach 16 jobs at the same moment, and await them all."""
    line = ("-q", "-d", "--", "sh", "-c", "exit 7")
    started = [slicer.start("--name", f"x{number}", *line, via=via) for number in range(16)]
    done = [each.end() for each in started]
    assert [each.code for each in done] == [0] * 16, done
    jobs = {each.stdout.strip() for each in done}
    ended = slicer.command("wait", *sorted(jobs), via=via, code=7).stdout
    assert (len(jobs), ended.count(": exit 7")) == (16, 16), ended


@pytest.mark.core
def test_of_many_that_start_at_once_none_is_lost(slicer: Slicer, alice: User) -> None:  # U23
    for via in (ROOT, alice.via):
        start_16(slicer, via)


# -- through the broker -------------------------------------------------------------------------------------


def test_of_many_that_start_at_once_through_the_broker_none_is_lost(
    slicer: Slicer, broker: Broker, ann: User
) -> None:  # U23
    start_16(slicer, ann.via)


def test_two_users_jobs_of_one_name_are_each_users_own(
    slicer: Slicer, broker: Broker, ann: User, ben: User
) -> None:  # U1, L1
    gate = slicer.gate()
    script = f"echo up; : < {gate}; exit 3"
    anns, _ = detached(slicer, "--name", "x", "-p", "heavy", "--", "sh", "-c", script, via=ann.via)
    has_printed(slicer, "x", "up\n", ann.via)
    bobs, done = detached(slicer, "--name", "x", "-p", "heavy", "--", "sh", "-c", script, via=ben.via)
    assert "waits" in done.stderr
    assert shown(slicer, "x", ann.via)["job"] == anns
    found = shown(slicer, "x", ben.via)
    assert (found["job"], found["state"]) == (bobs, "waiting")
    assert "alice" in found["waiting"]["why"]["text"] or "held by" in found["waiting"]["why"]["text"]
    slicer.command("logs", anns, via=ben.via, code=2)
    slicer.command("wait", anns, via=ben.via, code=2)
    assert "is a job of alice" in slicer.command("stop", anns, via=ben.via, code=2).stderr
    slicer.command("stop", "--mine", via=ben.via)
    assert shown(slicer, anns, ann.via)["state"] == "running"
    slicer.command("wait", bobs, via=ben.via, code=143)
    gate.open()
    slicer.command("wait", "x", via=ann.via, code=3)


def test_through_the_broker_a_job_outlives_its_supervisor(slicer: Slicer, broker: Broker, ann: User) -> None:
    # U1, L1, X3
    gate = slicer.gate()
    job, _ = detached(slicer, "--", "sh", "-c", f"echo up; : < {gate}; exit 5", via=ann.via)
    has_printed(slicer, job, "up\n", ann.via)
    systemctl.output("kill", "-9", str(file_of(slicer, job, ann.via)["pid"]))
    gate.open()
    slicer.command("wait", job, via=ann.via, code=5)
    assert "up\n" in slicer.command("logs", job, via=ann.via).stdout


def test_what_is_detached_through_the_broker_outlives_the_session_and_the_service_around_it(
    slicer: Slicer, broker: Broker, ben: User
) -> None:  # U1, L1
    gate, said = slicer.gate(), slicer.path("said")
    said.touch()
    said.chmod(0o666)
    (slicer.directory / "jobs.txt").write_text(f"[profile=heavy] echo queued > {slicer.path('queued')}\n")
    slicer.path("queued").touch()
    slicer.path("queued").chmod(0o666)
    run = f"slicer run -q -d -p heavy -- sh -c 'echo up; : < {gate}; exit 4'"
    queue = f"slicer queue {slicer.path('jobs.txt')} --log-dir $HOME/detached --fresh --detach --quiet"
    script = f"({run}; {run}; {queue}; grep -o '[^/]*$' /proc/self/cgroup) > {said} 2>&1; exec sleep 1000"
    environ = [f"--setenv={name}={value}" for name, value in slicer.environ().items() if name != "HOME"]
    systemctl.output(
        "systemd-run", "--quiet", "--collect", f"--unit={SESSION}", "--property=User=bob",
        "--property=PAMName=login", *environ, "sh", "-c", script,
    )  # fmt: skip
    runs, waits, *_, session = until(
        lambda: len(words := said.read_text().split()) >= 3 and words, "all are detached"
    )
    assert session.startswith("session-"), said.read_text()
    has_printed(slicer, runs, "up\n", ben.via)
    pids = [file_of(slicer, job, ben.via)["pid"] for job in (runs, waits)]
    assert [cgroup_of(pid).rpartition("/")[2] for pid in pids] == [
        f"slicer-run-{job}.scope" for job in (runs, waits)
    ]
    systemctl.output("systemctl", "stop", SESSION, session, f"user@{ben.uid}.service", check=False)
    assert [shown(slicer, job, ben.via)["state"] for job in (runs, waits)] == ["running", "waiting"]
    for job in (runs, waits):
        gate.open()
        slicer.command("wait", job, via=ben.via, code=4)
    until(lambda: "queued" in slicer.path("queued").read_text(), "the queue went on")


def test_a_process_in_a_job_gets_no_scope_without_a_lease(slicer: Slicer, broker: Broker, ann: User) -> None:
    # L1, K2
    code = (
        "import os; from slicer.broker.client import calls\n"
        "try: calls.detach('/run/slicer-broker/socket', '0' * 12, 'x', os.getpid())\n"
        "except Exception as error: print(error)"
    )
    done = slicer.run("--", "/opt/slicer/bin/python", "-c", code, via=ann.via)
    assert "it is in a job" in done.stdout, done


def test_a_job_begins_after_another_through_the_broker(slicer: Slicer, broker: Broker, ann: User) -> None:
    # U1
    gate = slicer.gate()
    detached(slicer, "--name", "first", "-p", "heavy", "--", "sh", "-c", f": < {gate}", via=ann.via)
    job, _ = detached(slicer, "--after", "first", "-p", "heavy", "--", "echo", "then", via=ann.via)
    assert shown(slicer, job, ann.via)["state"] == "after"
    gate.open()
    slicer.command("wait", job, via=ann.via)
    assert "then\n" in slicer.command("logs", job, via=ann.via).stdout
