"""Every command of slicer, twice and 16 times at the same moment: nothing is lost, and nobody refused (U23).

A row of the table is a command, what is there before, what happens meanwhile, and what must be true. Where
nothing is there before, there is no state directory and no history, either.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, sleeps_in_poll, state_of

SIM = "2x24G"
CONFIG = """\
[profiles.light]
timeout_stop = "10m"
[routes.size]
probe = "size"
threshold = "1K"
on_busy = "wait"
[routes.size.gpu]
vram = "8G"
[routes.size.cpu]
profile = "light"
"""
JOB = ("sh", "-c", 'echo "start {n} $$" >>"$LOG"; exit {n}')
# It ends when the file "gate" is there, and not before: whoever stops it waits for that.
STUBBORN = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["LOG"], "a") as log:
    log.write(f"start first {os.getpid()}\\n")
while not os.path.exists("gate"):
    time.sleep(0.02)
"""
WAITING = ("sh", "-c", 'echo "start late $$" >>"$LOG"')


@dataclass(frozen=True)
class Said:
    """What one of them said, and its exit code."""

    code: int
    out: str
    err: str


class Scene:
    """A box with two CPU slots and two GPUs."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.gate = box.root / "gate"
        config = box.root / "slicer.toml"
        config.write_text(CONFIG)
        box.env |= {"SLICER_SIM": SIM, "SLICER_CONFIG": str(config)}
        script = box.root / "stubborn.py"
        script.write_text(STUBBORN)
        self.stubborn = (SLICER[0], "-I", "-S", str(script))
        self.times = 0
        self.outs: list[Path] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(
            [*SLICER, *words], env=self.box.env, cwd=self.box.root, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.box.adopt(made)
        return made

    def start_at_once(self, times: int, words: Sequence[str]) -> None:
        """All of them wait for the end of one pipe, and then become the command. Its stdin is kept open."""
        self.times = times
        go, holds_back = os.pipe()
        stdin, self.stdin = os.pipe()
        wait = f'read x </proc/self/fd/{go}; exec "$@"'
        for number in self.numbers():
            chosen = [word.replace("{n}", number) for word in words]
            self.outs.append(self.box.root / f"out{number}")
            with self.outs[-1].open("wb") as out, self._err(self.outs[-1]).open("wb") as err:
                made = subprocess.Popen(
                    ["sh", "-c", wait, "sh", *SLICER, *chosen], env=self.box.env, cwd=self.box.root,
                    stdin=stdin, stdout=out, stderr=err, pass_fds=[go],
                )  # fmt: skip
            self.box.adopt(made)
            self.started.append(made)
        for fd in (go, holds_back, stdin):
            os.close(fd)

    def said(self) -> list[Said]:
        """What they said, once all have ended."""
        os.close(self.stdin)
        codes = [each.wait(LONGEST_S) for each in self.started]
        pairs = zip(codes, self.outs, strict=True)
        return [Said(code, out.read_text(), self._err(out).read_text()) for code, out in pairs]

    def _err(self, out: Path) -> Path:
        return out.with_suffix(".err")

    def starts(self) -> Counter[str]:
        """How often the command of each job began."""
        return Counter(line.split()[1] for line in self.box.lines() if line.startswith("start "))

    def recorded(self) -> Counter[tuple[str, int]]:
        """The history: names and exit codes."""
        return Counter((each.name, each.exit_code) for each in self.box.outcomes())

    def numbers(self) -> list[str]:
        return [str(number) for number in range(self.times)]


Act = Callable[[Scene], None]
Check = Callable[[Scene, list[Said]], None]


# -- what is there before ------------------------------------------------------------------------------------


def nothing(scene: Scene) -> None:
    assert not scene.box.state.exists()


def one_has_ended(scene: Scene) -> None:
    first = scene.start("run", "-d", "--backend", "plain", "--name", "first", "--", "true")
    assert first.wait(LONGEST_S) == 0
    until(lambda: scene.recorded(), "it is recorded")


def one_runs(scene: Scene) -> None:
    scene.start("run", "--backend", "plain", "--gpus", "2", "--name", "first", "--", *scene.stubborn)
    until(lambda: scene.starts(), "it runs")


def one_runs_and_others_wait(scene: Scene) -> None:
    one_runs(scene)
    for number in range(2):
        late = scene.start(
            "run", "--backend", "plain", "--gpus", "2", "--name", f"first-{number}", "--", *WAITING
        )
        until(lambda late=late: sleeps_in_poll(late.pid), "it waits")


def one_is_paused(scene: Scene) -> None:
    one_runs(scene)
    assert scene.start("pause", "first").wait(LONGEST_S) == 0


def a_jobs_file(scene: Scene) -> None:
    (scene.box.root / "jobs.txt").write_text('echo "start a $$" >>"$LOG"\necho "start b $$" >>"$LOG"\n')


def a_queue_runs(scene: Scene) -> None:
    lines = [
        f"[profile=light name=first gpus=2] {shlex.join(scene.stubborn)}",
        '[gpus=2] echo "start late $$" >>"$LOG"',
    ]
    (scene.box.root / "jobs.txt").write_text("".join(f"{line}\n" for line in lines))
    scene.start("queue", "jobs.txt", "--backend", "plain")
    until(lambda: scene.starts(), "its first job runs")


def a_queue_is_paused(scene: Scene) -> None:
    a_queue_runs(scene)
    assert scene.start("queue", "pause", "jobs.txt").wait(LONGEST_S) == 0


# -- what happens meanwhile ----------------------------------------------------------------------------------


def no_more(scene: Scene) -> None:
    pass


def all_wait_then_it_ends(scene: Scene) -> None:
    for each in scene.started:
        until(lambda each=each: sleeps_in_poll(each.pid) or each.poll() is not None, "it waits")
    scene.gate.touch()


def all_hold(scene: Scene) -> None:
    for out in scene.outs:
        until(lambda out=out: '"acquired"' in out.read_text(), "it holds its lease")


# -- what must be true ---------------------------------------------------------------------------------------


def each_ran_once(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == list(range(scene.times)), said
    assert scene.starts() == Counter(scene.numbers())
    assert scene.recorded() == Counter((name, int(name)) for name in scene.numbers())


def each_held_once(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == list(range(scene.times)), said
    assert scene.starts() == Counter(scene.numbers())


def each_runs_once_in_the_background(scene: Scene, said: list[Said]) -> None:
    assert {each.code for each in said} == {0}, said
    assert len({each.out for each in said}) == scene.times
    until(lambda: sum(scene.recorded().values()) == scene.times, "all are recorded")
    assert scene.starts() == Counter(scene.numbers())
    assert scene.recorded() == Counter((name, int(name)) for name in scene.numbers())


def each_ran_once_after_the_first(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == list(range(scene.times)), said
    assert next(line.split()[1] for line in scene.box.lines()) == "first"
    assert scene.starts() == Counter(["first", *scene.numbers()])


def each_was_granted(scene: Scene, said: list[Said]) -> None:
    assert [(each.code, each.out.count('"acquired"')) for each in said] == [(0, 1)] * scene.times, said
    jobs = {re.findall('"job": "([0-9a-f]{12})"', each.out)[0] for each in said}
    assert len(jobs) == scene.times


def each_line_is_there_once(scene: Scene, said: list[Said]) -> None:
    assert {each.code for each in said} == {0}, said
    lines = (scene.box.root / "jobs.txt").read_text().splitlines()
    assert sorted(lines) == sorted(f"echo {number}" for number in scene.numbers())


def each_queue_ran_its_lines_once(scene: Scene, said: list[Said]) -> None:
    assert {each.code for each in said} == {0}, said
    until(lambda: sum(scene.recorded().values()) == 2 * scene.times, "all are recorded")
    assert scene.starts() == {"a": scene.times, "b": scene.times}
    assert {code for _, code in scene.recorded()} == {0}


def all_are_told_the_same(code: int | None, word: str) -> Check:
    """Their exit code (None: which one depends on the host), and a word that is in what each said."""

    def check(scene: Scene, said: list[Said]) -> None:
        expected = said[0].code if code is None else code
        assert [each.code for each in said] == [expected] * scene.times, said
        assert [each for each in said if word not in each.out + each.err] == []

    return check


def nothing_else_began(scene: Scene, said: list[Said]) -> None:
    """All have stopped it: nobody is told that there was nothing to stop."""
    assert [each.code for each in said] == [0] * scene.times, said
    until(lambda: not scene.box.processes(), scene.box.describe())
    assert scene.starts() == {"first": 1}


def it_is_paused(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == [0] * scene.times, said
    assert state_of(int(scene.box.started("first"))) == "T"
    assert scene.start("resume", "first").wait(LONGEST_S) == 0
    scene.gate.touch()


def it_runs_on(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == [0] * scene.times, said
    scene.gate.touch()
    until(lambda: scene.recorded() == {("first", 0): 1}, "it has come to its end")


def the_queue_is_paused(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == [0] * scene.times, said
    assert Counter("was paused already" in each.out for each in said)[False] == 1, said
    assert scene.start("queue", "stop", "jobs.txt", "--finish").wait(LONGEST_S) == 0
    scene.gate.touch()
    until(lambda: not scene.box.processes(), scene.box.describe())
    assert scene.starts() == {"first": 1}


def the_queue_runs_on(scene: Scene, said: list[Said]) -> None:
    assert [each.code for each in said] == [0] * scene.times, said
    scene.gate.touch()
    until(lambda: scene.starts() == {"first": 1, "late": 1}, "its last line runs")


# -- the table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    words: str  # of the command; "{n}" is the number of each
    holds: Check
    before: Act = nothing
    meanwhile: Act = no_more
    job: tuple[str, ...] = ()  # the words after "--"


RUN = "run --backend plain --name {n}"
TABLE = {
    "run": Row(RUN, each_ran_once, job=JOB),
    "run, a slot": Row(f"{RUN} -p heavy", each_ran_once, job=JOB),
    "run, a GPU": Row(f"{RUN} --gpus 1", each_ran_once, job=JOB),
    "run, a part of a GPU": Row(f"{RUN} --vram 8G", each_ran_once, job=JOB),
    "run -d": Row(f"{RUN} -d", each_runs_once_in_the_background, job=JOB),
    "run --begin": Row(f"{RUN} --begin 1s", each_ran_once, job=JOB),
    "run --after": Row(
        f"{RUN} --after first", each_ran_once_after_the_first, one_runs, all_wait_then_it_ends, JOB
    ),
    "route": Row(
        "route --backend plain --name {n} size", each_ran_once, a_jobs_file, job=(*JOB, "sh", "jobs.txt")
    ),
    "hold": Row("hold --name {n} --gpus 1", each_held_once, job=JOB),
    "hold --protocol": Row(
        "hold --name {n} --vram 1G --margin 0 --protocol 1", each_was_granted, meanwhile=all_hold
    ),
    "queue add": Row("queue add jobs.txt", each_line_is_there_once, job=("echo {n}",)),
    "queue": Row(
        "queue jobs.txt --backend plain --log-dir logs{n}", each_queue_ran_its_lines_once, a_jobs_file
    ),
    "queue pause": Row("queue pause jobs.txt", the_queue_is_paused, a_queue_runs),
    "queue resume": Row("queue resume jobs.txt", the_queue_runs_on, a_queue_is_paused),
    "queue stop": Row("queue stop jobs.txt", nothing_else_began, a_queue_runs, all_wait_then_it_ends),
    "stop": Row("stop --grace 10m first", nothing_else_began, one_runs, all_wait_then_it_ends),
    "stop, a pattern": Row(
        "stop --grace 10m first*", nothing_else_began, one_runs_and_others_wait, all_wait_then_it_ends
    ),
    "stop --mine": Row(
        "stop --grace 10m --mine", nothing_else_began, one_runs_and_others_wait, all_wait_then_it_ends
    ),
    "pause": Row("pause first", it_is_paused, one_runs),
    "resume": Row("resume first", it_runs_on, one_is_paused),
    "set": Row("set first CPUWeight=1", all_are_told_the_same(2, "without a scope"), one_runs),
    "wait": Row("wait first", all_are_told_the_same(0, "first"), one_runs, all_wait_then_it_ends),
    "status": Row("status", all_are_told_the_same(0, "2 of 2 free")),
    "show": Row("show first", all_are_told_the_same(0, "first"), one_has_ended),
    "logs": Row("logs first", all_are_told_the_same(0, ""), one_has_ended),
    "history": Row("history", all_are_told_the_same(0, "first"), one_has_ended),
    "history, none": Row("history", all_are_told_the_same(0, "")),
    "reserve": Row("reserve --gpus 1 --for 1h", all_are_told_the_same(125, "the broker keeps reservations")),
    "profiles": Row("profiles", all_are_told_the_same(0, "light")),
    "metrics": Row("metrics", all_are_told_the_same(0, "slicer_")),
    "doctor": Row("doctor", all_are_told_the_same(None, "slicer doctor -v")),
}


@pytest.mark.parametrize("times", [2, 16])
@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
def test_at_the_same_moment(make_box: Callable[[int], Box], row: Row, times: int) -> None:  # U23
    scene = Scene(make_box(2))
    row.before(scene)
    scene.start_at_once(times, [*row.words.split(), *(("--", *row.job) if row.job else ())])
    row.meanwhile(scene)
    said = scene.said()
    row.holds(scene, said)
    assert [each for each in said if re.search("Traceback|internal error|bug", each.err)] == []
    scene.gate.touch()
    until(lambda: not scene.box.processes(), scene.box.describe())
    left = [path for path in scene.box.state.rglob("*") if path.parent.name in ("leases", "tickets")]
    assert left == []
