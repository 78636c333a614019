"""Every job that began is in the history, once: without room there, and without anybody who saw its end.

A holder keeps mounts of its own, in which small file systems lie in the places of slicer's files.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.outcome import history
from slicer.record import replace
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, kill_9, mounting
from tests.process.test_run_detach import PLAIN, detached, slicer, waits_at

FULL = ("blocks", "inodes")


class Disk:
    """A small file system at a directory, which only the box's commands see."""

    def __init__(self, box: Box, at: Path) -> None:
        self.options = ("--output", f"{at}/x") if at.name == "logs" else ()
        at.mkdir(parents=True, exist_ok=True)
        script = 'mount -t tmpfs -o size=256k,nr_inodes=64,mode=700 none "$0" && echo ready'
        self._holder = subprocess.Popen(
            [*mounting(script, at), "sleep", "infinity"], env=box.env, stdout=subprocess.PIPE
        )
        box.adopt(self._holder)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        pid = self._holder.pid
        there = ("sh", "-c", 'cd "$0" && exec "$@"', str(box.root))
        box.prefix = ("nsenter", f"--mount=/proc/{pid}/ns/mnt", *there)
        self.path = Path(f"/proc/{pid}/root{at}")

    def fill(self, how: str) -> None:
        try:
            for number in itertools.count():
                with open(self.path / f"filler-{number}", "wb") as filler:
                    if how == "blocks":
                        filler.write(bytes(4096))
        except OSError:
            return

    def empty(self) -> None:
        for filler in self.path.glob("filler-*"):
            filler.unlink()


def jobs_in_history(box: Box) -> list[str]:
    """Their ids, as `slicer history` sees them."""
    said = slicer(box, "history", "--json", "-n", "0").stdout
    return [each["job"] for each in json.loads(said)["outcomes"]]


@pytest.fixture
def disk(box: Box, request: pytest.FixtureRequest) -> Iterator[Disk]:
    yield Disk(box, {"history": box.var_lib, "state": box.state, "log": box.root / "logs"}[request.param])
    box.prefix = ()


# X3: no exit code is lost
@pytest.mark.parametrize("disk", ["history"], indirect=True)
@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("is_known", [True, False], ids=["a history", "no history yet"])
def test_a_history_without_room_at_the_end_gets_the_outcome_later(
    box: Box, gate: Gate, second_gate: Gate, disk: Disk, full: str, is_known: bool
) -> None:
    if is_known:
        slicer(box, *PLAIN, "--", "true")
    job = detached(box, "--name", "x", "--", *waits_at(gate, "exit 7"))
    waiting = box.start("--name", "fore", "-q", "--", *waits_at(second_gate, "exit 6"))
    until(lambda: len(box_leases(box)) == 2, "both run")
    disk.fill(full)
    gate.open()
    slicer(box, "wait", job, code=7)
    second_gate.open()
    assert waiting.wait(LONGEST_S) == 6
    assert waiting.stderr is not None
    said = waiting.stderr.read().decode()
    assert "until then its outcome is kept in memory" in said
    assert ("No space left on device" in said, "permissions" in said) == (True, False), said
    slicer(box, "wait", "fore", code=6)
    slicer(box, *PLAIN, "-q", "--after", "x:failed", "--", "true")
    assert "not in the history yet: " in slicer(box, "history", code=None).stderr
    disk.empty()
    found = jobs_in_history(box)
    assert (len(found), len(set(found))) == (3 + is_known, 3 + is_known)
    assert "exit 7" in slicer(box, "history", "x").stdout
    assert "exit 6" in slicer(box, "history", "fore").stdout
    assert not [path for path in box.state.iterdir() if path.name.endswith(history.KEPT)]


def box_leases(box: Box) -> list[str]:
    return [path.name for path in (box.state / "leases").glob("*")]


# X3: of one that never ran, too
@pytest.mark.parametrize("disk", ["history"], indirect=True)
@pytest.mark.parametrize("full", FULL)
def test_a_disk_that_is_full_keeps_the_end_of_a_job_that_never_ran(
    box: Box, gate: Gate, disk: Disk, full: str
) -> None:
    holder = box.start("-p", "heavy", "--name", "holder", "--", *waits_at(gate))
    until(lambda: box_leases(box), "it runs")
    job = detached(box, "-p", "heavy", "--name", "x", "--", "true")
    disk.fill(full)
    assert "no longer waits" in slicer(box, "stop", "x").stdout
    slicer(box, "wait", job, code=143)
    gate.open()
    holder.wait(LONGEST_S)


# D8: each directory at each moment
@pytest.mark.parametrize("disk", ["state", "history", "log"], indirect=True)
@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("moment", ["start", "run"])
def test_a_full_directory_costs_no_exit_code(
    box: Box, gate: Gate, disk: Disk, full: str, moment: str
) -> None:
    slicer(box, *PLAIN, "--", "true")
    if moment == "start":
        disk.fill(full)
        done = slicer(box, *PLAIN, "-d", *disk.options, "--", "sh", "-c", "exit 3", code=None)
        if done.returncode:
            assert (done.returncode, done.stdout) == (2 if disk.options else 125, "")
            assert "No space left" in done.stderr
            disk.empty()
        else:
            slicer(box, "wait", done.stdout.strip(), code=3)
        return
    more = "head -c 1M /dev/zero; exit 3" if disk.options else "exit 3"
    job = detached(box, *disk.options, "--", *waits_at(gate, more))
    disk.fill(full)
    gate.open()
    slicer(box, "wait", job, code=3)
    disk.empty()
    assert job in jobs_in_history(box)


# X3: every job that began is in the history, once
@pytest.mark.parametrize("victims", ["together", "one after the other"])
def test_a_job_that_was_killed_together_with_slicer_is_in_the_history(
    box: Box, gate: Gate, victims: str
) -> None:
    job = box.hold(gate, name="victim")
    kill_9(job.outer, job.keeper, job.command) if victims == "together" else kill_9(job.outer, job.keeper)
    if victims != "together":
        gate.open()
        until(lambda: not box.snapshot().leases, "its command has ended")
    look = [*SLICER, "history", "victim"]
    looking = [subprocess.Popen(look, env=box.env, stdout=subprocess.PIPE) for _ in range(4)]
    for each in looking:  # U23: several at once
        out, _ = each.communicate(timeout=LONGEST_S)
        assert b"lost, exit code 125" in out
    (found,) = box.outcomes()
    assert (found.job, found.reason, found.exit_code) == (job.lease.job, "unknown", 125)
    assert found.command[:2] == ("sh", "-c")
    box.assert_clean()


# X3: whoever ends next writes it, too
def test_the_next_job_writes_what_the_ledger_kept(box: Box, gate: Gate) -> None:
    job = box.hold(gate, name="victim")
    kill_9(job.outer, job.keeper, job.command)
    assert box.run("-p", "heavy", "-q", "--", "true").returncode == 0
    assert box.outcomes()[0].job == job.lease.job
    assert len(box.outcomes()) == 2


def test_what_a_killed_keeper_noted_replaces_that_nobody_saw_it(box: Box, gate: Gate) -> None:  # X3
    job = box.hold(gate, name="victim")
    kill_9(job.outer, job.keeper, job.command)
    slicer(box, "history")
    (lost,) = box.outcomes()
    history.append(replace(lost, reason="exited", exit_code=3), box.history)
    assert [(each.reason, each.exit_code) for each in box.outcomes()] == [("exited", 3)]
