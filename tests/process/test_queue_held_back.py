"""What fails at night: held back, or run again, whatever becomes of the queue (U8, U19)."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.harness import SLICER, Box
from tests.process.queue_box import QueueBox


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def slicer(queues: QueueBox, *words: str) -> str:
    command = [*queues.box.prefix, *SLICER, *words]
    done = subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=True
    )
    return done.stdout


def retry(queues: QueueBox) -> str:
    return slicer(queues, "queue", "retry", "jobs.txt", "--log-dir", "logs")


# U19: no more than five, and what ran beside the fifth; what is not of them runs as ever
@pytest.mark.parametrize("at_a_time", [1, 4])
def test_a_broken_sweep_costs_five_attempts(queues: QueueBox, at_a_time: int) -> None:
    queues.write(*(f"[profile=light] job {n} 0 3" for n in range(1000)), "[profile=light] hold good")
    queue = queues.start("-j", str(at_a_time))
    held = queue.event("held-back")
    assert held["group"] == "job"
    assert 5 <= held["failures"] < 5 + at_a_time  # several may have ended between two looks
    queues.started("good")
    status, told = queues.logs / "status.txt", f"jobs of job are held back: {held['failures']} attempts"
    until(lambda: told in status.read_text(), "status.txt says so")
    queues.let("good")
    assert queue.wait() == 3
    attempts = sum(queues.starts().values()) - 1
    assert 5 <= attempts <= 5 + at_a_time - 1
    summary = queue.event("summary")
    assert summary["counts"] == {"ok": 1, "failed": attempts, "pending": 1000 - attempts}
    assert len(summary["held"]) == 1
    assert queue.event("drained")["held"] == 1000 - attempts
    assert f"; {1000 - attempts} jobs no longer held back; next: slicer queue" in retry(queues)
    again = queues.run("-j", "1")  # the cause is still there
    assert len(again.events("held-back")) == 1
    assert sum(queues.starts().values()) - 1 == attempts + 5
    queues.assert_clean()


# U19, E7: neither the count nor the hold is lost, and no failure counts twice
@pytest.mark.parametrize("point", ["queue-saving", "queue-saved"])
@pytest.mark.parametrize("number", [3, 4])
def test_a_hold_outlives_a_queue_that_is_killed(queues: QueueBox, point: str, number: int) -> None:
    queues.write(*(f"[profile=light] hold {n} 3" for n in range(8)))
    queue = queues.start("-j", "1", env=queues.faults())
    for n in range(number):
        queues.started(str(n))
        queues.let(str(n))
    queues.started(str(number))
    queues.arm(point)
    queues.let(str(number))
    until(lambda: queue.pid in queues.stopped(), f"the queue comes to {point}\n{queue.out}")
    queue.kill()
    again = queues.start("-j", "1")
    if number < 4:
        queues.started("4")
        queues.let("4")
    assert again.event("held-back")["count"] == 3
    assert again.wait() == 3
    assert queues.starts() == dict.fromkeys(map(str, range(5)), 1)
    queues.assert_clean()


# U19, E6: the edit of a line releases the others; one that is added is held back with them
def test_an_edit_releases_what_is_held_back(queues: QueueBox) -> None:
    lines = [f"[profile=light] job {n} 0 3" for n in range(8)]
    queues.write(*lines)
    queue = queues.start("-j", "1", "--watch")
    assert queue.event("drained")["held"] == 3
    queues.append("[profile=light] job new")
    queue.event("file-changed", added=1)
    queues.asleep(queue)
    assert "new" not in queues.starts()
    queues.write(*lines[:7], "[profile=light] job 7", "[profile=light] job new")
    queue.event("released", group="job")
    queues.started("new", "7")
    queue.event("drained", held=0)
    queue.send(signal.SIGINT)
    assert queue.wait() == 3
    assert queues.starts() == dict.fromkeys([*map(str, range(8)), "new"], 1)
    queues.assert_clean()


# U19
def test_off_is_never(queues: QueueBox) -> None:
    queues.write(*(f"[profile=light] job {n} 0 3" for n in range(8)))
    queue = queues.run("--hold-back", "off")
    assert queue.wait() == 3
    assert not queue.events("held-back")
    assert sum(queues.starts().values()) == 8


# U8, E7: it runs again after a pause, which outlives the queue; whoever has mended the cause need not wait
def test_a_job_that_failed_runs_again(queues: QueueBox) -> None:
    queues.write("[profile=light retry=any:2] hold a 3", "[profile=light] job b")
    queue = queues.start()
    queues.started("a")
    queues.let("a")
    again = queue.event("retry", status="failed")
    assert (again["again_in_s"], again["attempt"], again["attempts"]) == (30, 1, 3)
    assert again["job"]["exit_code"] is None  # it is pending
    queue.event("finished", log="job0002.log")
    queues.asleep(queue)
    queue.kill()
    queue = queues.start()
    queue.event("opened", resumed=True)
    queues.asleep(queue)
    until(lambda: "again at " in (queues.logs / "status.txt").read_text(), "status.txt says when")
    assert queues.starts()["a"] == 1
    assert retry(queues).startswith("job 1 is pending again")
    until(lambda: queues.starts()["a"] == 2, "a runs again")
    queues.let("a")
    assert queue.event("retry")["attempts"] == 4
    shown = json.loads(slicer(queues, "show", "jobs.txt#1", "--json"))["queue"]
    ended = [(each["exit_code"], Path(each["log"]).name) for each in shown["ended"]]
    assert ended == [(3, "job0001.log"), (3, "job0001.2.log")]
    queue.send(signal.SIGINT)
    assert queue.wait() == 130
    assert queues.starts() == {"a": 2, "b": 1}
    assert sorted(path.name for path in queues.logs.glob("job0001*")) == ["job0001.2.log", "job0001.log"]
    queues.assert_clean()
