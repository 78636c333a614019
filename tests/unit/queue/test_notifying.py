"""A queue's user is told that a job is idle, and that it was ended for that, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.model import Notify
from slicer.queue import notifying
from tests.unit.queue.show.test_event_text import event, row


@pytest.mark.parametrize(
    ("what", "on", "is_told"),
    [
        ("warned", ("idle",), True),
        ("ends", ("idle", "failed"), True),
        ("used", ("idle",), False),
        ("unknown", ("idle",), False),
        ("warned", ("failed",), False),
    ],
)
def test_an_idle_job_is_told(  # U3, U4
    monkeypatch: pytest.MonkeyPatch, what: str, on: tuple[str, ...], is_told: bool
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(notifying, "send", lambda notify, about, history: told.append(about) or "")
    one = notifying.Notifier(Notify(on, ("true",), (), desktop=False), "jobs.txt")
    one.event(event("idle", row(name="a"), what=what, text="has not used its GPU for 45m"))
    assert [(each["event"], each["name"]) for each in told] == [("idle", "a")] * is_told
    assert all("has not used its GPU for 45m" in each["text"] for each in told)
