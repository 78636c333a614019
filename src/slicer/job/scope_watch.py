"""Notices and records when the scopes of running jobs are frozen and thawed, by whomever.

A job's supervisor or its queue does this, because it keeps running outside the scope. The supervisor starts
only after its job has run for a while, because most jobs end before anybody could pause them.
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
    from collections.abc import Callable, Collection
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
        self._is_frozen = False
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
    """The scopes of running jobs, by POLLPRI, as closing inotify takes 15 ms. ``warn`` gets failures."""

    def __init__(self, state: StateDir, warn: Callable[[str], None]) -> None:
        self._state = state
        self._warn = warn
        self._is_broken = False
        self._freezers: dict[int, Freezer] = {}  # by the descriptors of their scopes' events

    def follow(self, lease: Lease, limit_at: float | None) -> None:
        """Follow a running job. ``limit_at``: when systemd ends it (monotonic); None: never, or unknown."""
        if not lease.cgroup or self._is_broken:
            return
        try:
            fd = os.open(f"{cgroup.path_of(lease.cgroup)}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # else it has just ended
                self._is_broken = True
                self._warn(f"pauses of jobs cannot be detected: {error.strerror}")
            return
        self._freezers[fd] = Freezer(lease, self._state, limit_at)
        self._look(fd)

    def descriptors(self) -> list[int]:
        """The descriptors, with POLLPRI when a scope changes."""
        return list(self._freezers)

    def left_s(self) -> float | None:
        """The seconds until :meth:`take` is due without an event; None: never."""
        return soonest(*(freezer.due_s() for freezer in self._freezers.values()))

    def take(self, ready: Collection[int]) -> None:
        """Process events, and thaw jobs whose time is up. ``ready``: the descriptors with an event."""
        for fd in self._freezers.keys() & set(ready):
            self._look(fd)
        for freezer in self._freezers.values():
            freezer.meet_deadline()

    def _look(self, fd: int) -> None:
        """Read the state; without a read, every poll would return at once."""
        try:
            events = os.pread(fd, _EVENTS_BYTES, 0)
        except OSError:  # the cgroup was removed
            self._close(fd)
        else:
            self._freezers[fd].take(is_frozen=b"frozen 1" in events)

    def forget(self, job: str) -> None:
        for fd in [fd for fd, freezer in self._freezers.items() if freezer.lease.job == job]:
            self._close(fd)

    def _close(self, fd: int) -> None:
        del self._freezers[fd]
        os.close(fd)


class SignalWait:
    """Waits for blocked signals, and follows scopes meanwhile. Raises OSError."""

    def __init__(self, scopes: ScopeWatch, signals: frozenset[int]) -> None:
        self._scopes = scopes
        self._signals = signals
        self._fd = signal_fd(signals)

    def wait(self, timeout_s: float | None) -> Any:
        """The signal received; None after the timeout (None: no timeout), or after work on the scopes."""
        limit_s = soonest(timeout_s, self._scopes.left_s())
        ready = until_readable([self._fd], limit_s, None, urgent=self._scopes.descriptors())
        self._scopes.take(ready)
        return timed_wait(self._signals, 0.0)
