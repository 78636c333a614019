"""``slicer stop`` of several jobs, and words for a whole queue: nothing begins any more (U15, U16)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from slicer.model import unit_name
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, TRAINER, Box
from tests.process.queue_box import QueueBox

_NOTED = 'echo "start {0} $$" >>"$LOG"; exec sleep 1000'


def call(box: Box, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*box.prefix, *SLICER, *words], env=box.env, cwd=box.root, capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done
    return done


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    box = QueueBox(make_box(4))
    box.box.env["SLICER_SIM"] = "2x24G"  # the queue's GPUs, for other commands
    return box


def running(box: Box, name: str) -> Any:
    process = box.start("-p", "heavy", "--name", name, "--", "sh", "-c", _NOTED.format(name))
    until(lambda: box.started(name), f"{name} runs")
    return process


@pytest.mark.parametrize(
    "words", [("--mine",), ("*",), ("?1", "w2", "w3", "later", "a0"), ("a0", "w*", "later")]
)
def test_a_waiting_job_never_begins_when_all_are_stopped(box: Box, words: tuple[str, ...]) -> None:  # U15
    first = running(box, "a0")
    waiting = [box.wait_in_line(name) for name in ("w1", "w2", "w3")]
    script = _NOTED.format("later")
    waiting.append(box.start("--after", "a0", "--name", "later", "--", "sh", "-c", script))
    until(lambda: "later" in call(box, "status").stdout, "it waits for the first")
    shown = call(box, "stop", *words).stdout.splitlines()
    assert {process.wait(LONGEST_S) for process in waiting} <= {143, -15}
    assert first.wait(LONGEST_S) == 143
    assert [line.split()[1] for line in box.lines()] == ["a0"]
    assert sorted(line.rpartition("  ")[2] for line in shown) == ["a0", "later", "w1", "w2", "w3"]
    assert shown[-1].startswith("stopped ")
    box.assert_clean()


@pytest.mark.parametrize("word", ["--mine", "q*", "jobs.txt"])
def test_a_queue_starts_no_line_while_its_others_are_stopped(queues: QueueBox, word: str) -> None:  # U15, U16
    queues.write(*(f"[name=q{number} gpus=1] job {number} 1000" for number in range(8)))
    queue = queues.start()
    queues.started("0", "1")
    call(queues.box, "stop", word)
    code = queue.wait()
    assert sorted(queues.starts()) == ["0", "1"]
    statuses = {status for status, _ in queues.statuses().values()}
    if word == "q*":
        assert (code, statuses) == (0, {"cancelled"})
    else:  # the next queue runs them all
        assert (code, statuses) == (143, {"pending"})
    queues.assert_clean()


def test_a_pattern_leaves_the_lines_that_it_does_not_mean(queues: QueueBox) -> None:  # U15
    queues.write("[name=q1 gpus=2] job 1 1000", "[name=q2 gpus=2] job 2 1000", "[name=other gpus=2] job 3")
    queue = queues.start()
    queues.started("1")
    said = call(queues.box, "stop", "q*").stdout
    assert f"no longer waits: 1 line of {queues.file}\n" in said
    assert queue.wait() == 0
    assert sorted(queues.starts()) == ["1", "3"]
    assert queues.statuses()["job 3"] == ("ok", 0)


def test_a_queue_is_paused_and_resumed_by_a_word(queues: QueueBox) -> None:  # U16
    queues.write("[gpus=2] hold a", "[gpus=1] job b", "[gpus=1] job c")
    queue = queues.start()
    queues.started("a")
    told = call(queues.box, "queue", "pause", "jobs.txt").stdout
    assert told == "paused jobs.txt: nothing new is started, 2 lines wait\n"
    assert call(queues.box, "queue", "pause", "jobs.txt").stdout == "jobs.txt was paused already\n"
    queues.let("a")
    queue.event("finished")
    queues.asleep(queue)
    assert sorted(queues.starts()) == ["a"]
    status = queues.logs / "status.txt"
    until(lambda: "paused: nothing new is started" in status.read_text(), "the board says it")
    assert call(queues.box, "queue", "resume", "jobs.txt").stdout == "resumed jobs.txt: 2 lines to start\n"
    assert queue.wait() == 0
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}
    queues.assert_clean()


@pytest.mark.parametrize("how", ["kill -9", "kill"])
def test_a_paused_queue_stays_paused_when_it_is_started_again(queues: QueueBox, how: str) -> None:  # U16
    queues.write("[gpus=1] job a")
    queues.config("")
    queue = queues.start("--watch", env={"CUDA_VISIBLE_DEVICES": ""})
    queue.event("finished")
    call(queues.box, "queue", "pause", "jobs.txt")
    (queue.process.kill if how == "kill -9" else queue.process.terminate)()
    queue.process.wait(LONGEST_S)
    queues.append("[gpus=1] job b")
    again = queues.start()
    again.event("opened")
    queues.asleep(again)
    assert queues.starts() == {"a": 1}
    call(queues.box, "queue", "resume", "jobs.txt")
    assert again.wait() == 0
    assert queues.starts() == {"a": 1, "b": 1}


def test_a_queue_may_finish_what_runs(queues: QueueBox) -> None:  # U16
    queues.write("[gpus=2] hold a", "[gpus=1] job b")
    queue = queues.start()
    queues.started("a")
    told = call(queues.box, "queue", "stop", "jobs.txt", "--finish").stdout
    assert told == "jobs.txt starts nothing new; 1 job may finish\n"
    queues.let("a")
    assert queue.wait() == 143
    assert queues.starts() == {"a": 1}
    assert queues.statuses()["hold a"] == ("ok", 0)


def test_a_word_for_a_queue_that_does_not_run_is_refused(queues: QueueBox) -> None:  # U16, W17
    queues.write("true")
    for word in ("stop", "pause", "resume"):
        refused = call(queues.box, "queue", word, "jobs.txt", code=2)
        assert refused.stderr == "slicer: no queue runs jobs.txt (slicer queue lists your queues)\n"


def test_two_queues_of_one_file_are_told_apart(queues: QueueBox) -> None:  # U16
    queues.write("[gpus=1] hold a")
    one = queues.start()
    two = queues.start("--log-dir", "else")
    until(lambda: queues.starts() == {"a": 2}, "both run it")
    refused = call(queues.box, "stop", "jobs.txt", code=2)
    assert f"several queues run jobs.txt: {queues.root}/" in refused.stderr
    call(queues.box, "queue", "stop", "jobs.txt", "--log-dir", "else")
    assert two.wait() == 143
    assert one.process.poll() is None
    call(queues.box, "stop", "--mine")
    assert one.wait() == 143


# -- signal and grace ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "signo"),
    [
        ((), (), "SIGTERM"),
        (("--set", "KillMode=mixed"), (), "SIGTERM"),
        (("--set", "KillSignal=USR1"), (), "SIGUSR1"),
        ((), ("--signal", "USR2", "--grace", "30s"), "SIGUSR2"),
    ],
)
@pytest.mark.parametrize("shell", ["", "cd . && "])
def test_the_command_is_asked_while_its_workers_live(
    box: Box, options: tuple[str, ...], words: tuple[str, ...], signo: str, shell: str
) -> None:  # U15
    program = box.root / "train.py"
    program.write_text(TRAINER)
    out = box.root / "out"
    line = (
        f"{shell}python3 {program} {signo} >{out} 2>&1; true"
        if shell
        else f"exec python3 {program} {signo} >{out} 2>&1"
    )
    process = box.start("--name", "x", *options, "--", "sh", "-c", line)
    until(lambda: out.exists() and "up" in out.read_text(), "it runs")
    call(box, "stop", "x", *words)
    process.wait(LONGEST_S)
    if shell and "mixed" in str(options):  # the shell's end kills both; the worker may see the other's end
        assert out.read_text() in ("up\n", "up\nfed\n")
    else:
        assert out.read_text() == "up\nfed\nsaved\n"
    box.assert_clean()


def test_a_time_limit_asks_the_command_alone_too(box: Box) -> None:  # U15
    program = box.root / "train.py"
    program.write_text(TRAINER)
    done = box.run("--timeout", "2s", "--", "python3", str(program), "SIGTERM")
    assert (done.returncode, done.stdout) == (124, "up\nfed\nsaved\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--signal", "FOO"), '--signal: expected a signal such as "SIGTERM" or "15", not \'FOO\''),
        (("--grace", "soon"), "--grace: "),
        (("--grace", "1000d"), "--grace: 1000d: expected at most 194 days"),
    ],
)
def test_a_wrong_signal_or_grace_is_refused(box: Box, words: tuple[str, ...], said: str) -> None:  # W17
    assert said in call(box, "stop", "x", *words, code=2).stderr


def test_mixed_with_exec_is_refused(box: Box) -> None:  # U15
    refused = box.run("--exec", "--set", "KillMode=mixed", "--", "true")
    assert (refused.returncode, "KillMode=mixed needs" in refused.stderr) == (2, True)


# U15: it may have ended a moment before
@pytest.mark.parametrize("word", ["x", "x*", "id", "unit", "beginning"])
def test_to_stop_what_has_ended_is_no_mistake(box: Box, word: str) -> None:
    for _ in range(2):
        box.run("--name", "x", "--", "true")
    last = max(box.outcomes(), key=lambda each: each.started_at).job
    words = {"id": last, "unit": unit_name(last), "beginning": last[:8]}
    assert call(box, "stop", words.get(word, word)).stdout == f"has ended: {last}  x\n"
    assert call(box, "stop", last, "nobody", "y*", code=2).stdout == f"has ended: {last}  x\n"


# U15: as those of a running queue, and a detached job that never ran
def test_to_stop_a_line_or_a_waiting_job_twice_is_no_mistake(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", "[vram=1G name=b] job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    options = ("-q", "-d", "--begin", "tomorrow", "--name", "later")
    later = call(queues.box, "run", *options, "--", "true").stdout.strip()
    for word, said in (("jobs.txt#2", "jobs.txt#2  b"), ("later", f"{later}  later")):
        assert "no longer waits" in call(queues.box, "stop", word).stdout
        assert call(queues.box, "stop", word).stdout == f"has ended: {said}\n"
    queues.let("a")
    assert queue.wait() == 0
    queues.assert_clean()
