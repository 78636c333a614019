"""``slicer run -d --retry``: a job that failed runs again, after a pause (U8, U19); on simulated GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.errors import EX_SLICER
from slicer.model import Lease
from slicer.state import statefile
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, kill_9, state_of
from tests.process.queue_box import QueueBox
from tests.process.test_run_detach import slicer

# It notes its starts, and fails until it has started as often as its argument says.
TRAIN = """\
echo "start train $$" >>"$LOG"
echo out
[ "$(grep -c '^start train' "$LOG")" -ge {} ] || exit 3
"""


class Night:
    """A machine with one GPU."""

    def __init__(self, box: Box) -> None:
        self.box = box
        box.env["SLICER_SIM"] = "1"

    def shorten(self) -> None:
        """Have pauses last 0.1 s and 0.2 s."""
        site = self.box.root / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text("import slicer.retry\nslicer.retry._PAUSE_S = 0.1\n")
        self.box.env["PYTHONPATH"] = f"{site}:{self.box.env['PYTHONPATH']}"

    def slicer(self, *line: str, code: int | None = 0) -> str:
        done = slicer(self.box, *line, code=code)
        return done.stdout or done.stderr

    def detach(self, script: str, *options: str) -> str:
        line = ("--backend", "plain", "--gpus", "1", "--name", "train", *options, "--", "sh", "-c", script)
        return self.slicer("run", "-d", *line).split()[-1]

    def in_pause(self, *options: str) -> str:
        """A job that waits for its second attempt; its id."""
        job = self.detach(TRAIN.format(9), "--retry", "any:2", *options)
        until(lambda: self.shown(job)["again"] == "attempt 2 of 3", "it waits for its second attempt")
        return job

    def shown(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.slicer("show", "--json", job))
        return found

    def starts(self) -> int:
        return sum(line.startswith("start train") for line in self.box.lines())

    def supervisor(self, job: str) -> int:
        path = self.box.var_lib / "slicer" / "jobs" / f"{job}.json"
        return int(json.loads(path.read_text())["pid"])

    def lease(self, job: str) -> Lease:
        path = self.box.state / "sim-1x24G" / "leases" / job
        return statefile.decode(Lease, path.read_bytes())

    def assert_clean(self) -> None:
        until(lambda: not self.box.processes(), f"no process is left; {self.box.describe()}")
        status = json.loads(self.slicer("status", "--json"))
        assert status["jobs"] == status["waiting"] == status["later"] == []


@pytest.fixture
def night(box: Box) -> Night:
    return Night(box)


# U8: with the same id, in the same log, which says why and when; it has one outcome, with all attempts
def test_a_job_that_failed_runs_again_in_the_same_log(night: Night) -> None:
    night.shorten()
    job = night.detach(TRAIN.format(3), "--retry", "any:2", "--no-wait")
    assert "train: exit 0" in night.slicer("wait", job)
    log = night.slicer("logs", job).splitlines()
    assert [line.partition(", at ")[0] for line in log] == [
        "out", "slicer: failed with exit code 3 (attempt 1 of 3): again in 100ms",
        "out", "slicer: failed with exit code 3 (attempt 2 of 3): again in 200ms", "out",
    ]  # fmt: skip
    (outcome,) = json.loads(night.slicer("history", "--json"))["outcomes"]
    assert (outcome["job"], outcome["exit_code"]) == (job, 0)
    assert [(each["number"], each["exit_code"]) for each in outcome["attempts"]] == [(1, 3), (2, 3), (3, 0)]
    assert all(each["gpus"] and each["started_at"] for each in outcome["attempts"])
    assert "attempt 2" in night.slicer("show", job)
    assert night.starts() == 3
    night.assert_clean()


def test_the_pause_is_shown_and_a_stop_in_it_ends_the_job(night: Night) -> None:  # U8, U15
    said = night.box.root / "outcome.json"
    job = night.in_pause("--outcome", str(said))
    follower = subprocess.Popen(
        [*SLICER, "logs", "-f", job],
        env=night.box.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert night.slicer("wait", "--max-wait", "0", job, code=124)
    assert "(attempt 2 of 3)" in night.slicer("status")
    assert "(attempt 2 of 3)" in night.slicer("show", job)
    shown = night.shown(job)
    assert shown["state"] == "after"
    assert [each["exit_code"] for each in shown["attempts"]] == [3]
    (later,) = json.loads(night.slicer("status", "--json"))["later"]
    assert (later["job"], later["again"]) == (job, "attempt 2 of 3")
    assert "waits, and has no process yet" in night.slicer("pause", "train", code=2)
    assert json.loads(night.slicer("status", "--json"))["jobs"] == []
    assert "no longer waits" in night.slicer("stop", "train")
    assert "train: exit 3" in night.slicer("wait", job, code=3)
    assert "exit 3" in follower.communicate(timeout=LONGEST_S)[0].splitlines()[-1]
    assert "attempt 2 of 3 never began" in night.slicer("show", job)
    (outcome,) = night.box.outcomes()
    assert (outcome.exit_code, len(outcome.attempts)) == (3, 1)
    assert json.loads(said.read_text())["attempts"] == night.shown(job)["attempts"]
    assert night.starts() == 1
    night.assert_clean()


# U8, K4: nobody runs it again, and everybody is told
def test_a_job_that_is_killed_in_the_pause_is_said_to_be_lost(night: Night) -> None:
    job = night.in_pause()
    kill_9(night.supervisor(job))
    assert "it was killed before attempt 2 of 3 began" in night.slicer("wait", job, code=EX_SLICER)
    shown = night.shown(job)
    assert (shown["state"], shown["why"]) == ("ended", "it was killed before attempt 2 of 3 began")
    assert [each["reason"] for each in shown["attempts"]] == ["exited"]
    assert night.starts() == 1
    night.assert_clean()


# U8, K4: also before it begins to pause, once its keeper need not write the outcome any more
def test_a_job_that_is_killed_before_its_pause_is_said_to_be_lost(night: Night) -> None:
    night.box.env["SLICER_FAULTS"] = f"{night.box.state}:supervisor-told-keeper"
    job = night.detach(TRAIN.format(9), "--retry", "any:2")
    supervisor = night.supervisor(job)
    until(lambda: state_of(supervisor) == "T", "it has decided")
    kill_9(supervisor)
    assert "it was killed before attempt 2 of 3 began" in night.slicer("wait", job, code=EX_SLICER)
    assert [each["exit_code"] for each in night.shown(job)["attempts"]] == [3]
    night.assert_clean()


# U8, K4: its keeper tells of all attempts, and runs it no more
def test_the_supervisor_may_be_killed_during_the_last_attempt(night: Night) -> None:
    night.shorten()
    finish = night.box.root / "finish"
    waits = f'[ "$(wc -l <"$LOG")" = 1 ] || while [ ! -e {finish} ]; do sleep 0.05; done; exit 4'
    job = night.detach(f"{TRAIN.format(0)}\n{waits}", "--retry", "any:9")
    until(lambda: night.starts() == 2 and not night.shown(job)["again"], "it runs again")
    kill_9(night.supervisor(job))
    finish.touch()
    (outcome,) = until(night.box.outcomes, "it has ended")
    assert [each.exit_code for each in outcome.attempts] == [4, 4]
    assert night.starts() == 2
    night.assert_clean()


# U8: what lives on holds its GPU, and no other attempt begins beside it
def test_the_keeper_may_be_killed_while_a_later_attempt_lingers(night: Night) -> None:
    night.shorten()
    script = TRAIN.format(2) + 'sleep 600 & echo "start later $!" >>"$LOG"; wait'
    job = night.detach(script, "--linger", "--retry", "any:9")
    later = until(lambda: next((s for s in night.box.lines() if "later" in s), ""), "it runs again")
    supervisor = night.supervisor(job)
    kill_9(night.lease(job).keeper)
    until(lambda: not state_of(supervisor), "its process has ended")
    assert night.starts() == 2
    (outcome,) = night.box.outcomes()
    assert [each.number for each in outcome.attempts] == [1, 2]
    os.kill(int(later.split()[-1]), signal.SIGKILL)
    night.assert_clean()


def test_a_stop_while_it_runs_is_a_stop(night: Night) -> None:
    job = night.detach(f"{TRAIN.format(1)} sleep 600", "--retry", "any:2")
    until(lambda: night.starts() == 1, "it runs")
    night.slicer("stop", job)
    (outcome,) = until(night.box.outcomes, "it is written, a moment after the lease is gone")
    assert (outcome.ended_by, outcome.attempts) == ("slicer stop", ())
    night.assert_clean()


# U8, U15: whoever stopped it has seen it run, and it is not to run again a pause later
def test_a_stop_that_comes_a_moment_after_its_failure_is_a_stop(night: Night) -> None:
    state = night.box.state
    night.box.env["SLICER_FAULTS"] = f"{state}:ending-finished"
    job = night.detach(TRAIN.format(9), "--retry", "any:2")
    supervisor = night.supervisor(job)
    until(lambda: state_of(supervisor) == "T", "its process has not yet decided")
    stop = subprocess.Popen([*SLICER, "stop", job], env=night.box.env)
    until(
        lambda: [each for each in state.glob(f"sim-*/{job}.control") if b"stop" in each.read_bytes()],
        "it is told",
    )
    Path(f"{state}.go").touch()
    os.kill(supervisor, signal.SIGCONT)
    assert stop.wait(LONGEST_S) == 0
    assert "never began" in night.slicer("show", job)
    assert night.starts() == 1
    night.assert_clean()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (("--retry", "any:2"), "--retry: goes with --detach"),
        (("-d", "--retry", "any"), "--retry: expected as in any:2"),
        (("-d", "--retry", "oom:2"), "--retry: expected as in any:2"),
        (("-d", "--exec", "--retry", "any:2"), "--detach cannot go with --exec"),
    ],
)
def test_what_cannot_be_is_refused(night: Night, line: tuple[str, ...], error: str) -> None:  # U8
    assert error in night.slicer("run", *line, "--", "true", code=2)
    assert night.box.lines() == []


# U8: a profile says it for detached jobs and for lines of jobs files; a line may say otherwise
def test_a_profile_says_how_often(box: Box) -> None:
    queues = QueueBox(box, gpus=1)
    night = Night(box)
    night.shorten()
    queues.config('[profiles.night]\ninherits = "gpu"\nretry = "any:1"\n')
    job = night.detach(TRAIN.format(2), "-p", "night")
    night.slicer("wait", job)
    done = box.run("-p", "night", "--", "sh", "-c", "exit 3")  # in the foreground it runs once
    assert done.returncode == 3
    queues.write("[profile=night name=a] echo a >>$LOG; exit 3", "[profile=night retry=any:0 name=b] exit 3")
    assert queues.run().process.returncode == 3
    attempts = {state.name: state.attempts for state in queues.journal().values()}
    assert attempts == {"a": 2, "b": 1}
