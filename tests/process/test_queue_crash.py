"""The queue killed at any moment: started anew, it runs nothing twice and knows all exit codes (E7, E13)."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable

import pytest

from tests.patience import until
from tests.process.harness import Box, gone, kill_9, sleeps_in_flock
from tests.process.queue_box import QueueBox, Running

# Where the queue itself comes by, on the way of one job.
QUEUE = [
    "queue-saving", "queue-saved", "queue-forked", "queue-letting-go", "queue-let-go", "queue-leaving",
]  # fmt: skip
# Where the supervisor of one of its jobs comes by: before the queue's word, and after.
ASKING = [
    "run-forked", "ledger-judged", "ledger-created", "ledger-locked", "ledger-half-written", "ledger-written",
    "launch-acquired", "supervisor-forked", "supervisor-started-scope", "ledger-updating",
]  # fmt: skip
RUNNING = ["supervisor-updated-lease", "supervisor-let-go", "supervisor-waiting"]
ENDING = [
    "supervisor-heard-end", "ending-finished", "attempt-noted-end", "ledger-releasing", "ledger-unlinked",
    "ledger-closed", "ending-released", "ending-written", "supervisor-settled", "supervisor-told-keeper",
]  # fmt: skip
# Where its keeper comes by.
KEEPER = [
    "keeper-forked", "keeper-ordered", "keeper-noted-start", "keeper-spawned", "keeper-reaped",
    "keeper-ended", "keeper-told",
]  # fmt: skip
# Before these the command has not begun; what is killed here has to be run by the next queue.
BEFORE = {"keeper-forked", "keeper-ordered"}


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def finish(queues: QueueBox, expected: dict[str, tuple[str, int]], code: int) -> Running:
    """Start the queue again: it does what is left, and ends with everything known and nothing left behind."""
    queue = queues.start("--hold-back", "off")
    until(lambda: queues.go_on() or queue.process.poll() is not None, "the queue ends")
    assert queue.wait() == code, queue.out + queue.err
    assert queues.statuses() == expected
    until(lambda: queues.go_on() or not queues.box.processes(), f"all end; {queues.box.describe()}")
    queues.assert_clean()
    return queue


# E7, E13
@pytest.mark.parametrize("point", QUEUE)
def test_the_queue_killed_at_a_point(queues: QueueBox, point: str) -> None:
    queues.write("[vram=2G] job a 0.02 3", "job b 0 0")
    queue = queues.start(env=queues.faults(point))
    until(lambda: queue.pid in queues.stopped(), f"the queue comes to {point}\n{queue.out}")
    queue.kill()
    finish(queues, {"job a 0.02 3": ("failed", 3), "job b 0 0": ("ok", 0)}, 3)
    assert queues.starts() == {"a": 1, "b": 1}


# E7, E13
@pytest.mark.parametrize("point", ["queue-saving", "queue-saved"])
def test_the_queue_killed_when_it_hears_of_an_end(queues: QueueBox, point: str) -> None:
    queues.write("[vram=2G] hold a 3")
    queue = queues.start(env=queues.faults())
    queue.event("started")
    queues.started("a")
    queues.arm(point)
    queues.let("a")
    until(lambda: queue.pid in queues.stopped(), f"the queue comes to {point}")
    queue.kill()
    finish(queues, {"hold a 3": ("failed", 3)}, 3)
    assert queues.starts() == {"a": 1}


# E7, E13
@pytest.mark.parametrize("point", KEEPER)
def test_the_queue_killed_while_a_keeper_is_at_a_point(queues: QueueBox, point: str) -> None:
    queues.write("[vram=2G] job a 0.02 3")
    queue = queues.start(env=queues.faults(point))
    (keeper,) = until(queues.stopped, f"somebody comes to {point}\n{queue.out}")
    assert keeper != queue.pid
    queue.kill()
    again = queues.start()
    until(lambda: again.events() or sleeps_in_flock(again.pid), "the next queue is as far as it gets")
    queues.go_on()
    assert again.wait() == 3, again.out + again.err
    assert queues.statuses() == {"job a 0.02 3": ("failed", 3)}
    assert queues.starts() == {"a": 1}
    until(lambda: not queues.box.processes(), "all end")
    queues.assert_clean()


# E13: the keeper is killed, the queue lives: what is left of the job is ended, and the GPU is free again
@pytest.mark.parametrize("point", [point for point in KEEPER if point not in BEFORE])
def test_a_keeper_killed_while_the_queue_lives(queues: QueueBox, point: str) -> None:
    queues.write("[vram=20G gpus=2] job a 0.02 3")
    queue = queues.start(env=queues.faults(point))
    (keeper,) = until(queues.stopped, f"somebody comes to {point}\n{queue.out}")
    queues.append("[vram=20G gpus=2] job b")
    kill_9(keeper)
    until(lambda: queues.go_on() or queue.process.poll() is not None, f"the queue ends\n{queue.out}")
    known = point == "keeper-told"
    assert queues.statuses() == {"job a 0.02 3": ("failed", 3 if known else 137), "job b": ("ok", 0)}
    assert queue.wait() == (3 if known else 137)
    assert queues.starts()["a"] == (0 if point == "keeper-noted-start" else 1)
    assert not queue.err
    queues.assert_clean()


# E13: before the queue's word the job is asked for again, and after it the keeper needs no supervisor
@pytest.mark.parametrize("point", [*ASKING, *RUNNING, *ENDING])
def test_a_supervisor_killed_at_a_point(queues: QueueBox, point: str) -> None:
    queues.write("[vram=20G gpus=2] job a 0.02 3", "[vram=20G gpus=2] job b")
    queue = queues.start(env=queues.faults(point))
    supervisor, *_ = until(queues.stopped, f"somebody comes to {point}\n{queue.out}")  # and another
    assert supervisor != queue.pid
    kill_9(supervisor)
    until(lambda: queues.go_on() or queue.process.poll() is not None, f"the queue ends\n{queue.out}")
    assert queue.wait() == 3, queue.out
    assert queues.statuses() == {"job a 0.02 3": ("failed", 3), "job b": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1}
    assert not queue.err
    queues.assert_clean()


# E7, E13
@pytest.mark.parametrize("point", [*ASKING, *RUNNING, *ENDING])
def test_the_queue_killed_while_a_supervisor_is_at_a_point(queues: QueueBox, point: str) -> None:
    queues.write("[vram=2G] job a 0.02 3")
    queue = queues.start(env=queues.faults(point))
    until(queues.stopped, f"somebody comes to {point}\n{queue.out}")
    queue.kill()
    queues.go_on()
    finish(queues, {"job a 0.02 3": ("failed", 3)}, 3)
    assert queues.starts() == {"a": 1}


# E13: and what needs nothing is made ready before its turn; killed then, it is made ready again
def test_a_keeper_killed_before_its_turn(queues: QueueBox) -> None:
    queues.write("[profile=light] hold a 3", "[profile=light] job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    first = queues.keeper("a")

    def ahead() -> list[int]:
        return [pid for pid in queues.named("slicer-keeper") if pid != first]

    (keeper,) = until(ahead, "b is made ready")
    queues.asleep(queue)
    kill_9(keeper)
    queue.event("requeued")
    until(lambda: ahead() not in ([], [keeper]), "b is made ready again")
    queues.asleep(queue)
    queues.let("a")
    assert queue.wait() == 3
    assert queues.statuses() == {"hold a 3": ("failed", 3), "job b": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# Q1: a shortage that passes gives no job up, also while nothing else happens
def test_a_job_that_cannot_be_started_for_a_while(queues: QueueBox) -> None:
    queues.write("[vram=2G] job a", "[vram=2G] job b 0 3")
    queue = queues.start("-j", "1", env=queues.faults("run-forked"))
    for _ in range(4):
        (run,) = until(queues.stopped, f"it is asked\n{queue.out}")
        kill_9(run)
    until(queues.stopped, f"it is asked\n{queue.out}")
    assert queues.starts() == {}
    assert {state.status for state in queues.journal().values()} <= {"pending", "running"}
    queues.go_on()
    assert queue.wait() == 3, queue.out
    assert queues.statuses() == {"job a": ("ok", 0), "job b 0 3": ("failed", 3)}
    assert queues.starts() == {"a": 1, "b": 1}
    assert not queue.events("infeasible")
    queues.assert_clean()


# E13: so are processes that run on
def test_a_keeper_killed_while_its_job_runs(queues: QueueBox) -> None:
    queues.write("[vram=20G gpus=2] hold a", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    command = int(queues.box.started("a"))
    kill_9(queues.keeper("a"))
    assert queue.wait() == 137
    assert gone(command)
    assert queues.statuses() == {"hold a": ("failed", 137), "job b": ("ok", 0)}
    assert not queue.err
    queues.assert_clean()


# E7, E13: everything is killed, at any point: never run twice, and no exit code lost that was noted
@pytest.mark.parametrize("point", [*KEEPER[:-1], *ENDING])
def test_all_processes_of_slicer_killed_at_a_point(queues: QueueBox, point: str) -> None:
    queues.write("[vram=20G gpus=2] job a 0.02 3")
    queue = queues.start(env=queues.faults(point))
    stopped = until(queues.stopped, f"somebody comes to {point}\n{queue.out}")
    both = {*queues.named("slicer-run"), *queues.named("slicer-keeper")}
    kill_9(queue.pid, *both.difference(stopped), *stopped)  # so nobody is left to act for who is dead
    is_known = point in BEFORE or (
        point in ENDING and ENDING.index(point) >= ENDING.index("attempt-noted-end")
    )
    expected = ("failed", 3) if is_known else ("lost", 1)
    finish(queues, {"job a 0.02 3": expected}, expected[1])
    assert queues.starts()["a"] == (0 if point == "keeper-noted-start" else 1)


# E13: nobody is left who could tell how it ended: it is said so, and it is not run again
def test_queue_and_keeper_killed_the_job_is_lost(queues: QueueBox) -> None:
    queues.write("[vram=20G gpus=2] hold a", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    command = int(queues.box.started("a"))
    kill_9(queue.pid, *queues.slicers("a"), command)
    again = queues.run()
    assert again.process.returncode == 1
    assert queues.statuses() == {"hold a": ("lost", 1), "job b": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1}
    assert [event["job"]["no"] for event in again.events("lost")] == [1]
    queues.assert_clean()


# E13: the same, but the job's processes live on: its GPUs are not given away under them
def test_queue_and_keeper_killed_the_job_lives_on(queues: QueueBox) -> None:
    queues.write("[vram=20G gpus=2] hold a", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    kill_9(queue.pid, *queues.slicers("a"))
    again = queues.start()
    again.event("adopted")
    queues.asleep(again)
    assert queues.starts() == {"a": 1}
    queues.let("a")
    assert again.wait() == 1
    assert queues.statuses() == {"hold a": ("lost", 1), "job b": ("ok", 0)}
    assert [line.split()[:2] for line in queues.box.lines()] == [
        ["start", "a"], ["end", "a"], ["start", "b"], ["end", "b"],
    ]  # fmt: skip
    queues.assert_clean()


# E13: between the queue's death and the next queue, the keeper goes too
def test_the_keeper_killed_between_two_queues(queues: QueueBox) -> None:
    queues.write("[vram=20G gpus=2] hold a", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    slicers = queues.slicers("a")
    queue.kill()
    kill_9(*slicers)
    command = int(queues.box.started("a"))
    assert not gone(command)
    again = queues.start()
    again.event("adopted")
    queues.write("[vram=20G gpus=2 cancel] hold a", "[vram=20G gpus=2] job b")
    again.event("cancelling")
    again.wait()
    assert gone(command)
    assert queues.statuses()["job b"] == ("ok", 0)
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# E13: an adopted job's keeper is killed: nothing runs on unseen, nor beside its GPUs' next job
def test_the_keeper_of_an_adopted_job_killed(queues: QueueBox) -> None:
    queues.write("[vram=20G gpus=2] hold a", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    keeper, command = queues.keeper("a"), int(queues.box.started("a"))
    queue.kill()
    again = queues.start()
    again.event("adopted")
    queues.asleep(again)
    kill_9(keeper)
    until(lambda: gone(command) or again.events("lost", "finished"), f"something happens\n{again.out}")
    assert gone(command), "the job runs on, and is not looked after"
    again.wait()
    assert queues.statuses()["job b"] == ("ok", 0)
    queues.assert_clean()


def mixed(count: int, seed: int) -> tuple[list[str], dict[str, tuple[str, int]]]:
    """Jobs of all kinds, and how they end."""
    dice = random.Random(seed)
    lines, expected = [], {}
    for number in range(count):
        code = dice.choice([0, 0, 0, 1, 3, 200])
        command = f"job {number} 0.{dice.randint(5, 30):02} {code}"
        lines.append(f"{dice.choice(['', '[profile=heavy] ', '[vram=1G] ', '[vram=3G gpus=2] '])}{command}")
        expected[command] = ("failed", code) if code else ("ok", 0)
    return lines, expected


# E7, E13
@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_with_50_jobs(queues: QueueBox, seed: int) -> None:
    dice = random.Random(seed)
    lines, expected = mixed(50, seed)
    queues.write(*lines)
    for _ in range(8):
        queue = queues.start("--hold-back", "off")
        wanted = sum(queues.starts().values()) + dice.randint(0, 8)
        moment = time.monotonic() + dice.uniform(0.1, 0.4)
        if (
            until(functools.partial(ended_or_due, queues, queue, wanted, moment), "something happens")
            == "ended"
        ):
            break
        queue.kill()
    finish(queues, expected, 200)
    assert queues.starts() == {str(number): 1 for number in range(50)}


def ended_or_due(queues: QueueBox, queue: Running, wanted: int, moment: float) -> str:
    """Whether the queue has ended, or is to be killed: so many jobs have started, or it is that late."""
    if queue.process.poll() is not None:
        return "ended"
    return "due" if sum(queues.starts().values()) >= wanted or time.monotonic() > moment else ""
