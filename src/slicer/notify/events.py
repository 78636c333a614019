"""Classifies an outcome as events, and formats an event for a command. Pure."""

from __future__ import annotations

from slicer.outcome.result import result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Outcome

WAITED_S = 60.0  # a shorter wait for a lease is not worth a message
_EVENTS = {"ok": ("done",), "failed": ("failed",)}


def events_of(outcome: Outcome) -> frozenset[str]:
    """The events of an outcome. A job that ran out of memory, or was ended as idle, has also failed."""
    events = set(_EVENTS.get(result_of(outcome.exit_code, outcome.reason, outcome.ended_by), ()))
    if "failed" in events:
        events |= {"oom"} if outcome.reason == "oom-kill" else set()
        events |= {"idle"} if outcome.ended_by == "slicer idle" else set()
    return frozenset(events)


def variables(event: dict[str, Any]) -> dict[str, str]:
    """The event's plain values for the environment of a command: ``SLICER_EVENT``, ``SLICER_JOB``, …"""
    plain = {name: value for name, value in event.items() if isinstance(value, (str, int, float))}
    return {f"SLICER_{name.upper()}": str(value).replace("\0", "") for name, value in plain.items()}
