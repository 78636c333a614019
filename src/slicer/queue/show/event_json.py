"""Events as lines of JSON, as docs/queue-events.md promises them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from slicer.queue.model import Event, Row

_VERSION = 1


def encode(event: Event) -> str:
    """The event as one JSON object in one line of ASCII, without the line's end."""
    head: dict[str, object] = {
        "v": _VERSION,
        "event": event.kind,
        "at": round(event.at, 3),
        "job": None if event.job is None else job_object(event.job),
    }
    # The head stands here twice: it comes first, and no data can replace it.
    return json.dumps({**head, **_object(event.data), **head}, separators=(",", ":"), allow_nan=False)


def job_object(row: Row) -> dict[str, object]:
    """A job as scripts see it: ``null`` is "unknown" or "none"."""
    return {
        "no": row.no,
        "name": row.name or None,
        "command": row.command,
        "status": row.status,
        "attempt": row.attempt,
        "declared_mib": row.declared_mib,
        "gpus": list(row.gpu_indices),
        "now_mib": list(row.now_mib) or None,
        "peak_mib": list(row.peak_mib) or None,
        "utilisation": _plain(row.utilisation),
        "looks": row.looks,
        "wall_s": _plain(row.wall_s),
        "exit_code": None if row.status in ("pending", "running") else row.exit_code,
        "reason": row.reason or None,
        "verdict": row.verdict,
        "waits_for": row.waits_for or None,
        "note": row.note or None,
    }


def _object(data: Mapping[str, object]) -> dict[str, object]:
    return {str(key): _plain(value) for key, value in data.items()}


def _plain(value: object) -> object:
    """The value if JSON can express it, else text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    if isinstance(value, Row):
        return job_object(value)
    if isinstance(value, dict):
        return _object(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return str(value)
