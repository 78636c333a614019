"""The shell of a queue's lines, and what they leave in the background."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.process.harness import Box
from tests.process.queue_box import QueueBox, Running


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def warnings(queue: Running) -> list[str]:
    return [event["text"] for event in queue.events("warning")]


BASH = "[profile=light] echo {1..3} &> said; f"
FUNCTION = {"BASH_FUNC_f%%": "() { echo in f\n}"}


@pytest.mark.parametrize("is_configured", [False, True])
def test_lines_run_in_the_shell_that_the_user_chose(queues: QueueBox, is_configured: bool) -> None:  # U17
    queues.write(BASH)
    if is_configured:
        queues.config('[queue]\nshell = "bash"\n')
    queue = queues.run(*([] if is_configured else ["--shell", "bash"]), env=FUNCTION)
    assert (queue.wait(), warnings(queue)) == (0, [])
    assert (queues.root / "said").read_text() == "1 2 3\n"
    assert queues.log(BASH.partition("] ")[2]) == "in f\n"
    queues.assert_clean()


def test_a_shell_that_is_not_there_is_refused_with_its_place(queues: QueueBox) -> None:  # U17
    queues.write("job a")
    queue = queues.run("--shell", "nosuch", json=False)
    assert (queue.wait(), queue.err.partition(" (")[0]) == (2, "slicer: --shell: nosuch: command not found")
    queues.config('[queue]\nshell = "/no/such"\n')
    queue = queues.run(json=False)
    assert (queue.wait(), "config.toml:2: /no/such: command not found" in queue.err) == (125, True)
    assert not queues.starts()


def test_a_doubtful_line_is_said_when_it_comes_and_not_again(queues: QueueBox) -> None:  # U17, E6
    queues.write("[profile=light] hold a", "(job b) &")
    queue = queues.start("-j", "1")
    queue.event("warning")
    queues.started("a")
    queues.append("[profile=light] (job c) &")
    queue.event("file-changed", added=1)
    assert [each.partition(": ")[0] for each in warnings(queue)] == ["jobs.txt:2:9", "jobs.txt:3:25"]
    queues.let("a")
    queue.wait()


@pytest.mark.parametrize(
    ("line", "status", "left"),
    [
        ("sleep 600 &", "failed", 1),
        ("sleep 600 &> said", "failed", 1),
        ("setsid -f sleep 600", "failed", 1),
        ("python3 -c 'import subprocess; subprocess.Popen([\"sleep\", \"600\"])'", "failed", 1),
        ("sleep 600 & job c", "ok", 0),
        ("true &", "ok", 0),  # it ends by itself
    ],
)
def test_a_line_that_leaves_its_work_is_not_ok_and_what_is_after_it_is_not_run(  # U17
    queues: QueueBox, line: str, status: str, left: int
) -> None:
    queues.write(f"[profile=light name=a] {line}", "[profile=light after=a] job b")
    queue = queues.run("--shell", "/bin/dash" if "&>" in line else "/bin/sh")
    ended = queue.events("finished")[0]["job"]
    assert (ended["status"], ended["leftovers"]) == (status, left)
    assert ended["reason"] == ("left" if left else "exited")
    assert ("b" in queues.starts()) == (status == "ok")
    assert (queue.wait() == 0) == (status == "ok")
    queues.assert_clean()
