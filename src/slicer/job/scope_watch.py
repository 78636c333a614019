"""Notices and records when a running job's scope is frozen and thawed, by whomever.

The supervisor does this, because it runs outside the scope. It starts only after its job has run for a while,
because most jobs end before anybody could pause them.
"""

from __future__ import annotations

import errno
import os
import time

from slicer.backend import time_limit_of
from slicer.errors import SlicerError, StateError
from slicer.job import pause
from slicer.kernel import cgroup
from slicer.kernel.proc import now_s
from slicer.kernel.signal_fd import signal_fd
from slicer.kernel.signals import timed_wait
from slicer.kernel.sleep import soonest, until_readable
from slicer.ledger import control_log
from slicer.quantity import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.job.job import Job
    from slicer.model import Lease
    from slicer.state.statedir import StateDir

# systemd starts counting a time limit a moment after we do.
_LATER_S = 0.25
_EVENTS_BYTES = 4096


class Freezer:
    """Notes one job's pauses, and thaws it. ``limit_at``: when systemd ends it (monotonic; None: never)."""

    def __init__(self, lease: Lease, state: StateDir, limit_at: float | None) -> None:
        self.lease = lease
        self._directory = cgroup.path_of(lease.cgroup)
        self._state = state
        self._is_frozen: bool | None = None  # not looked yet: it may have stood still before, for a moment
        self._thaw_at = None if limit_at is None else limit_at + _LATER_S

    def take(self, *, is_frozen: bool) -> None:
        """Note a change, and tell the journal of a foreign one. ``is_frozen``: the scope's state."""
        if is_frozen == self._is_frozen or (not is_frozen and cgroup.is_to_freeze(self._directory)):
            return
        self._is_frozen = is_frozen
        try:
            acts = control_log.read(self._state, self.lease.job)
        except StateError:
            acts = ()
        is_open = control_log.open_pause(acts)
        if is_frozen and is_open is None:
            self._note("frozen")
            pause.tell(self.lease, "paused", "frozen from outside (systemctl freeze)")
        elif not is_frozen and is_open is not None:
            self._note("thawed")
            if acts[-1].kind not in ("resume", "stop"):  # else it was slicer
                lasted = format_duration(round(max(0.0, now_s() - is_open.since_s), 1))
                text = f"goes on after {lasted}, thawed from outside (systemctl thaw)"
                pause.tell(self.lease, "resumed", text)

    def _note(self, kind: control_log.Kind) -> None:
        try:
            control_log.add(self._state, self.lease.job, kind)
        except StateError:
            pass  # the cgroup shows it, too

    def due_s(self) -> float | None:
        """The seconds until :meth:`meet_deadline` is due; None: never."""
        if not self._is_frozen or self._thaw_at is None:
            return None
        return max(0.0, self._thaw_at - time.monotonic())

    def meet_deadline(self) -> None:
        """Thaw a job whose time is up. systemd has asked it to end, but does not thaw it."""
        if self.due_s() == 0.0:
            self._thaw_at = None
            self._note("resume")
            if not cgroup.thaw(self._directory):  # a system manager's scope: only root may write there
                try:
                    pause.thaw(self.lease)
                except SlicerError:
                    pass  # it has ended, or systemd kills it after its stop timeout


def limit_at(job: Job, began: float) -> float | None:
    """When systemd ends the job (monotonic; None: never): the profile's limit, or the administrator's."""
    limit_s = job.profile.timeout_s
    if job.spec.manager == "system":
        limit_s = time_limit_of(job.spec.unit) or limit_s
    return None if limit_s is None else began + limit_s


class ScopeWatch:
    """Waits for blocked signals, and notes the job's pauses meanwhile.

    By POLLPRI, as closing inotify takes 15 ms. ``warn`` gets failures. Raises OSError.
    """

    def __init__(
        self, lease: Lease, state: StateDir, limit_at: float | None, signals: frozenset[int],
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._freezer = Freezer(lease, state, limit_at)
        self._signals = signals
        self._fd = signal_fd(signals)
        self._events = -1
        try:
            path = f"{cgroup.path_of(lease.cgroup)}/cgroup.events"
            self._events = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # else it has just ended
                warn(f"the job's pauses cannot be detected: {error.strerror}")
            return
        self._look()

    def wait(self, timeout_s: float | None) -> Any:
        """The signal received; None after the timeout (None: no timeout), or after a change of the scope."""
        urgent = [self._events] if self._events >= 0 else []
        limit_s = soonest(timeout_s, self._freezer.due_s())
        if self._events in until_readable([self._fd], limit_s, None, urgent=urgent):
            self._look()
        self._freezer.meet_deadline()
        return timed_wait(self._signals, 0.0)

    def _look(self) -> None:
        """Read the state; without a read, every poll would return at once."""
        try:
            events = os.pread(self._events, _EVENTS_BYTES, 0)
        except OSError:  # the cgroup was removed
            os.close(self._events)
            self._events = -1
        else:
            self._freezer.take(is_frozen=b"frozen 1" in events)
