"""Whether a lease still counts: its scope's cgroup and the process that asked for it, both watched.

The kernel tells of either end: cgroup.events has an event, a pidfd becomes readable.
"""

from __future__ import annotations

import errno
import os

from slicer.broker.server import loop
from slicer.kernel import cgroup, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.server.loop import Due, Loop

_EVENTS_BYTES = 4096
_HELD_BACK_S = 0.025  # more than the kernel holds an event back: 10 ms, in ticks of up to 10 ms


class ProcessWatch:
    """Calls ``ended`` once the process is gone. Takes over the descriptor."""

    def __init__(self, on: Loop, pidfd: int, ended: Callable[[], None]) -> None:
        self._loop = on
        self.pidfd = pidfd
        self._ended = ended
        on.watch(pidfd, self._act)

    def then(self, ended: Callable[[], None]) -> None:
        """Call this instead."""
        self._ended = ended

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
    """Calls ``emptied`` once nobody is in the cgroup, or it is gone. Raises OSError if nobody can tell.

    An event that comes soon after another one is held back by the kernel, and lost if the cgroup is removed
    meanwhile (kernel/cgroup/cgroup.c: CGROUP_FILE_NOTIFY_MIN_INTV, cgroup_rm_file). That is what becomes of a
    short job. So after each event there is one more look.
    """

    def __init__(self, on: Loop, name: str, emptied: Callable[[], None]) -> None:
        self._loop = on
        self._emptied = emptied
        self._again: Due | None = None
        path = f"{cgroup.path_of(name)}/cgroup.events"
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        on.watch(self._fd, self._act, loop.URGENT)
        self._look_again()  # somebody has just come into it

    def is_populated(self) -> bool:
        """As of now. Without this read the descriptor stays ready."""
        try:
            return b"populated 1" in os.pread(self._fd, _EVENTS_BYTES, 0)
        except OSError:  # the cgroup is gone
            return False

    def _act(self, _: int) -> None:
        if self.is_populated():
            self._look_again()
        else:
            self._over()

    def _look_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.after(_HELD_BACK_S, self._look)

    def _look(self) -> None:
        if not self.is_populated():
            self._over()

    def _over(self) -> None:
        self.close()
        self._emptied()

    def close(self) -> None:
        """Safe to repeat."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def watch_scope(on: Loop, name: str, emptied: Callable[[], None]) -> ScopeWatch | None:
    """Watch a cgroup that somebody is in; None: nobody is. Raises OSError if nobody can tell."""
    if not cgroup.lives(name):
        return None
    try:
        watch = ScopeWatch(on, name, emptied)
    except FileNotFoundError:
        return None
    if watch.is_populated():
        return watch
    watch.close()
    return None


def open_process(pid: int, started: int) -> int | None:
    """A pidfd of the process that has this pid and start time; None: it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return None
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # a thread, or no pid at all
            raise
        return None
    if proc.is_running(pid, started):  # after the open: so it is this one that is held
        return pidfd
    os.close(pidfd)
    return None
