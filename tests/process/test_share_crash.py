"""A process of a sharing job may be killed or stopped at any point: others get its GPU and its memory."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.patience import until
from tests.process.share_box import SOURCES, Client, ShareBox, overlaps

pytest_plugins = ["tests.process.share_fixtures"]

POINTS = sorted(
    {point for file in SOURCES.glob("*.c") for point in re.findall(r'\bfault\("([^"]+)"\)', file.read_text())}
)
ENV = {"SLICER_SHARE_QUANTUM_MS": "3", "SLICER_SHARE_DRAIN_MS": "100"}
CAP_MIB = 1000
# It takes turns with another job, waits for it, is waited for, allocates and frees, and captures a graph.
COMMANDS = (
    "init",
    "context",
    "alloc linear 600",
    "work 300 30 5",
    "spin 300 - 40",
    "free 0",
    "alloc create 100",
    "stream",
    "begin 0 1",
    "spin 100 0",
    "end 0",
    "graph 0 0",
    "sync",
    "work 300 30 0",
    "fork init",
    "destroy 0",
)


def play(victim: Client) -> None:
    for command in COMMANDS:
        try:
            victim.tell(command)
        except BrokenPipeError:
            return


def is_dead(victim: Client) -> bool:
    return victim.process.poll() is not None


def is_stopped(victim: Client) -> bool:
    with open(f"/proc/{victim.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_point_leaves_the_GPU_to_the_others(
    faulty: ShareBox, point: str
) -> None:  # D1 X7
    job, other_job = faulty.job(wants="both", limit_mib=CAP_MIB), faulty.job()
    other = faulty.ready(other_job, env=ENV)
    other.hammer(300, 4)
    victim = faulty.start(job, env={**ENV, "SLICER_SHARE_FAULTS": f"{point}:kill"})
    play(victim)
    until(lambda: is_dead(victim), f"killed at {point}")
    killed_ns = time.monotonic_ns()
    assert victim.process.returncode == -signal.SIGKILL
    before = int(other.do("progress")[0])
    until(lambda: int(other.do("progress")[0]) > before + 3, "the other job goes on")
    next_one = faulty.ready(job, env=ENV)
    next_one.do("spin 300", "sync", "alloc linear 900")
    other.halt()
    assert overlaps(faulty.fake, [victim], [other], [next_one], killed={victim.pid: killed_ns}) == []


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_process_stopped_at_a_point_holds_up_nobody_for_long(faulty: ShareBox, point: str) -> None:  # D1
    job, other_job = faulty.job(wants="both", limit_mib=CAP_MIB), faulty.job()
    other = faulty.ready(other_job, env=ENV)
    other.hammer(300, 4)
    victim = faulty.start(job, env={**ENV, "SLICER_SHARE_FAULTS": f"{point}:stop"})
    play(victim)
    until(lambda: is_stopped(victim), f"stopped at {point}")
    before = int(other.do("progress")[0])
    until(lambda: int(other.do("progress")[0]) > before + 3, "the other job goes on")
    victim.send(signal.SIGCONT)
    answers = [victim.hear() for _ in COMMANDS]
    codes = [answer.code for answer in answers]
    assert codes == [3 if command.startswith("fork") else 0 for command in COMMANDS]
    other.halt()


def test_there_are_points_to_kill_at() -> None:  # D1
    assert len(POINTS) >= 8


def test_a_killed_waiter_keeps_nobody_waiting(share: ShareBox) -> None:  # D1
    jobs = [share.job(priority=priority) for priority in (50, 0, 0)]
    holder = share.ready(jobs[0], env={"SLICER_SHARE_QUANTUM_MS": "600000"})
    holder.hammer(300, 0)
    waiters = []
    for job in jobs[1:]:
        waiters.append(share.ready(job))
        waiters[-1].tell("spin 300")
        share.until_turn(job, "waiting")
    waiters[0].kill()
    holder.do("halt")
    holder.end()
    assert waiters[1].hear().code == 0


@pytest.mark.parametrize("mode", ["launches", "yield"])
def test_a_killed_holder_frees_its_GPU(share: ShareBox, mode: str) -> None:  # D1
    env = {"SLICER_SHARE_QUANTUM_MS": "600000"} if mode == "yield" else {"SLICER_SHARE_LAUNCHES": "1000000"}
    env["SLICER_SHARE_DRAIN_MS"] = "600000"  # nobody but the kernel says that it is dead
    job, other_job = share.job(), share.job()
    holder = share.ready(job, env=env)
    holder.hammer(500, 0)
    other = share.ready(other_job, env=env)
    other.tell("spin 300")
    share.until_turn(other_job, "waiting")
    holder.kill()
    assert other.hear().code == 0
    assert job.count("undrained") == 0


def test_a_killed_process_of_a_job_leaves_the_turn_to_the_others_of_its_job(share: ShareBox) -> None:  # D1
    job, other_job = share.job(), share.job()
    env = {"SLICER_SHARE_QUANTUM_MS": "5"}
    first, second = share.ready(job, env=env), share.ready(job, env=env)
    other = share.ready(other_job, env=env)
    for client in (first, second, other):
        client.hammer(300, 4)
    until(lambda: job.count("turns") >= 2, "they take turns")
    killed_ns = time.monotonic_ns()
    first.kill()
    turns = job.count("turns")
    until(lambda: job.count("turns") > turns + 2, "they go on taking turns")
    for client in (second, other):
        client.halt()
    assert overlaps(share.fake, [first, second], [other], killed={first.pid: killed_ns}) == []
