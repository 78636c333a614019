"""Classifies an outcome as events, and formats an event for a command. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Outcome

WAITED_S = 60.0  # a shorter wait for a lease is not worth a message

# The user ended such a job.
_MEANT = ("slicer stop", "slicer queue", "slicer run", "terminal", "caller")


def events_of(outcome: Outcome) -> frozenset[str]:
    """The events of an outcome. A job that ran out of memory, or was ended as idle, has also failed."""
    if outcome.reason == "oom-kill":
        return frozenset({"failed", "oom"})
    if outcome.exit_code == 0:
        return frozenset({"done"})
    if outcome.ended_by == "slicer idle":
        return frozenset({"failed", "idle"})
    return frozenset() if outcome.ended_by in _MEANT else frozenset({"failed"})


def variables(event: dict[str, Any]) -> dict[str, str]:
    """The event's plain values for the environment of a command: ``SLICER_EVENT``, ``SLICER_JOB``, …"""
    plain = {name: value for name, value in event.items() if isinstance(value, (str, int, float))}
    return {f"SLICER_{name.upper()}": str(value).replace("\0", "") for name, value in plain.items()}
