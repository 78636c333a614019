"""Processes that leave their job's scope, as `systemd-run --user --scope` has every user do (S13)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

# It is a daemon by then: its parent has ended.
LEAVES = """
systemd-run --user --scope --quiet {options} sh -c 'echo $$ > {note}; exec sleep infinity' &
while ! [ -s {note} ]; do sleep 0.05; done
tail -n1 /proc/$(cat {note})/cgroup
"""


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker, for every user."""
    yield from leaving_nothing(public_slicer, broker)


def is_alive(note: Path) -> bool:
    return os.path.exists(f"/proc/{note.read_text().strip()}")


@pytest.mark.parametrize("unit", ["away.scope", "slicer-0123456789ab.scope"])
def test_who_leaves_the_scope_is_the_jobs_and_holds_its_lease(  # K2, S13
    slicer: Slicer, alice: User, bob: User, unit: str
) -> None:
    note = slicer.directory / "pid"
    script = LEAVES.format(note=note, options=f"--unit={unit}")
    job = slicer.start("-p", "heavy", "--linger", "--", "sh", "-c", script, via=alice.via)
    left = until(lambda: job.stdout, "it has left")
    assert f"/user@{alice.uid}.service/" in left
    assert left.strip().endswith(f"/{unit}")
    # The command has ended by then, or soon: what it left behind is waited for.
    until(lambda: len(slicer.command("status", via=bob.via).stdout.splitlines()) > 1, "the job is shown")
    for _ in range(3):
        assert slicer.run("-p", "heavy", "--no-wait", "--", "true", via=bob.via).code == 75
    os.kill(int(note.read_text()), 9)
    assert job.end().code == 0
    assert slicer.run("-p", "heavy", "--no-wait", "--", "true", via=bob.via).code == 0


def test_who_leaves_the_scope_ends_with_the_job(slicer: Slicer, alice: User) -> None:  # S13
    note = slicer.directory / "pid"
    script = LEAVES.format(note=note, options="")
    done = slicer.run("-p", "heavy", "--", "sh", "-c", script, via=alice.via)
    assert done.code == 0
    assert f"/user@{alice.uid}.service/" in done.stdout
    assert not is_alive(note)


def test_a_time_limit_ends_who_left_the_scope(slicer: Slicer, alice: User) -> None:  # S13
    note = slicer.directory / "pid"
    deaf = f"trap '' TERM; echo $$ > {note}; while :; do sleep 0.2; done"
    leaves = ("systemd-run", "--user", "--scope", "--quiet", "sh", "-c", deaf)
    limits = ("--timeout", "1s", "--set", "TimeoutStopSec=2s")
    done = slicer.run("-p", "heavy", *limits, "--", *leaves, via=alice.via)
    assert done.code == 124
    assert not is_alive(note)


ORPHANED_INSIDE = """
slicer run -p heavy -- sh -c 'echo $$ > {note}; : < {gate}' &
while ! [ -s {note} ]; do sleep 0.05; done
kill -9 $!
"""


def test_a_job_that_was_started_inside_is_another_one(slicer: Slicer, alice: User) -> None:  # A11
    gate, note = slicer.gate(), slicer.directory / "pid"
    script = ORPHANED_INSIDE.format(note=note, gate=gate)
    assert slicer.run("--", "sh", "-c", script, via=alice.via).code == 0
    assert is_alive(note)
    gate.open()
    until(lambda: not is_alive(note), "it ends")
