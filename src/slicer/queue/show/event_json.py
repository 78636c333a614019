"""Events as lines of JSON, as documented in docs/queue-events.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from slicer.queue.model import Event, JobRow

_VERSION = 1
# The fields of a job are those of its row, except for these names; empty fields of these are null.
_NAMES = {"gpu_indices": "gpus"}
_MAY_LACK = ("name", "now_mib", "peak_mib", "reason", "waits_for", "note")


def encode(event: Event) -> str:
    """The event as one JSON object in one line of ASCII, without the line's end."""
    head: dict[str, object] = {
        "v": _VERSION,
        "event": event.kind,
        "at": round(event.at, 3),
        "job": None if event.job is None else job_object(event.job),
    }
    # The head is here twice, so that it comes first and no data can replace it.
    return json.dumps({**head, **_object(event.data), **head}, separators=(",", ":"), allow_nan=False)


def job_object(row: JobRow) -> dict[str, object]:
    """A job for scripts; ``null`` is "unknown" or "none"."""
    values = {_NAMES.get(name, name): _plain(getattr(row, name)) for name in JobRow.__annotations__}
    values |= {name: values[name] or None for name in _MAY_LACK}
    if row.status in ("pending", "running"):
        values["exit_code"] = None
    return values


def _object(data: Mapping[str, object]) -> dict[str, object]:
    return {str(key): _plain(value) for key, value in data.items()}


def _plain(value: object) -> object:
    """The value if JSON can represent it, else text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    if isinstance(value, JobRow):
        return job_object(value)
    if isinstance(value, dict):
        return _object(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return str(value)
