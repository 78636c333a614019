"""A command that only fails is held back, whatever becomes of its queue (U19)."""

from __future__ import annotations

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


def retry(queues: QueueBox, *words: str) -> str:
    command = [*queues.box.prefix, *SLICER, "queue", "retry", "jobs.txt", "--log-dir", "logs", *words]
    done = subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=True
    )
    return done.stdout


# U19: no more than five, and what ran beside the fifth; what is not of them runs as ever
@pytest.mark.parametrize("at_a_time", [1, 4])
def test_a_broken_sweep_costs_five_attempts(queues: QueueBox, at_a_time: int) -> None:
    queues.write(*(f"[profile=light] job {n} 0 3" for n in range(1000)), "[profile=light] hold good")
    queue = queues.start("-j", str(at_a_time))
    held = queue.event("held-back")
    assert (held["group"], held["failures"]) == ("job", 5)
    queues.started("good")
    status = queues.logs / "status.txt"
    until(lambda: "jobs of job are held back: 5 attempts" in status.read_text(), "status.txt says so")
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
