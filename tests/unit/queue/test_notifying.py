"""What a queue tells its user: an idle job and its end for that, a command that is held back, and no more."""

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


@pytest.mark.parametrize(
    ("on", "as_"),
    [(("failed",), "failed"), (("failed", "held-back"), "held-back"), (("done", "queue-done"), "")],
)
def test_a_command_that_is_held_back_is_told_also_to_those_who_hear_of_failures(  # U3, U19
    monkeypatch: pytest.MonkeyPatch, on: tuple[str, ...], as_: str
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(notifying, "send", lambda notify, about, history: told.append(about) or "")
    one = notifying.Notifier(Notify(on, ("true",), (), desktop=False), "jobs.txt")
    one.event(event("held-back", text="4 jobs of t.py are held back", jobs_file="jobs.txt", log_dir="l"))
    assert [each["event"] for each in told] == ([as_] if as_ else [])
    assert all("4 jobs of t.py are held back; to start them: slicer queue retry" in x["text"] for x in told)
