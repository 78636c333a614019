"""What people read of a queue: status.txt, the lines of text, and the summary."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.process.harness import SLICER, Box, until
from tests.process.queue_box import QueueBox


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def status(queues: QueueBox) -> str:
    path = queues.logs / "status.txt"
    return path.read_text() if path.exists() else ""


# Q3, E8: also where nothing happens but that time goes by and memory grows
def test_status_txt_goes_on_while_jobs_run(queues: QueueBox) -> None:
    simjob = "simjob --vram 6G --ramp 0 --hold infinity"
    queues.write(f"[vram=6G] {simjob}", "[profile=light] hold b")
    queue = queues.start()
    until(lambda: re.search(r"1  0 +\S+  6\.0G  6\.0G  6G ", status(queues)), "its memory is in status.txt")
    queues.write(f"[vram=6G cancel] {simjob}", "[profile=light] hold b")
    queue.event("finished")

    def times() -> str:
        found = re.search(r"2  -  +(\S+) .*hold b", status(queues))
        return found[1] if found else ""

    first = until(times, "the other job is in status.txt")
    until(lambda: times() not in ("", first), "its time goes on, though it has no GPU")
    queues.let("b")
    assert queue.wait() == 0
    queues.assert_clean()


# W8: who reads status.txt can tell a queue that lives from one that has ended and one that was killed
def test_status_txt_says_whose_it_is(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", "[vram=1G] job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    until(lambda: f"by pid {queue.pid}, again every 1s while jobs run; killed, if ps {queue.pid} shows no"
          in status(queues), "it names the queue")  # fmt: skip
    queue.kill()
    assert "has ended" not in status(queues)
    queue = queues.start("-j", "1")
    queue.event("adopted")
    queue.send(signal.SIGINT)
    queue.event("stopping")
    queues.let("a")
    assert queue.wait() == 130
    assert f"by pid {queue.pid}, which has ended\n" in status(queues)
    assert " · ended\n" in status(queues)
    assert queues.run().wait() == 0
    assert " · ended\n" in status(queues)
    assert " left\n" not in status(queues)
    queues.assert_clean()


# Q8, E6, E8: a line that is gone is pending no more, in this run or in an earlier one
def test_a_deleted_line_is_not_pending(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", "[vram=1G] job b", "[vram=1G] job c")
    queue = queues.start("-j", "1")
    queues.started("a")
    until(lambda: "1 running, 2 pending" in status(queues), "two wait")
    queues.write("[vram=1G] hold a", "[vram=1G] job c")
    queue.event("file-changed")
    until(lambda: "1 running, 1 pending" in status(queues), "one waits")
    queue.send(signal.SIGTERM)
    queue.event("stopping")
    queues.let("a")
    assert queue.wait() == 143
    assert "\n1 pending, 1 ok\n" in status(queues)
    queues.write("[vram=1G] hold a", "[vram=1G] job d")
    assert queues.run().wait() == 0
    assert "\n2 ok\n" in status(queues)


# Q8, E12
def test_a_job_that_was_cancelled_before_it_started_is_counted(queues: QueueBox) -> None:
    queues.write("[vram=1G] job a", "[vram=1G cancel] job b")
    (summary,) = queues.run().events("summary")
    assert summary["counts"] == {"ok": 1, "cancelled": 1}
    assert (summary["failed"], summary["exit_code"]) == ([], 0)


# Q7, E5: nothing is advised, and no figure made up, from looks that say nothing
def test_a_job_that_was_seen_seldom_is_not_advised(queues: QueueBox) -> None:
    rising = "simjob --vram 2G --ramp 0 --hold 1.5 --spike 17G@1.2s+100ms"
    queues.write(f"[vram=18G] {rising}", "job b")
    queue = queues.run("--poll", "60")
    ends = {event["job"]["command"]: event["job"] for event in queue.events("finished")}
    seen, short = ends[rising], ends["job b"]
    assert (seen["verdict"], seen["utilisation"]) == ("unknown", None)
    assert seen["looks"] < 10
    assert (short["verdict"], short["peak_mib"], short["utilisation"]) == ("unknown", None, None)
    (summary,) = queue.events("summary")
    assert summary["over"] == []
    said = queues.run("--poll", "60", "--fresh", json=False).out
    assert "would do" not in said
    assert "peak n/a, busy n/a" in said
    command = [*queues.box.prefix, *SLICER, "queue", "suggest", "jobs.txt", "--log-dir", "logs"]
    suggested = subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=True
    )
    assert suggested.stdout == queues.file.read_text()
    assert "0 of 2 declarations changed" in suggested.stderr
