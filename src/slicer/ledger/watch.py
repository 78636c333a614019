"""Sleeping until the ledger changes: inotify on its directories, and on the scopes of jobs without owners.

Only the leaders of the queue use it. All others sleep on their bell (:mod:`slicer.ledger.waiting`).
"""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.kernel import cgroup, inotify, proc
from slicer.kernel.sleep import soonest, until_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from slicer.model import Lease
    from slicer.state.directory import Directory
    from slicer.state.statedir import StateDir

# Readers of the ledger open its files read-only, so their closes are IN_CLOSE_NOWRITE. Those are not watched:
# otherwise every reader would wake the leader, which would look again.
_OWNER_LEFT = inotify.CLOSE_WRITE | inotify.DELETE | inotify.MOVED_FROM
_OWNER_CAME = inotify.CREATE | inotify.MOVED_TO | inotify.MODIFY

# The kernel announces a dead owner's close an instant before it drops the flock. So look again a few times,
# after these pauses (s).
_SETTLING_S = (0.001, 0.005, 0.025, 0.125)

# How often to look (s) if invisible processes hold a lease: another user's, without a scope.
_UNSEEN_S = 1.0


class LedgerWatch:
    """Watches one state directory. A context manager. Raises StateError if inotify is exhausted.

    When one of :meth:`descriptors` is readable, or :meth:`due_s` seconds have passed, :meth:`take` the events
    and look again. ``sees_newcomers``: new and changed files are events, too. Waiting jobs do not need them.
    """

    def __init__(
        self, directory: StateDir, folders: tuple[Directory, ...] = (), *, sees_newcomers: bool = False
    ) -> None:
        self._directory = directory
        self._settling: list[float] = []
        self._followed: set[str] = set()  # jobs whose scopes are watched
        self._pidfds: list[int] = []
        self._unseen_s: float | None = None  # when to look for a holder that causes no event
        self._inotify = inotify.Inotify(directory.path)
        self.fd = self._inotify.fd
        for folder in folders or (directory.leases,):
            self._inotify.add(folder.handle, _OWNER_LEFT | (_OWNER_CAME if sees_newcomers else 0))
            if not os.fstat(folder.fd).st_nlink:
                self._inotify.close()
                raise StateError("cannot be watched: it is gone", where=folder.path)

    def __enter__(self) -> LedgerWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._drop_pidfds()
        self._inotify.close()

    def follow(self, orphans: tuple[Lease, ...]) -> bool:
        """Watch the jobs whose owners are dead. Returns whether to look again at once.

        A job that is watched only from now on may have ended just before.
        """
        self._drop_pidfds()
        self._unseen_s = None
        is_new = False
        for lease in orphans:
            if lease.cgroup:
                is_new |= lease.job not in self._followed
                self._followed.add(lease.job)
                events = f"{cgroup.path_of(lease.cgroup)}/cgroup.events"
                if self._inotify.add(events, inotify.MODIFY) is not None:
                    continue  # else its scope is over, and only jobs inside it hold it
            found = _processes_of(lease, self._directory.leases)
            self._pidfds += found
            if not found:
                self._unseen_s = _UNSEEN_S
        return is_new

    def descriptors(self) -> list[int]:
        """The descriptors that become readable at an event."""
        return [self.fd, *self._pidfds]

    def due_s(self) -> float | None:
        """The seconds after which to look again without an event; None: never."""
        return self._settling[0] if self._settling else self._unseen_s

    def take(self) -> None:
        """Take all pending events."""
        self._settling = self._settling[1:]
        left = inotify.CLOSE_WRITE | inotify.MODIFY  # a close without a delete
        if any([change.mask & left for change in self._inotify.take()]):
            self._settling = list(_SETTLING_S)

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until an event, at most ``timeout_s`` seconds (None: for ever)."""
        until_readable(self.descriptors(), soonest(timeout_s, self.due_s()), None)
        self.take()

    def _drop_pidfds(self) -> None:
        for fd in self._pidfds:
            os.close(fd)
        self._pidfds = []


def _processes_of(lease: Lease, leases: Directory) -> list[int]:
    """Pidfds of the processes that keep a lease without a scope after its supervisor's death."""
    from slicer.kernel.open_files import with_open

    pids = proc.in_lease(lease.job)
    try:
        pids += with_open(os.stat(lease.job, dir_fd=leases.fd, follow_symlinks=False))
    except FileNotFoundError:
        pass  # the lease was just returned
    found = []
    for pid in {*pids} - {os.getpid()}:
        try:
            found.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    return found
