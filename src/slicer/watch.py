"""Sleeping until the ledger changes: inotify on its directories and on the holders' scopes.

The standard library has no inotify; this is the three calls of it, used only by a job that has to wait.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct

from slicer import cgroup, proc
from slicer.errors import StateError
from slicer.model import LEASE_VARIABLE
from slicer.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from slicer.model import Lease

_IN_MODIFY = 0x2
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_DELETE = 0x200
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC

# Readers of the ledger open its files read-only, so their closes are IN_CLOSE_NOWRITE: not waited for, or
# every look at the ledger would wake all waiters, who would look again.
_OWNER_LEFT = _IN_CLOSE_WRITE | _IN_DELETE | _IN_MOVED_FROM

# The kernel announces a dead owner's close an instant before it drops the flock: look again this much
# later (ms), a bounded number of times.
_SETTLING_MS = (1, 5, 25, 125)

_EVENT = struct.Struct("iIII")


class LedgerWatch:
    """Watches one state directory. A context manager; raises StateError when inotify is exhausted."""

    def __init__(self, directory: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._directory = directory
        self._settling: list[int] = []
        self._ended: set[str] = set()  # jobs whose scope was seen to be gone

    def __enter__(self) -> LedgerWatch:
        self._fd = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if self._fd < 0:
            raise _failure(self._directory)
        for folder in ("leases", "tickets"):
            path = f"{self._directory}/{folder}"
            if not self._add(path, _OWNER_LEFT):
                os.close(self._fd)
                raise _failure(path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _add(self, path: str, mask: int) -> bool:
        """Whether the path is now watched; False when it does not exist."""
        if self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask) >= 0:
            return True
        if ctypes.get_errno() in (2, 19):  # ENOENT, ENODEV: the cgroup went away
            return False
        raise _failure(path)

    def wait_for_change(
        self,
        holders: tuple[Lease, ...],
        *,
        timeout_s: float | None = None,
        mask: frozenset[int] | None = None,
    ) -> None:
        """Return when something may have changed, or after ``timeout_s`` seconds.

        A lease without an owner lives on in its scope, so the holders' scopes are watched too. ``mask`` is
        the signal mask while asleep (None: as it is).
        """
        for holder in holders:
            events = f"{cgroup.path_of(holder.cgroup)}/cgroup.events"
            if holder.cgroup and not self._add(events, _IN_MODIFY) and holder.job not in self._ended:
                self._ended.add(holder.job)  # its owner is about to give it back
                self._settling = self._settling or list(_SETTLING_MS)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        pidfds = [fd for holder in holders for fd in _orphans(holder)]
        try:
            for fd in pidfds:
                poll.register(fd, select.POLLIN)
            ready = _poll(poll, self._settling.pop(0) if self._settling else _ms(timeout_s), mask)
        finally:
            for fd in pidfds:
                os.close(fd)
        if ready and self._drain():
            self._settling = list(_SETTLING_MS)

    def _drain(self) -> bool:
        """Take all pending events; whether one of them was a close without a delete."""
        closed = False
        try:
            while data := os.read(self._fd, 65536):
                offset = 0
                while offset < len(data):
                    _, mask, _, length = _EVENT.unpack_from(data, offset)
                    closed |= bool(mask & (_IN_CLOSE_WRITE | _IN_MODIFY))
                    offset += _EVENT.size + length
        except BlockingIOError:
            pass
        return closed


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds * 1000)


def _poll(poll: select.poll, timeout_ms: float | None, mask: frozenset[int] | None) -> bool:
    """Whether anything is ready. Signals that ``mask`` lets through are taken before and during the sleep."""
    if mask is None:
        return bool(poll.poll(timeout_ms))
    before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        return bool(poll.poll(timeout_ms))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _orphans(holder: Lease) -> list[int]:
    """Without scopes: pidfds of the processes by which a lease lives on whose supervisor is dead."""
    if holder.cgroup or proc.is_running(holder.pid, holder.pid_start) or proc.start_time(holder.keeper or -1):
        return []
    found = []
    for pid in proc.in_lease(LEASE_VARIABLE, holder.job):
        try:
            found.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    return found


def _failure(path: str) -> StateError:
    reason = os.strerror(ctypes.get_errno())
    return StateError(
        f"cannot be watched: {reason}",
        where=path,
        hint="raise fs.inotify.max_user_instances or max_user_watches",
    )
