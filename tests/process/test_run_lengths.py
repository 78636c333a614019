"""How long jobs should run: where it is known from, and who goes first by it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from slicer.model import Ticket
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate
from tests.process.queue_box import QueueBox

pytest_plugins = ["tests.fake_nvml"]

NOTES = ("sh", "-c", 'echo "start $SLICER_NAME $$" >>"$LOG"')


def hold(box: Box, gate: Gate) -> None:
    process = box.start(
        "-q", "--gpus", "2", "--", "sh", "-c", f'echo "start holder $$" >>"$LOG"; read x <"{gate.path}"'
    )
    until(lambda: box.started("holder") or process.poll() is not None, "the holder runs")


def wait(box: Box, name: str, *options: str) -> Ticket:
    """A job for both GPUs that has to wait; its ticket."""
    box.wait_in_line(name, options=("--gpus", "2", *options))
    return next(each for each in box.tickets() if each.name == name)


def status(box: Box) -> str:
    return subprocess.run(
        [*SLICER, "status", "--json"], env=box.env, capture_output=True, text=True, check=True
    ).stdout


def names(box: Box) -> list[str]:
    return [line.split()[1] for line in box.lines() if line.startswith("start ")]


# U7: of a command that ran before, by the same user
@pytest.mark.usefixtures("gpus")
def test_earlier_runs_tell_how_long_a_command_runs(box: Box, gate: Gate) -> None:
    script = box.root / "train.sh"
    script.write_text("#!/bin/sh\nexit $1\n")
    script.chmod(0o755)
    for code in ("0", "7", "0"):  # a failed run says nothing
        box.run("-q", "--gpus", "1", "--", str(script), code)
    text = (box.state / "lengths").read_text()
    lengths_s = sorted(map(float, text.split("train.sh=")[1].splitlines()[0].split(",")))
    assert len(lengths_s) == 2
    est_s = float(round(2 * lengths_s[1]))  # in whole seconds, and 0 but for a busy machine
    hold(box, gate)
    process = box.start("-q", "--name", "next", "--gpus", "1", "--", str(script), "0")
    until(lambda: box.tickets(), "it waits")
    (ticket,) = box.tickets()
    assert (ticket.est_s, ticket.est_from, ticket.expect_s) == (est_s, "runs", None)
    shown = json.loads(status(box))["waiting"][0]
    assert shown["estimate"] == {"seconds": est_s, "from": "runs", "likely": est_s / 2}
    assert shown["expected"] is None
    gate.open()
    assert process.wait(LONGEST_S) == 0
    box.assert_clean()


# U7
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("config", "expected"), [("", ["short", "long"]), ('order = "arrival"', ["long", "short"])]
)
def test_short_jobs_go_first_unless_arrival_counts(
    box: Box, gate: Gate, config: str, expected: list[str]
) -> None:
    path = box.root / "config.toml"
    path.write_text(f"[waiting]\n{config}\n")
    path.chmod(0o644)
    box.env["SLICER_CONFIG"] = str(path)
    hold(box, gate)
    long = wait(box, "long", "--expect", "2h")
    short = wait(box, "short", "--expect", "2h", "--timeout", "10m")
    assert [(each.est_s, each.est_from) for each in (long, short)] == [(7200.0, "expect"), (600.0, "limit")]
    waiting = json.loads(status(box))["waiting"]
    assert [each["name"] for each in waiting] == expected
    gate.open()
    until(lambda: len(names(box)) == 3, "all have run")
    assert names(box) == ["holder", *expected]
    until(lambda: not box.snapshot().leases, "all have ended")
    box.assert_clean()


# U7, E4
def test_a_line_says_how_long_it_runs(make_box: Callable[[int], Box]) -> None:
    queues = QueueBox(make_box(4), gpus=1)
    queues.write("hold a")
    queue = queues.start()
    queues.started("a")
    queues.append("[expect=2h] job b", "[expect=1m] job c", "[expect=61s] job d")
    assert queue.event("file-changed")["added"] == 3
    until(lambda: {each.est_s for each in queues.snapshot().tickets} == {60.0, 7200.0}, "they wait")
    queues.let("a")
    assert queue.wait() == 0
    assert names(queues.box) == list("acdb")
    queues.assert_clean()
