"""Follows a line of a jobs file through its queue, which answers once the line has begun or ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from slicer.queue.control import client
from slicer.queue.control.client import Asked
from slicer.queue.control.messages import QueuedLine, decode
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from slicer.record import replace

_RETURNS_S = 5.0  # systemd restarts a detached queue that has crashed
_LOOKS_S = 0.5
_MOST_KEPT = 64  # connections of this process; a queue has room for a few times as many
_GLANCES_S = 5.0  # how often further lines are looked at

Until = Literal["begun", "ended"]


class LineWatch:
    """``due_s``: when to look again without an event; None: never."""

    _kept = 0  # connections, of all objects

    def __init__(self, environ: Mapping[str, str], line: QueuedLine, until: Until) -> None:
        self._environ = environ
        self._line = line
        self._until = until
        self._asked: Asked | None = None
        self._lost_at: float | None = None
        self._may_be_stopped = False
        self.due_s: float | None = 0.0

    @property
    def descriptors(self) -> list[int]:
        """They become readable when to look."""
        return [] if self._asked is None else [self._asked.connection.fileno()]

    def look(self) -> QueuedLine | None:
        """The line once it has begun or ended, or its queue has ended; None: not yet. Raises StateError."""
        self.due_s = None
        if self._asked is None and LineWatch._kept >= _MOST_KEPT:
            return self._glance()
        if self._asked is None:
            self._ask()
        packet = self._asked.receive() if self._asked is not None else b""
        if packet is None:
            return None
        answer = decode(packet) if packet else None
        if answer is not None:
            self.close()
            (line,) = client.lines_of(answer) or (self._removed(),)
            return line
        return self._without_queue()

    def _ask(self) -> None:
        with client.queues(self._environ) as found:
            asked = client.of_file(found, self._line.jobs_file, self._line.log_dir)
            self._may_be_stopped = any(each.queue is None for each in found)
            if asked is not None and asked.send("line", key=self._line.key, until=self._until):
                self._asked = Asked(asked.connection.dup())
                self._lost_at = None
                LineWatch._kept += 1

    def _glance(self) -> QueuedLine | None:
        """The same without a connection that stays."""
        self.due_s = _GLANCES_S
        for line in client.lines_meant(self._environ, self._line.label):
            if (line.key, line.log_dir) == (self._line.key, self._line.log_dir):
                has_begun = self._until == "begun" and line.status == "running"
                return line if line.is_final or has_begun else None
        return self._without_queue()

    def _without_queue(self) -> QueuedLine | None:
        """What the journal says, if no queue has taken the place of the last one in time."""
        self.close()
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        states = folding.fold(Journal.peek(self._line.log_dir) or ())
        state = states.get(self._line.key)
        if state is None:
            return self._removed()
        if not state.is_final and (self._may_be_stopped or now - self._lost_at < _RETURNS_S):
            self.due_s = _LOOKS_S
            return None
        log = f"{self._line.log_dir}/{state.log}" if state.log else ""
        reason = state.reason if state.is_final else "its queue has ended: slicer queue resumes it"
        return replace(
            self._line, status=state.status, exit_code=state.exit_code, job=state.job, log=log, reason=reason
        )

    def _removed(self) -> QueuedLine:
        return replace(self._line, status="cancelled", reason="its line was removed")

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        if self._asked is not None:
            self._asked.connection.close()
            self._asked = None
            LineWatch._kept -= 1
