"""Preemptible jobs give way to others, and run again (U8); on simulated GPUs."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.errors import EX_TEMPFAIL
from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate, kill, kill_9
from tests.process.queue_box import QueueBox, Running
from tests.process.test_run_detach import slicer

CONFIG = """\
[profiles.night]
inherits = "gpu"
preemptible = true
min_run = "0s"
grace = "{grace}"
"""
# It notes its starts; asked to end, it saves, or goes on as if nothing had been said, by its first argument.
TRAIN = """\
echo "start train $$" >>"$LOG"
trap 'echo "{} train $$" >>"$LOG"; {}' TERM
while :; do sleep 0.05; done
"""
SAVES = TRAIN.format("saved", "exit 0")
IGNORES = TRAIN.format("ignored", ":")


class Night:
    """A machine with one GPU."""

    def __init__(self, box: Box) -> None:
        self.box = box
        box.env["SLICER_SIM"] = "1"
        self.configure("20s")

    def configure(self, grace: str) -> None:
        path = self.box.root / "config.toml"
        path.write_text(CONFIG.format(grace=grace))
        self.box.env["SLICER_CONFIG"] = str(path)

    def slicer(self, *line: str, code: int | None = 0) -> str:
        return slicer(self.box, *line, code=code).stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.slicer("status", "--json"))
        return found

    def train(self, script: str = SAVES, *options: str) -> subprocess.Popen[bytes]:
        """The job that gives way, in the foreground, once it runs."""
        process = self.box.start("-p", "night", "--name", "train", *options, "--", "sh", "-c", script)
        self.until_started(1)
        return process

    def detach(self, script: str = SAVES) -> str:
        """The same in the background; its id."""
        line = ("-p", "night", "-d", "--name", "train", "--", "sh", "-c", script)
        job = self.slicer("run", "--backend", "plain", *line).strip()
        self.until_started(1)
        return job

    def until_started(self, times: int) -> None:
        until(lambda: self.count("start train") == times, f"train started {times} times: {self.box.lines()}")

    def count(self, words: str) -> int:
        return sum(line.startswith(words) for line in self.box.lines())

    def eval(self, gate: Gate | None = None) -> subprocess.Popen[bytes]:
        script = f'{f"read x <{gate.path}" if gate else ":"}; echo eval >>"$LOG"'
        return self.box.start("--gpus", "1", "--name", "eval", "--", "sh", "-c", script)

    def lease(self, name: str) -> dict[str, str]:
        """The fields of its lease's file; none while it has none."""
        simulated = next(self.box.state.glob("sim-*"), self.box.state)
        for path in sorted((simulated / "leases").glob("*")):
            said = dict(line.partition("=")[::2] for line in path.read_text().splitlines())
            if said.get("NAME") == name:
                return said
        return {}

    def supervisor(self, job: str) -> int:
        path = self.box.var_lib / "slicer" / "jobs" / f"{job}.json"
        return int(json.loads(path.read_text())["pid"])

    def gives_way(self) -> None:
        until(lambda: self.lease("train").get("GIVES_WAY_TO") == "eval", "train gives way to eval")

    def done(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        _, err = process.communicate(timeout=LONGEST_S)
        return process.returncode, err.decode()


    def assert_clean(self) -> None:
        until(lambda: not self.box.processes(), f"no process is left; {self.box.describe()}")
        assert (self.status()["jobs"], self.status()["waiting"]) == ([], [])


@pytest.fixture
def night(box: Box) -> Night:
    return Night(box)


# U8: it is asked by SIGTERM, ends with 75 and says so; its outcome tells why, and it has not failed
def test_in_the_foreground_it_ends_with_75(night: Night) -> None:
    train = night.train()
    assert night.status()["jobs"][0]["preemptible"] is True
    assert night.done(night.eval())[0] == 0
    code, said = night.done(train)
    assert (code, "gives way to eval" in said) == (EX_TEMPFAIL, True)
    assert night.count("saved train") == 1
    (ended,) = [each for each in night.box.outcomes() if each.name == "train"]
    assert (ended.reason, ended.ended_by, ended.exit_code) == ("stopped", "gave way", EX_TEMPFAIL)
    assert "train" not in night.slicer("history", "--failed")
    assert "to give way to another job" in night.slicer("show", "train")
    night.assert_clean()


# U8: the status says it; one that ignores SIGTERM is killed after its grace
def test_who_ignores_the_signal_is_killed_after_its_grace(night: Night) -> None:
    night.configure("2s")
    train, waiter = night.train(IGNORES), night.eval()
    night.gives_way()
    shown = night.status()
    job = next(each for each in shown["jobs"] if each["name"] == "train")
    assert (job["gives_way_to"], 0 < job["gives_way_in"] <= 7) == ("eval", True)
    assert shown["waiting"][0]["starts_in"] <= 7
    assert "gives way to eval in " in night.slicer("status")
    assert night.done(waiter)[0] == 0
    assert night.done(train)[0] == EX_TEMPFAIL
    assert night.count("ignored train") == 1
    assert next(each for each in night.box.outcomes() if each.name == "train").signal == signal.SIGKILL


# U8: with -d the same job waits and begins again, and its log goes on; it has one outcome
def test_in_the_background_it_begins_again(night: Night, gate: Gate) -> None:
    job = night.detach(f"echo begun; {SAVES}")
    waiter = night.eval(gate)
    until(lambda: night.lease("eval"), "eval runs")
    until(lambda: [each["job"] for each in night.status()["waiting"]] == [job], "train waits again")
    assert night.slicer("wait", "--max-wait", "0", job, code=124) == ""
    assert not [each for each in night.box.outcomes() if each.job == job]
    gate.open()
    assert night.done(waiter)[0] == 0
    night.until_started(2)
    assert night.slicer("logs", job).splitlines() == [
        "begun", "slicer: gave way to another job, and begins again", "begun"
    ]  # fmt: skip
    night.slicer("stop", job)
    (ended,) = [each for each in night.box.outcomes() if each.job == job]
    assert ended.ended_by == "slicer stop"
    assert [each.ended_by for each in ended.attempts] == ["gave way", "slicer stop"]
    night.assert_clean()


# U8: whoever ends it while it waits again is told of its last attempt
def test_it_may_never_begin_again(night: Night, gate: Gate) -> None:
    job = night.detach()
    waiter = night.eval(gate)
    until(lambda: [each["job"] for each in night.status()["waiting"]] == [job], "train waits again")
    night.slicer("stop", job)
    assert "train: exit 75" in night.slicer("wait", job, code=EX_TEMPFAIL)
    (ended,) = [each for each in night.box.outcomes() if each.job == job]
    assert (ended.ended_by, ended.exit_code) == ("gave way", EX_TEMPFAIL)
    gate.open()
    assert night.done(waiter)[0] == 0
    night.assert_clean()


# U8: it has begun to end, so it ends; then nobody else wants its GPU
def test_the_waiter_may_leave_during_the_grace(night: Night) -> None:
    night.configure("2s")
    job = night.detach(IGNORES)
    waiter = night.eval()
    night.gives_way()
    waiter.terminate()
    night.done(waiter)
    night.until_started(2)
    assert "eval" not in night.box.lines()
    night.slicer("stop", "--grace", "0s", job)
    night.assert_clean()


# U8, K4: then nobody is left who would run it again, and its outcome is known all the same
def test_the_supervisor_may_be_killed_during_the_grace(night: Night) -> None:
    finish = night.box.root / "finish"
    job = night.detach(SAVES.replace("exit 0", f"while [ ! -e {finish} ]; do sleep 0.05; done; exit 0"))
    waiter = night.eval()
    night.gives_way()
    until(lambda: night.count("saved train"), "it is saving")
    kill_9(night.supervisor(job))
    finish.touch()
    assert night.done(waiter)[0] == 0
    (ended,) = until(lambda: [each for each in night.box.outcomes() if each.job == job], "it has ended")
    assert (ended.ended_by, ended.exit_code) == ("gave way", EX_TEMPFAIL)
    assert night.count("start train") == 1
    night.assert_clean()


# U8, U15: whoever ends it meanwhile ends it for good
@pytest.mark.parametrize("how", ["slicer stop", "SIGTERM"])
def test_a_stop_during_the_grace_is_a_stop(night: Night, how: str) -> None:
    job = night.detach(TRAIN.format("asked", ":"))
    waiter = night.eval()
    night.gives_way()
    until(lambda: night.count("asked train"), "it was asked")
    if how == "slicer stop":
        night.slicer("stop", "--grace", "0s", job)
    else:
        kill(night.supervisor(job), signal.SIGTERM)
        until(lambda: night.count("asked train") == 2, "it was asked twice")
        kill(int(night.box.started("train")))
    assert night.done(waiter)[0] == 0
    until(lambda: [each for each in night.box.outcomes() if each.job == job], "it has ended")
    assert night.count("start train") == 1
    night.assert_clean()


# U8: a paused job is resumed, so that it can end as it wishes
def test_a_paused_job_gives_way(night: Night) -> None:
    night.configure("2s")
    train = night.train()
    night.slicer("pause", "train")
    assert night.done(night.eval())[0] == 0
    assert night.done(train)[0] == EX_TEMPFAIL
    assert night.count("saved train") == 1
    night.assert_clean()


# U8: two wait, and one is enough for each in turn; of two that could, the younger one goes
def test_one_gives_way_to_each(night: Night, gate: Gate) -> None:
    night.box.env["SLICER_SIM"] = "2"
    old = night.train()
    script = SAVES.replace("train", "young")
    young = night.box.start("-p", "night", "--name", "young", "--", "sh", "-c", script)
    until(lambda: night.count("start young"), "both run")
    first = night.eval(gate)
    assert night.done(young)[0] == EX_TEMPFAIL
    until(lambda: night.lease("eval"), "eval runs")
    assert old.poll() is None
    assert night.count("saved train") == 0
    gate.open()
    night.done(first)
    assert old.poll() is None
    old.terminate()
    night.done(old)


# U8: not before it has run for its min_run, and never for a job that is preemptible itself
def test_it_does_not_give_way_too_early_or_to_its_like(night: Night) -> None:
    long = Path(night.box.env["SLICER_CONFIG"])
    long.write_text(long.read_text().replace("0s", "1h"))
    train = night.train()
    like = night.box.start("-p", "night", "--name", "like", "--", "true")
    waiter = night.eval()
    until(lambda: len(night.status()["waiting"]) == 2, "both wait")
    shown = night.status()
    assert [each["name"] for each in shown["waiting"]] == ["eval", "like"]
    assert shown["jobs"][0]["gives_way_to"] is None
    for each in (like, waiter, train):
        each.terminate()
        night.done(each)
    night.assert_clean()


def test_what_cannot_give_way_is_refused(box: Box) -> None:  # U8
    done = box.run("--preemptible", "--exec", "--", "true")
    assert done.returncode == 2
    assert "--exec: a preemptible job needs a process of slicer's" in done.stderr


# -- in a queue ---------------------------------------------------------------------------------------------


@pytest.fixture
def queues(box: Box) -> QueueBox:
    made = QueueBox(box, gpus=1)
    made.config(CONFIG.format(grace="20s"))
    return made


HOLDS = "[profile=night name=train] exec sh train.sh"


def write(queues: QueueBox, script: str = SAVES) -> None:
    """A line whose second attempt ends by itself."""
    once = script.replace("while :;", '[ "$(wc -l <"$LOG")" -lt 2 ] || exit 0; while :;')
    (queues.root / "train.sh").write_text(once)
    queues.write(HOLDS)


def other(queues: QueueBox, script: str) -> subprocess.Popen[bytes]:
    return queues.box.start(
        "--gpus", "1", "--name", "eval", "--", "sh", "-c", script,
        env={"SLICER_SIM": "1", "SLICER_SIM_VRAM": queues.sizes},
    )  # fmt: skip


def test_a_line_runs_again_and_uses_no_retry(queues: QueueBox) -> None:  # U8
    write(queues)
    queue = queues.start()
    queues.started("train")
    waiter = other(queues, "true")
    queue.event("requeued", why="it gave way to another job")
    assert waiter.wait(LONGEST_S) == 0
    assert queue.wait() == 0
    state = queues.journal()["exec sh train.sh"]
    assert (state.status, state.gave_way, state.attempts, state.fails, state.ooms) == ("ok", 1, 2, 0, 0)
    queues.assert_clean()


def saving(queues: QueueBox) -> tuple[Running, subprocess.Popen[bytes], Path]:
    """A queue whose job saves until a file is there, and the job that waits for it."""
    finish = queues.root / "finish"
    write(queues, SAVES.replace("exit 0", f"while [ ! -e {finish} ]; do sleep 0.05; done; exit 0"))
    queue = queues.start()
    queues.started("train")
    waiter = other(queues, 'echo "start eval $$" >>"$LOG"')
    until(lambda: any("saved" in line for line in queues.box.lines()), "it is saving")
    return queue, waiter, finish


def test_a_queue_that_ends_during_the_grace_leaves_it_pending(queues: QueueBox) -> None:  # U8, U15
    queue, waiter, finish = saving(queues)
    queue.send(signal.SIGINT)
    queue.event("stopping")
    queue.send(signal.SIGINT)
    queue.event("ending")
    finish.touch()
    assert queue.wait() == 130
    assert waiter.wait(LONGEST_S) == 0
    assert queues.journal()["exec sh train.sh"].status == "pending"
    assert queues.run().process.returncode == 0
    assert queues.starts() == {"train": 2, "eval": 1}
    queues.assert_clean()


# U8, P4: the job ends alone, and a new queue runs it again, once
def test_a_queue_that_is_killed_during_the_grace_loses_nothing(queues: QueueBox) -> None:
    queue, waiter, finish = saving(queues)
    queue.kill()
    finish.touch()
    assert waiter.wait(LONGEST_S) == 0
    again = queues.start()
    assert again.wait() == 0
    state = queues.journal()["exec sh train.sh"]
    assert (state.status, state.gave_way) == ("ok", 1)
    assert queues.starts() == {"train": 2, "eval": 1}
    queues.assert_clean()
