"""When the queue tries again what it could not start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slicer.queue import dispatch
from slicer.queue.dispatch import Dispatch


def test_a_pause_that_ends_between_two_looks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:  # E13
    now = [100.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now[0])
    asked: list[int] = []
    register: Any = SimpleNamespace(states={}, problem="")
    view: Any = SimpleNamespace(expire=lambda: asked.append(1))
    desk: Any = SimpleNamespace(keep=lambda kinds: None)
    nobody: Any = None
    queue = Dispatch(nobody, register, nobody, desk, nobody, view, nobody)
    assert queue.left_s() is None
    queue.pause()
    now[0] += 0.999
    queue.start()  # a timer may wake us a little early
    assert not asked
    now[0] += 0.002  # it is over before we sleep again
    assert queue.left_s() == 0
    queue.start()
    assert asked
    assert queue.left_s() is None
