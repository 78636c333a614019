"""Asked to leave: once, the queue starts nothing new and waits; twice, it ends its jobs (E12)."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Callable

import pytest

from tests.patience import DEADLINE_S, Deadline, until
from tests.process.harness import SLICER, Box, children, gone, state_of
from tests.process.queue_box import QueueBox

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


# E12
@pytest.mark.parametrize(("signo", "code"), CODES)
def test_once_waits_for_what_runs(queues: QueueBox, signo: int, code: int) -> None:
    queues.write("[vram=2G] hold a 3", "job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    queue.send(signo)
    assert queue.event("stopping")["running"] == 1
    queues.append("job c")
    queues.asleep(queue)
    queues.let("a")
    assert queue.wait() == code
    assert queues.starts() == {"a": 1}
    assert queues.statuses()["hold a 3"] == ("failed", 3)
    assert queues.run().wait() == 3
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}
    queues.assert_clean()


# E12: nothing was left: the jobs' own code
def test_once_with_nothing_left(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a 3")
    queue = queues.start()
    queues.started("a")
    queue.send(signal.SIGTERM)
    queue.event("stopping")
    queues.let("a")
    assert queue.wait() == 3
    queues.assert_clean()


# E12: no job runs on unseen; those that were ended are for the next queue
@pytest.mark.parametrize(("signo", "code"), CODES)
def test_twice_ends_the_jobs(queues: QueueBox, signo: int, code: int) -> None:
    queues.write("[vram=2G] hold a", "[vram=2G] hold b", "[vram=2G] exec sleep 60")
    queue = queues.start()
    queues.started("a", "b")
    pids = [int(queues.box.started(name)) for name in "ab"]
    queue.send(signo)
    queue.event("stopping")
    queue.send(signo)
    queue.event("ending")
    assert queue.wait() == code
    assert all(map(gone, pids))
    assert {status for status, _ in queues.statuses().values()} == {"pending"}
    queues.assert_clean()
    again = queues.start()
    until(lambda: queues.starts() == {"a": 2, "b": 2}, "they run again")
    again.send(signal.SIGTERM)
    again.event("stopping")
    again.send(signal.SIGTERM)
    assert again.wait() == 143
    queues.assert_clean()


# Q18: what the queue ended runs again, or is cancelled as its line says, though the queue was killed
@pytest.mark.parametrize("way", ["asked twice", "cancelled"])
def test_killed_before_the_jobs_that_it_ends_have_ended(queues: QueueBox, way: str) -> None:
    queues.write("[vram=2G] hold a")
    queue = queues.start(env=queues.faults())
    queues.started("a")
    if way == "cancelled":
        queues.arm("keeper-ended", "queue-saving")
        queues.write("[vram=2G cancel] hold a")
        until(lambda: len(queues.stopped()) == 2, "the job is told to end, and the queue has not written so")
    else:
        queues.arm("keeper-ended")
        for word in ("stopping", "ending"):
            queue.send(signal.SIGTERM)
            queue.event(word)
        until(queues.stopped, "the job is told to end")
    queue.kill()
    queues.go_on()
    until(lambda: not queues.box.processes(), "the job ends")
    again = queues.start()
    if way == "asked twice":
        assert "stopped with the queue" in again.event("requeued")["why"]
        until(lambda: queues.starts() == {"a": 2}, "it runs again")
        queues.let("a")
    assert again.wait() == 0
    assert queues.statuses()["hold a"][0] == ("ok" if way == "asked twice" else "cancelled")
    queues.assert_clean()


# E7: ended by itself a moment before: it is done, and not run again
def test_twice_when_a_job_has_just_ended(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a 3", "job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    keeper = queues.keeper("a")
    os.kill(keeper, signal.SIGSTOP)
    queues.let("a")
    until(lambda: all(map(gone, children(keeper))), "the command ends")
    for word in ("stopping", "ending"):
        queue.send(signal.SIGTERM)
        queue.event(word)
    os.kill(keeper, signal.SIGCONT)
    assert queue.wait() == 143
    assert queues.statuses()["hold a 3"] == ("failed", 3)
    assert queues.run().wait() == 3
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# E12: nor does a signal that comes too late cut short what is left to write, or change the exit code
def test_a_signal_while_it_leaves(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a", "job b")
    queue = queues.start("-j", "1", env=queues.faults("queue-leaving"))
    queues.started("a")
    queue.send(signal.SIGTERM)
    queue.event("stopping")
    queues.let("a")
    until(lambda: queue.pid in queues.stopped(), "the queue leaves")
    queue.send(signal.SIGINT)
    queues.go_on()
    assert queue.wait() == 143
    assert queue.events("summary")
    queues.assert_clean()


# E12: both at once, before the queue has looked
def test_two_signals_at_once(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a", "job b")
    queue = queues.start("-j", "1")
    queues.started("a")
    os.kill(queue.pid, signal.SIGSTOP)
    queue.send(signal.SIGTERM)
    queue.send(signal.SIGINT)
    queue.send(signal.SIGCONT)
    assert queue.wait() in (130, 143)
    queues.assert_clean()


# E12: at any moment of the beginning
def test_a_signal_while_jobs_are_being_started(queues: QueueBox) -> None:
    queues.write("[vram=2G] job a", "[vram=2G] job b")
    queue = queues.start(env=queues.faults("queue-letting-go"))
    until(lambda: queue.pid in queues.stopped(), "a job is about to begin")
    queue.send(signal.SIGTERM)
    queues.go_on()
    assert queue.wait() in (0, 143)
    assert queues.run().wait() == 0
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# E12: under nohup, a lost terminal is no reason to leave
def test_nohup(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a")
    queue = queues.start(prefix=("sh", "-c", 'trap "" HUP; exec "$0" "$@"'))
    queues.started("a")
    queue.send(signal.SIGHUP)
    queues.let("a")
    assert queue.wait() == 0
    assert not queue.events("stopping")


# E12: in a terminal; Ctrl-Z stops the queue and not its jobs, fg takes up what happened, Ctrl-C ends it
def test_job_control_in_a_terminal(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a", "[vram=2G] hold b", "job c")
    shell = 'set -m; "$@"; echo "left $?"; read go; fg; echo "left $?"'
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(queues.root)
        command = [*SLICER, "queue", "jobs.txt", "--backend", "plain", "--sim", "2", "--log-dir", "logs"]
        os.execvpe("sh", ["sh", "-c", shell, "sh", *queues.box.prefix, *command, "-j", "2"],
                   {**queues.box.env, "TERM": "xterm"})  # fmt: skip
    try:
        screen = Screen(terminal)
        screen.until(lambda: {"a", "b"} <= set(queues.starts()))
        os.write(terminal, b"\x1a")
        screen.until(lambda: f"left {128 + signal.SIGTSTP}" in screen.text)
        queues.let("a")
        queues.ended("a")
        assert state_of(int(queues.box.started("b"))) in ("S", "R", "D")  # it may only now be about to wait
        os.write(terminal, b"\n")
        screen.until(lambda: queues.statuses()["hold a"] == ("ok", 0))
        queues.ended("c")
        os.write(terminal, b"\x03")
        screen.until(lambda: "stopping" in queues.logs.joinpath("status.txt").read_text())
        os.write(terminal, b"\x03")
        screen.until(lambda: "left 130" in screen.text)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}
    queues.assert_clean()


class Screen:
    """What comes out of a terminal; somebody has to read it, or its programs wait."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.text = ""

    def until(self, look: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
        deadline = Deadline(deadline_s)
        while not look():
            if deadline.has_passed():
                pytest.fail(f"still not\n{self.text[-3000:]}")
            if select.select([self._fd], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self._fd, 65536).decode(errors="replace")
                except OSError:
                    self.text += "(closed)"
                    time.sleep(0.02)


# E12
@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((3, 0, 1), 3), ((1, 255, 2), 255)])
def test_the_largest_exit_code(queues: QueueBox, codes: tuple[int, ...], code: int) -> None:
    queues.write(*(f"[vram=1G] job {number} 0 {said}" for number, said in enumerate(codes)))
    assert queues.run().wait() == code
    assert queues.run().wait() == code  # of a queue that has nothing left to do, too
    assert set(queues.starts().values()) == {1}
