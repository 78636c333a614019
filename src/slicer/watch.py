"""Sleeping until the ledger changes: inotify on its directories, and on the scopes that leases live on in.

The standard library has no inotify; this is the three calls of it. Only who leads a queue uses it: all others
sleep on their bell (:mod:`slicer.waiting`).
"""

from __future__ import annotations

import ctypes
import os
import struct

from slicer import cgroup, proc
from slicer.errors import StateError
from slicer.model import LEASE_VARIABLE
from slicer.waiting import asleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from slicer.model import Lease

_IN_MODIFY = 0x2
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC
_ENOENT, _ENODEV = 2, 19

# Readers of the ledger open its files read-only, so their closes are IN_CLOSE_NOWRITE: not waited for, or
# every look at the ledger would wake the leader, who would look again.
_OWNER_LEFT = _IN_CLOSE_WRITE | _IN_DELETE | _IN_MOVED_FROM
_OWNER_CAME = _IN_CREATE | _IN_MOVED_TO | _IN_MODIFY

# The kernel announces a dead owner's close an instant before it drops the flock: look again this much
# later (s), a bounded number of times.
_SETTLING_S = (0.001, 0.005, 0.025, 0.125)

_EVENT = struct.Struct("iIII")


class LedgerWatch:
    """Watches one state directory. A context manager; raises StateError when inotify is exhausted.

    Once :attr:`fd` is readable, or :meth:`due_s` seconds have passed, :meth:`take` the news and look again.
    What came or was written is news only with ``sees_newcomers``: nobody waits for that.
    """

    def __init__(
        self, directory: str, folders: tuple[str, ...] = ("leases",), *, sees_newcomers: bool = False
    ) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._directory = directory
        self._settling: list[float] = []
        self._followed: set[str] = set()  # jobs whose scope is watched
        self._pidfds: list[int] = []
        self.fd = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if self.fd < 0:
            raise _failure(directory)
        for folder in folders:
            path = f"{directory}/{folder}"
            if not self._add(path, _OWNER_LEFT | (_OWNER_CAME if sees_newcomers else 0)):
                os.close(self.fd)
                raise _failure(path)

    def __enter__(self) -> LedgerWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching."""
        self._drop_pidfds()
        os.close(self.fd)

    def _add(self, path: str, mask: int) -> bool:
        """Whether the path is now watched; False when it does not exist."""
        if self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask) >= 0:
            return True
        if ctypes.get_errno() in (_ENOENT, _ENODEV):  # the cgroup went away
            return False
        raise _failure(path)

    def follow(self, orphans: tuple[Lease, ...]) -> bool:
        """Watch what is left of jobs whose leases nobody flocks any more; whether to look again at once.

        (What became followed only now may have ended just before.)
        """
        self._drop_pidfds()
        is_new = False
        for lease in orphans:
            if lease.cgroup:
                is_new |= lease.job not in self._followed
                self._followed.add(lease.job)
                self._add(f"{cgroup.path_of(lease.cgroup)}/cgroup.events", _IN_MODIFY)
            else:
                self._pidfds += _processes_of(lease)
        return is_new

    def descriptors(self) -> list[int]:
        """What becomes readable when there is news."""
        return [self.fd, *self._pidfds]

    def due_s(self) -> float | None:
        """After how many seconds to look again though there is no news; None: not at all."""
        return self._settling[0] if self._settling else None

    def take(self) -> None:
        """Take all pending news."""
        self._settling = self._settling[1:]
        if self._drain():
            self._settling = list(_SETTLING_S)

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until there is news, or for ``timeout_s`` seconds."""
        known = [limit for limit in (timeout_s, self.due_s()) if limit is not None]
        asleep(self.descriptors(), min(known) if known else None, None)
        self.take()

    def _drain(self) -> bool:
        """Take all pending events; whether one of them was a close without a delete."""
        closed = False
        try:
            while data := os.read(self.fd, 65536):
                offset = 0
                while offset < len(data):
                    _, mask, _, length = _EVENT.unpack_from(data, offset)
                    closed |= bool(mask & (_IN_CLOSE_WRITE | _IN_MODIFY))
                    offset += _EVENT.size + length
        except BlockingIOError:
            pass
        return closed

    def _drop_pidfds(self) -> None:
        for fd in self._pidfds:
            os.close(fd)
        self._pidfds = []


def _processes_of(lease: Lease) -> list[int]:
    """Without scopes: pidfds of the processes by which a lease lives on whose supervisor is dead."""
    found = []
    for pid in proc.in_lease(LEASE_VARIABLE, lease.job):
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
