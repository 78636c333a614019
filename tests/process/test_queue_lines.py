"""``slicer logs``, ``wait`` and ``show`` of a line of a jobs file, before it has begun and after."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from slicer.state import simulated
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, stays_in_poll, switches
from tests.process.queue_box import QueueBox, Running


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def call(queues: QueueBox, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*SLICER, *words], env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=False,
        timeout=LONGEST_S,
    )  # fmt: skip
    assert done.returncode == code, done
    return done


def sleeping(queues: QueueBox, *words: str) -> subprocess.Popen[str]:
    """A command that waits for something."""
    started = subprocess.Popen(
        [*SLICER, *words], env=queues.box.env, cwd=queues.root, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    queues.box.adopt(started)

    # It does not only sleep until the queue has answered.
    until(lambda: stays_in_poll(started.pid), f"{words} waits")
    return started


def said(started: subprocess.Popen[str], code: int) -> str:
    out, err = started.communicate(timeout=LONGEST_S)
    assert started.returncode == code, (out, err)
    return out + err


def shown(queues: QueueBox, word: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(queues, "show", "--json", word).stdout)
    return found


def one_at_a_time(queues: QueueBox, *lines: str) -> Running:
    """A queue whose first line holds it up."""
    queues.write("[vram=1G name=a] hold a", *lines)
    queue = queues.start("-j", "1")
    queues.started("a")
    return queue


# U1: why it waits, until it ends, and what it prints
def test_a_line_that_has_not_begun_is_shown_waited_for_and_followed(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] echo begun; hold b 3", "[vram=2G after=b] job c")
    c = shown(queues, "jobs.txt#3")
    assert (c["job"], c["state"], c["why"], c["directory"]) == (None, "waiting", "after b", None)
    assert c["queue"] == {
        "file": str(queues.file), "line": "jobs.txt#3", "log_dir": str(queues.logs), "pid": queue.pid,
        "status": "pending", "attempts": 0, "ended": [],
    }  # fmt: skip
    text = call(queues, "show", "jobs.txt#3").stdout
    assert "why      after b\n" in text
    assert f"jobs.txt#3 of pid {queue.pid}" in text
    assert "b has not begun" in call(queues, "logs", "b", code=2).stderr
    assert "not ended" in call(queues, "wait", "b", "--max-wait", "0.01s", code=124).stderr
    assert "set SLICER_SIM as for its queue" in call(queues, "stop", "a", code=2).stderr
    waits, follows = sleeping(queues, "wait", "b", "jobs.txt#3"), sleeping(queues, "logs", "-f", "b")
    queues.let("a")
    queues.started("b")
    assert shown(queues, "jobs.txt#2")["state"] == "running"
    assert call(queues, "logs", "b").stdout == "begun\n"
    queues.let("b")
    assert "b: exit 3" in said(waits, 3)
    assert said(follows, 0).startswith("begun\nslicer: b: exit 3")
    assert queue.wait() == 3
    queues.assert_clean()


# U1: the exit code of a `slicer run` that was stopped while it waited
@pytest.mark.parametrize("how", ["stop", "cancel", "remove"])
def test_a_line_that_never_begins_ends_a_wait_with_143(queues: QueueBox, how: str) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] job b")
    waits, follows = sleeping(queues, "wait", "--json", "b"), sleeping(queues, "logs", "-f", "b")
    if how == "stop":
        call(queues, "stop", "b")
    else:
        cancelled = ["[vram=1G name=b cancel] job b"] if how == "cancel" else []
        queues.write("[vram=1G name=a] hold a", *cancelled)
    (ended,) = json.loads(said(waits, 143))["jobs"]
    assert (ended["job"], ended["name"], ended["reason"]) == (None, "b", None)
    assert "has not begun" in said(follows, 2)
    if how != "remove":
        call(queues, "wait", "b", code=143)
        assert shown(queues, "b")["state"] == "ended"
    queues.let("a")
    queue.wait()
    queues.assert_clean()


# U1, E6: a wait for a line goes on over its attempts; its id means one of them
def test_a_wait_for_a_line_is_for_all_its_attempts(queues: QueueBox) -> None:
    queue = one_at_a_time(
        queues, "[vram=1G name=b retries=1] simjob --vram 1M --hold 0 --oom-once once; x=$?; job b; exit $x"
    )
    waits = sleeping(queues, "wait", "b")
    queues.let("a")
    assert "b: exit 0" in said(waits, 0)
    assert queues.starts()["b"] == 2
    assert queue.wait() == 0


# U1: two of one name, in a queue and beside it
def test_a_name_that_means_several_lists_them(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=x] job b", "[vram=1G name=x] job c")
    for verb in ("logs", "wait", "show"):
        refused = call(queues, verb, "x", code=2).stderr
        assert "jobs.txt#2" in refused
        assert "jobs.txt#3" in refused
    call(queues, "stop", "jobs.txt#3")
    assert shown(queues, "x")["queue"]["line"] == "jobs.txt#2"
    assert "no such job: 'y'" in call(queues, "wait", "y", code=2).stderr
    queues.let("a")
    assert queue.wait() == 0


# U1: without SLICER_SIM as for its queue, that alone knows that it runs
def test_the_log_of_a_line_is_followed_to_its_end(queues: QueueBox) -> None:
    queues.write("[vram=1G name=a] echo begun; hold a 3")
    queue = queues.start()
    queues.started("a")
    follows = sleeping(queues, "logs", "-f", "a")
    before = switches(follows.pid)
    until(lambda: follows.poll() is not None or switches(follows.pid) > before + 12, "it looks again")
    queues.let("a")
    assert said(follows, 0).startswith("begun\nslicer: a: exit 3")
    assert queue.wait() == 3


# U1: also if its queue is killed while it runs
def test_a_job_that_follows_a_line_hears_how_it_ended(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] hold b 4")
    follows = sleeping(queues, "run", "--backend", "plain", "--after", "b", "--", "job", "next")
    queues.let("a")
    queues.started("b")
    queue.kill()
    queues.let("b")
    assert "b, which it follows, did not end well (exit 4)" in said(follows, 75)
    assert "next" not in queues.starts()


# U1, X6: a word means the same job to a command that needs one that runs
def test_a_line_is_paused_while_it_runs(queues: QueueBox) -> None:
    queues.write("[vram=1G name=c] job c", "[vram=1G name=a] hold a", "[vram=1G name=b] job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    assert re.search(r"\nname +c\n", call(queues, "history", "jobs.txt#1").stdout)
    assert "set SLICER_SIM as for its queue" in call(queues, "pause", "a", code=2).stderr
    queues.box.env["SLICER_SIM"] = simulated.spec_of(queues.gpus, queues.sizes)
    for verb in ("pause", "resume"):
        assert call(queues, verb, "jobs.txt#2").stdout.endswith("  a\n")
        assert "b waits, and has no process yet" in call(queues, verb, "b", code=2).stderr
    queues.let("a")
    assert queue.wait() == 0
    assert "'b' has ended (slicer history b)" in call(queues, "pause", "b", code=2).stderr


# U1, E7: a queue that is interrupted leaves the line; its next one is another queue
def test_a_line_whose_queue_ends_first_is_75(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] job b")
    waits = sleeping(queues, "wait", "b")
    queue.send(signal.SIGINT)
    queues.let("a")
    assert queue.wait() == 130
    assert "its queue has ended" in said(waits, 75)


# U1, E7: kill -9, and the next queue goes on
def test_a_wait_survives_its_queue_if_another_follows(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] job b 0 4")
    waits = sleeping(queues, "wait", "b")
    queue.kill()
    again = queues.start("-j", "1")
    again.event("adopted")
    queues.let("a")
    assert "b: exit 4" in said(waits, 4)
    assert again.wait() == 4


# U1: a stopped queue is not waited for by those who look, but by those who wait
def test_a_stopped_queue_answers_when_it_goes_on(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] job b")
    waits = sleeping(queues, "wait", "b")
    queue.send(signal.SIGSTOP)
    assert "no such job: 'b'" in call(queues, "show", "b", code=2).stderr
    queues.let("a")
    os.kill(queue.pid, signal.SIGCONT)
    assert "b: exit 0" in said(waits, 0)
    assert queue.wait() == 0


# U1: each keeps a connection, and those that the queue has no room for ask again
def test_many_lines_are_waited_for_at_once(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, *(f"[vram=1G] true {number}" for number in range(300)))
    waits = sleeping(queues, "wait", "-q", *(f"jobs.txt#{number}" for number in range(2, 302)))
    assert "not answer" not in call(queues, "queue").stderr
    queues.let("a")
    assert said(waits, 0) == ""
    assert queue.wait() == 0


# U1: a job follows a line
def test_a_job_begins_after_a_line(queues: QueueBox) -> None:
    queue = one_at_a_time(queues, "[vram=1G name=b] job b")
    follows = sleeping(queues, "run", "--backend", "plain", "--after", "b", "--", "job", "next")
    queues.let("a")
    said(follows, 0)
    assert [line.split()[1] for line in queues.box.lines() if line.startswith("start")] == ["a", "b", "next"]
    assert queue.wait() == 0
