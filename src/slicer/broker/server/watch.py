"""Whether a lease still counts: its scope's cgroup and the process that asked for it, both watched.

The kernel tells of either end: cgroup.events has an event, a pidfd becomes readable.
"""

from __future__ import annotations

import os

from slicer.broker.server import loop
from slicer.kernel import cgroup, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.server.loop import Loop

_EVENTS_BYTES = 4096


class ProcessWatch:
    """Calls ``ended`` once the process is gone. Takes over the descriptor."""

    def __init__(self, on: Loop, pidfd: int, ended: Callable[[], None]) -> None:
        self._loop = on
        self.pidfd = pidfd
        self._ended = ended
        on.watch(pidfd, self._act)

    def _act(self, _: int) -> None:
        self.close()
        self._ended()

    def close(self) -> None:
        """Safe to repeat."""
        if self.pidfd >= 0:
            self._loop.forget(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1


class ScopeWatch:
    """Calls ``emptied`` once nobody is in the cgroup, or it is gone. Raises OSError if nobody can tell."""

    def __init__(self, on: Loop, name: str, emptied: Callable[[], None]) -> None:
        self._loop = on
        self._emptied = emptied
        path = f"{cgroup.path_of(name)}/cgroup.events"
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        on.watch(self._fd, self._act, loop.URGENT)

    def is_populated(self) -> bool:
        """As of now. Without this read the descriptor stays ready."""
        try:
            return b"populated 1" in os.pread(self._fd, _EVENTS_BYTES, 0)
        except OSError:  # the cgroup is gone
            return False

    def _act(self, _: int) -> None:
        if not self.is_populated():
            self.close()
            self._emptied()

    def close(self) -> None:
        """Safe to repeat."""
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def open_process(pid: int, started: int) -> int | None:
    """A pidfd of the process that has this pid and start time; None: it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return None
    if proc.is_running(pid, started):  # after the open: so it is this one that is held
        return pidfd
    os.close(pidfd)
    return None
