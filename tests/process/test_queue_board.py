"""What people read of a queue: status.txt, the lines of text, and the summary."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.patience import until
from tests.process.harness import SLICER, Box
from tests.process.queue_box import QueueBox


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def status(queues: QueueBox) -> str:
    path = queues.logs / "status.txt"
    return path.read_text() if path.exists() else ""


def of_queue(queues: QueueBox, *words: str) -> subprocess.CompletedProcess[str]:
    """``slicer queue WORDS``, with our log directory where they name none."""
    command = [*queues.box.prefix, *SLICER, "queue", words[0], "--log-dir", "logs", *words[1:]]
    return subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=False
    )


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
    suggested = of_queue(queues, "suggest", "jobs.txt")
    assert suggested.stdout == queues.file.read_text()
    assert "0 of 2 declarations changed" in suggested.stderr


# W19: what failed can be looked at, from the line that says so
def test_a_failure_says_where_its_log_is_and_how_it_ends(queues: QueueBox) -> None:
    queues.write(r"printf 'one\n\033[31mbad\033]0;t\007 end\n'; exit 3", "[profile=light] false")
    said = queues.run(json=False).out
    line = next(line for line in said.splitlines() if "job 1 failed with exit code 3 after" in line)
    assert line.endswith("(log: logs/job0001.log), last line: bad end")
    assert "(log: logs/job0001.log)\n    bad end\n" in said
    assert "\x1b" not in said
    assert "(log: logs/job0002.log)\n" in said
    logs = {event["log"]: event for event in queues.run("--fresh").events("finished")}
    finished = logs["job0001.log"]
    assert finished["log_path"] == "logs/job0001.log"
    assert finished["last_line"] == "bad end"


# W6: an exit code without a word would be a riddle
def test_what_failed_earlier_is_said_in_one_line(queues: QueueBox) -> None:
    queues.write("[profile=light] job a 0 3", "[profile=light] job b")
    assert queues.run().wait() == 3
    quiet = queues.run("-q", json=False)
    assert quiet.wait() == 3
    (line,) = quiet.out.splitlines()
    retry = "slicer queue retry jobs.txt --log-dir logs"
    assert line.endswith(f" nothing left; job 1 failed earlier (3); to run it again: {retry}")
    (summary,) = queues.run().events("summary")
    assert [job["no"] for job in summary["earlier"]] == [1]
    queues.append("[profile=light] job c")
    assert " 1 job in " in queues.run(json=False).out
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}


# Q12, E5: as docs/queue-events.md has it, once an attempt and GPU
def test_a_job_that_keeps_growing_is_warned_of_once(queues: QueueBox) -> None:
    queues.write("[vram=1G] simjob --vram 20G --ramp 3s --hold 3")
    queue = queues.run()
    assert len(queue.events("exceeds")) == 1
    (end,) = queue.events("finished")
    assert end["job"]["peak_mib"] == [20 << 10]
    said = queues.run("--fresh", json=False).out
    assert said.count(" WARN job 1 uses ") == 1


# W19, E6: what can never start says why
def test_a_job_that_follows_a_failure_is_skipped(queues: QueueBox) -> None:
    queues.write(
        "[profile=light name=bad] false",
        "[profile=light after=bad name=x] job b",
        "[profile=light after=x] job c",
    )
    said = queues.run(json=False).out
    assert "job 2 (x) skipped: bad, which it follows, failed (exit 1); job b\n" in said
    assert "job 3 skipped: x, which it follows, was skipped; job c\n" in said


# E7
def test_a_second_queue_is_told_where_to_look(queues: QueueBox) -> None:
    queues.write("[profile=light] hold a")
    first = queues.start()
    queues.started("a")
    second = queues.run(json=False)
    assert second.wait() == 75
    told = rf"logs: already running \(pid {first.pid}, since \d\d:\d\d\): watch cat logs/status.txt \("
    assert re.search(told, second.err), second.err
    queues.let("a")
    assert first.wait() == 0


# W6, E7: failed jobs run again when somebody says so, and no others
def test_failed_jobs_are_run_again_when_asked(queues: QueueBox) -> None:
    fails = 'echo "start $0 $$" >>$LOG; test -e ok'
    queues.write(
        f"[profile=light name=a] {fails} # a", f"[profile=light] {fails} # b", "[profile=light] job c"
    )
    assert queues.run().wait() == 1
    assert of_queue(queues, "retry", "jobs.txt", "3").returncode == 2
    named = of_queue(queues, "retry", "jobs.txt", "a")
    assert named.stdout == "job 1 is pending again; next: slicer queue jobs.txt --log-dir logs\n"
    (queues.root / "ok").touch()
    again = queues.run()
    assert again.wait() == 1
    (end,) = again.events("finished")
    assert (end["job"]["no"], end["job"]["attempt"], end["log"]) == (1, 2, "job0001.2.log")
    assert of_queue(queues, "retry", "jobs.txt").stdout.startswith("job 2 is pending again")
    queue = queues.run()
    assert queue.wait() == 0
    assert len(queue.events("finished")) == 1
    assert of_queue(queues, "retry", "jobs.txt").stdout == "no job of jobs.txt has failed\n"
    assert of_queue(queues, "retry", "jobs.txt", "--log-dir", "none").returncode == 2
    assert not (queues.root / "none").exists()
    queues.assert_clean()
