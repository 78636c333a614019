"""Notifies the user (``[notify]``) about a queue and its jobs."""

from __future__ import annotations

import os
from typing import Any

from slicer.config.notify_keys import settle, words
from slicer.config.profiles import Config
from slicer.errors import UsageError
from slicer.model import Notify
from slicer.notify.sending import send
from slicer.outcome.history import default_path
from slicer.queue.model import Event, Status, label
from slicer.queue.show.event_json import job_object
from slicer.queue.show.event_text import line

_ENDS = ("finished", "lost", "infeasible", "unrunnable")
_QUEUES = {"drained": ("queue-done",), "held-back": ("held-back", "failed")}
_EVENTS: dict[Status, tuple[str, ...]] = {"ok": ("done",), "oom": ("oom", "failed"), "cancelled": ()}


class Notifier:
    """Notifies the user about events, in the words in which they are shown."""

    def __init__(self, notify: Notify, title: str) -> None:
        self._notify = notify
        self._title = os.path.basename(title)

    def event(self, event: Event) -> str:
        """Notify the user about the event, if that is wanted. Returns the problem, if any, in words."""
        if event.kind in _QUEUES:
            text = line(event, verbose=False) or ""
            return self._send(_QUEUES[event.kind], {"job": "", "name": self._title, "text": text})
        is_idle = event.kind == "idle" and event.data["what"] in ("warned", "ends")
        if not (is_idle or event.kind in _ENDS) or event.job is None:
            return ""
        events = ("idle",) if is_idle else _EVENTS.get(event.job.status, ("failed",))
        row = job_object(event.job)
        name = event.job.name or label(self._title, event.job.no)
        path = str(event.data.get("log_path") or "")
        log = os.path.abspath(path) if path else ""
        about = {
            "job": "",
            "name": name,
            "text": line(event, verbose=False) or "",
            "queue": self._title,
            "log": log,
        }
        return self._send(events, {**row, **about})

    def _send(self, events: tuple[str, ...], about: dict[str, Any]) -> str:
        event = next((name for name in events if name in self._notify.on), None)
        if event is None:
            return ""
        told = {"event": event, "title": f"{about['name']}: {event}", **about}
        return send(self._notify, told, default_path())


def notifier(said: str | None, config: Config, title: str) -> Notifier | None:
    """The notifier for a queue with this --notify (None: none) and its configuration. Raises UsageError."""
    chosen = None if said is None else words((said, "--notify", UsageError))
    found = settle(chosen, config.notify, "--notify")
    return Notifier(found, title) if found is not None else None
