"""A job's place among the queue's own requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from slicer.queue.engine.local.arrivals import Arrivals


def line(key: str) -> Any:
    return SimpleNamespace(key=key)


def asked(key: str) -> Any:
    return SimpleNamespace(key=key, job_id=f"id-{key}")


# E4: the file's order counts, though the first job of another kind is asked for later
def test_a_job_comes_just_before_those_behind_it_in_the_file() -> None:
    arrivals, places = Arrivals(), {"a": (0, 1), "b": (0, 2), "c": (0, 3)}
    second, _ = arrivals.place(line("b"), places, [])
    third, before = arrivals.place(line("c"), places, [asked("b")])
    assert second <= third
    assert not before
    first, before = arrivals.place(line("a"), places, [asked("b"), asked("c")])
    assert (first < second, before) == (True, "id-b")
    assert arrivals.place(line("a"), places, [])[0] == first  # asked for again, it keeps its place
    arrivals.forget(["a"])
    assert arrivals.place(line("a"), places, [])[0] > second


# E4
def test_a_job_of_another_priority_is_not_put_before_them() -> None:
    arrivals, places = Arrivals(), {"a": (-5, 1), "b": (0, 2)}
    low, _ = arrivals.place(line("b"), places, [])
    high, before = arrivals.place(line("a"), places, [asked("b")])
    assert (high >= low, before) == (True, "")
