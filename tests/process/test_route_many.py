"""Callers that retry, and many of them at a time: never more than max_jobs, nothing lost. (C2, C3, X1)"""

from __future__ import annotations

import subprocess
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.patience import until
from tests.process.harness import Gate
from tests.process.route_box import RouteBox

CALLS = 50
MOST = {"gpu": 2, "cpu": 1}


def most_at_a_time(lines: list[str]) -> Counter[str]:
    """Of each way, how many jobs ran at a time, by what they wrote themselves."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in lines:
        word, _, _, way = line.split()
        running[way] += 1 if word == "start" else -1
        most[way] = max(most[way], running[way])
    return most


def test_many_calls_at_once_and_a_runner_that_retries(
    routes: RouteBox, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    routes.configure(gpu="max_jobs = 2", cpu="max_jobs = 1\nexit_code = 75")
    jobs = [(f"job{n}", "large" if n % 5 == 0 else "small") for n in range(CALLS)]

    def call(name: str, input: str, **env: str) -> subprocess.Popen[bytes]:
        return routes.start("whisper", "-q", "--", "job", name, input, env={"DO": "", **env})

    # All at once, and whoever gets a lease keeps it until all others have their answer.
    began = time.monotonic()
    calls = {call(name, input, GATE=str(gate.path)): (name, input) for name, input in jobs}
    blocked_s: list[float] = []
    left = dict(calls)

    def all_answered() -> bool:
        for process in [each for each in left if each.poll() is not None]:
            blocked_s.append(time.monotonic() - began)
            assert process.returncode == 75, process.communicate()
            del left[process]
        return len(left) == 3

    until(all_answered, "all but those that run are blocked")
    until(lambda: len(routes.ways()) == 3, "these run")
    assert Counter(way.split()[1] for way in routes.ways()) == MOST

    def all_let_through() -> bool:
        gate.open_if_awaited()
        return all(process.poll() is not None for process in left)

    until(all_let_through, "those that run end")
    assert [process.wait() for process in left] == [0, 0, 0]

    # A runner with three places and a queue. What is busy goes to its end.
    todo = deque(job for process, job in calls.items() if process not in left)

    def work() -> None:
        while todo:
            try:
                name, input = todo.popleft()
            except IndexError:
                return
            code = call(name, input).wait()
            assert code in (0, 75)
            if code == 75:
                todo.append((name, input))

    with ThreadPoolExecutor(3) as workers:
        for worker in [workers.submit(work) for _ in range(3)]:
            worker.result()
    assert not todo
    assert Counter(way.split()[0] for way in routes.ways()) == Counter(name for name, _ in jobs)
    most = most_at_a_time(routes.lines())
    assert most["gpu"] <= MOST["gpu"]
    assert most["cpu"] <= MOST["cpu"]
    results = Counter(row.result for row in routes.decisions())
    assert results["started"] == CALLS
    assert results["blocked"] >= CALLS - 3
    routes.assert_clean()
    with capsys.disabled():
        first, last = min(blocked_s), max(blocked_s)
        print(f"\n{len(blocked_s)} of {CALLS} calls at once were blocked after {first:.2f} to {last:.2f} s")


def test_how_long_a_blocked_call_takes(
    routes: RouteBox, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, for a machine with nothing else to do."""
    routes.configure(gpu="max_jobs = 1")
    holder = routes.hold_way(gate)
    took_s = []
    for _ in range(5):
        began = time.monotonic()
        assert routes.route().returncode == 75
        took_s.append(time.monotonic() - began)
    gate.open()
    assert holder.wait() == 0
    with capsys.disabled():
        best_ms, worst_ms = min(took_s) * 1000, max(took_s) * 1000
        print(f"\na blocked call took {best_ms:.0f} to {worst_ms:.0f} ms")
