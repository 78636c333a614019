"""The broker's one wait."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from slicer.broker.server import loop as module
from slicer.broker.server.loop import Loop

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_what_is_due_comes_in_its_order_and_once(loop: Loop) -> None:
    done: list[str] = []
    loop.after(0.0, lambda: done.append("first"))
    loop.after(0.0, lambda: done.append("second"))
    never = loop.after(0.0, lambda: done.append("never"))
    loop.after(3600.0, lambda: done.append("late"))
    never.cancel()
    never.cancel()
    for _ in range(3):
        loop.turn(0.0)
    assert done == ["first", "second"]


def test_a_deadline_allows_for_the_time_in_which_the_process_stood_still(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    at_s, done = 1000.0, list[str]()
    monkeypatch.setattr(module, "now_s", lambda: at_s)
    answer = loop.after(30.0, lambda: done.append("late"))
    loop.after(29.5, lambda: done.append("also late"))
    loop.after(0.0, lambda: done.append("at once"))
    at_s += 60.0  # so did the one who was to answer
    loop.turn(0.0)
    assert done == ["at once"]
    answer.cancel()  # it has answered
    at_s += 5.1
    loop.turn(0.0)
    assert done == ["at once", "also late"]


def test_what_is_asked_for_meanwhile_comes_with_the_next_turn(loop: Loop) -> None:
    done: list[int] = []

    def again() -> None:
        done.append(len(done))
        loop.after(0.0, again)

    loop.after(0.0, again)
    loop.turn(0.0)
    assert done == [0]
    loop.turn(0.0)
    assert done == [0, 1]


def test_a_descriptor_that_one_before_it_gave_up_is_not_acted_on(loop: Loop) -> None:
    pairs = [os.pipe() for _ in range(2)]
    heard: list[int] = []

    def act(fd: int) -> None:
        heard.append(fd)
        for reader, _ in pairs:
            loop.forget(reader)

    for reader, writer in pairs:
        loop.watch(reader, lambda _, fd=reader: act(fd))  # type: ignore[misc]
        os.write(writer, b"x")
    loop.turn(0.0)
    loop.turn(0.0)
    assert len(heard) == 1
    for fd in (fd for pair in pairs for fd in pair):
        os.close(fd)


def test_what_was_cancelled_takes_no_room(loop: Loop) -> None:  # a caller may wait for years, again and again
    kept = loop.after(3600.0, lambda: None)
    for _ in range(20_000):
        loop.after(1e9, lambda: None).cancel()
    assert len(loop._due) < 3000
    assert kept.act is not None


def test_an_event_is_not_of_a_descriptor_that_got_the_same_number_later(loop: Loop) -> None:  # S15
    first, second = os.pipe(), os.pipe()
    heard: list[str] = []

    def exchange(_: int) -> None:
        """The second one is closed, and another one, in which nothing is, has its number."""
        loop.forget(first[0])
        loop.forget(second[0])
        os.close(second[0])
        assert os.dup(first[1]) == second[0]
        loop.watch(second[0], lambda _: heard.append("of the other one"), 0)

    loop.watch(first[0], exchange)
    loop.watch(second[0], lambda _: heard.append("of the closed one"))
    for _, writer in (first, second):
        os.write(writer, b"x")
    loop.turn(0.0)
    assert not heard
    loop.forget(second[0])
    for fd in (*first, *second):
        os.close(fd)
