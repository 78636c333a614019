"""A job that outlives its queue: the next one has its output, time limit, GPU memory and exit code (E13)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.patience import until
from tests.process.harness import Box, gone, kill
from tests.process.queue_box import QueueBox, Running


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def orphaned(queues: QueueBox, *options: str) -> Running:
    """The only job of the file runs, and its queue is dead."""
    queue = queues.start(*options)
    queues.started("a")
    queue.kill()
    return queue


# E13, E8
def test_output_goes_on_in_the_same_log(queues: QueueBox) -> None:
    command = "echo before; hold a 5; echo after; exit 5"
    queues.write(command)
    orphaned(queues)
    again = queues.start()
    adopted = again.event("adopted")
    assert adopted["job"]["no"] == 1
    queues.let("a")
    assert again.wait() == 5
    assert queues.statuses() == {command: ("failed", 5)}
    assert queues.log(command) == "before\nafter\n"
    assert queues.starts() == {"a": 1}
    assert [path.name for path in queues.logs.glob("*.log")] == ["job0001.log"]
    queues.assert_clean()


# E13
@pytest.mark.parametrize("ends", ["a signal", "while no queue runs"])
def test_the_exit_code_is_known(queues: QueueBox, ends: str) -> None:
    queues.write("[vram=2G] exec hold a 7")
    orphaned(queues)
    command = int(queues.box.started("a"))
    if ends == "a signal":
        again = queues.start()
        again.event("adopted")
        kill(command, signal.SIGUSR1)
        assert again.wait() == 128 + signal.SIGUSR1
        assert queues.journal()["exec hold a 7"].signal == signal.SIGUSR1
    else:
        queues.let("a")
        until(lambda: not queues.box.processes(), "it ends")
        assert queues.run().process.returncode == 7
    assert queues.starts() == {"a": 1}
    queues.assert_clean()


# E10
@pytest.mark.parametrize("is_adopted", [True, False])
def test_the_time_limit_holds(queues: QueueBox, is_adopted: bool) -> None:
    queues.write("[vram=2G timeout=0.5s] hold a")
    orphaned(queues)
    command = int(queues.box.started("a"))
    again = queues.start() if is_adopted else None
    until(lambda: gone(command), "it is ended in time")
    again = again or queues.start()
    assert again.wait() == 124
    assert queues.statuses() == {"hold a": ("timeout", 124)}
    assert queues.starts() == {"a": 1}
    queues.assert_clean()


# E5: said by the next queue, and the peak is known in the end
def test_over_use_is_warned_of(queues: QueueBox) -> None:
    command = "echo start a $$ >>$LOG; simjob --vram 6G --ramp 0 --hold 1000 & read x <go; kill $!"
    os.mkfifo(queues.root / "go")
    queues.write(f"[vram=2G] {command}")
    orphaned(queues)
    again = queues.start()
    exceeded = again.event("exceeds")
    assert (exceeded["declared_mib"], exceeded["used_mib"], exceeded["gpu"]) == (2048, 6144, 0)
    (queues.root / "go").write_text("go\n")
    assert again.wait() == 0
    state = queues.journal()[command]
    assert (state.status, state.vram_peak_mib, state.verdict) == ("ok", (6144,), "under-declared")
    queues.assert_clean()


# E6
def test_cancel_ends_it(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a", "job b")
    orphaned(queues)
    command = int(queues.box.started("a"))
    again = queues.start("--watch")
    again.event("adopted")
    queues.write("[vram=2G cancel] hold a", "job b")
    again.event("finished")
    until(lambda: queues.statuses()["hold a"][0] == "cancelled", f"it is cancelled\n{again.out}")
    assert gone(command)
    until(lambda: queues.statuses()["job b"] == ("ok", 0), "the next one runs")
    again.send(signal.SIGTERM)
    assert again.wait() == 0
    queues.assert_clean()


# E6: its line says so before the next queue begins
def test_cancelled_while_no_queue_runs(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a")
    orphaned(queues)
    queues.write("[vram=2G cancel] hold a")
    again = queues.run()
    assert again.process.returncode == 0
    assert queues.statuses()["hold a"][0] == "cancelled"
    queues.assert_clean()


# E7: removed from the file, it is waited for, and known
def test_its_line_is_gone(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a 3", "[vram=2G] job b")
    orphaned(queues)
    queues.write("[vram=2G] job b")
    again = queues.start()
    again.event("adopted")
    queues.let("a")
    assert again.wait() == 3
    assert queues.starts() == {"a": 1, "b": 1}
    assert queues.statuses()["hold a 3"] == ("failed", 3)
    queues.assert_clean()


# E2, E4: its GPUs count as taken, and it counts for -j
@pytest.mark.parametrize("options", [(), ("-j", "1"), ("--exclusive",)])
def test_it_keeps_its_place(queues: QueueBox, options: tuple[str, ...]) -> None:
    small = "" if options else "[vram=20G] "
    queues.gpus = 1
    queues.write("[vram=20G] hold a", f"{small or '[vram=1G] '}job b")
    orphaned(queues, *options)
    again = queues.start(*options)
    again.event("adopted")
    queues.asleep(again)
    queues.let("a")
    assert again.wait() == 0
    assert [line.split()[:2] for line in queues.box.lines()] == [
        ["start", "a"], ["end", "a"], ["start", "b"], ["end", "b"],
    ]  # fmt: skip
    queues.assert_clean()


# E7: SIGTERM once: the adopted job is waited for; twice: it is ended, and run again by the next queue
def test_stopped_with_an_adopted_job(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a")
    orphaned(queues)
    again = queues.start()
    again.event("adopted")
    again.send(signal.SIGTERM)
    again.event("stopping")
    assert not gone(int(queues.box.started("a")))
    again.send(signal.SIGTERM)
    again.event("ending")
    assert again.wait() == 143
    assert queues.statuses()["hold a"][0] == "pending"
    last = queues.start()
    until(lambda: queues.starts() == {"a": 2}, "it runs again")
    queues.let("a")
    assert last.wait() == 0
    queues.assert_clean()


# E7: --fresh beside a job of the earlier queue would run it twice at the same time: refused, nothing changes
def test_fresh_beside_a_job_of_the_earlier_queue(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a 3")
    orphaned(queues)
    before = queues.journal()
    refused = queues.run("--fresh")
    assert refused.wait() == 125
    assert "earlier queue" in refused.err
    assert queues.journal() == before
    queues.let("a")
    until(lambda: not queues.box.processes(), "it ends")
    queues.write("[vram=2G] job a 0 4")
    assert queues.run("--fresh").wait() == 4
    assert queues.statuses() == {"job a 0 4": ("failed", 4)}
    queues.assert_clean()
