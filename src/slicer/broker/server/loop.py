"""The broker's only wait: for descriptors and deadlines, without threads.

Callbacks may watch, forget, and set deadlines freely. They must never wait.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections.abc import Callable

from slicer.kernel import cgroup, proc
from slicer.kernel.sleep import soonest

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
URGENT = select.EPOLLPRI  # the event for a change of cgroup.events
_EVENTS_BYTES = 4096
_HELD_BACK_S = 0.025  # longer than the kernel holds an event back: 10 ms, in ticks of up to 10 ms
_LEAST_ROOM = 1024
_LOOKS_S = 60.0
_AWAY_S = 1.0  # a deadline that is acted on this late: the process, and perhaps the machine, stood still
_MORE_S = 5.0
_MOST_EVENTS = 512  # in one turn, so that due callbacks never wait for long


class Due:
    """A scheduled callback, unless ``cancel`` is called."""

    def __init__(self, act: Callable[[], None], more_s: float = 0.0) -> None:
        """``more_s``: how much longer it may take if this process stood still."""
        self.act: Callable[[], None] | None = act
        self.more_s = more_s

    def cancel(self) -> None:
        """Safe to repeat, even after the callback."""
        self.act = None


class _Watch:
    """A callback for one descriptor. A later descriptor with the same number has another watch."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act


class Loop:
    """Calls back when a descriptor is ready or a deadline has come."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, _Watch] = {}
        self._due: list[tuple[float, int, Due]] = []
        self._count = 0
        self._room = _LEAST_ROOM

    def watch(self, fd: int, act: Callable[[int], None], events: int = READ) -> None:
        """Call ``act`` with the events of a descriptor whenever there are some. Replaces an earlier watch."""
        known = self._watches.get(fd)
        if known is not None:
            self._epoll.modify(fd, events)
            known.act = act
        else:
            self._epoll.register(fd, events)
            self._watches[fd] = _Watch(act)

    def forget(self, fd: int) -> None:
        """Call this before the descriptor is closed. Safe to repeat."""
        if self._watches.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, act: Callable[[], None]) -> Due:
        due = Due(act, min(seconds, _MORE_S))
        self._count += 1  # for equal times, the first one set comes first
        if len(self._due) > self._room:  # cancelled ones may be due only in years
            self._due = [each for each in self._due if each[2].act is not None]
            heapq.heapify(self._due)
            self._room = 2 * len(self._due) + _LEAST_ROOM
        heapq.heappush(self._due, (now_s() + seconds, self._count, due))
        return due

    def when(self, at_s: float, act: Callable[[], None]) -> Due:
        """Call ``act`` once CLOCK_BOOTTIME is ``at_s``; after a suspend at most ``_LOOKS_S`` late."""
        due = Due(act)

        def look() -> None:
            left_s = at_s - proc.now_s()
            if due.act is not None and left_s > 0:
                self.after(min(left_s, _LOOKS_S), look)
            elif due.act is not None:
                due.cancel()
                act()

        self.after(0.0, look)
        return due

    def turn(self, most_s: float | None) -> None:
        """Wait for the first event or deadline, at most ``most_s`` seconds (None: for ever); call back."""
        events = self._epoll.poll(soonest(self._left_s(), most_s), _MOST_EVENTS)
        ready = [(fd, self._watches[fd], event) for fd, event in events if fd in self._watches]
        for fd, watch, event in ready:
            if self._watches.get(fd) is watch:  # otherwise an earlier callback closed the descriptor
                watch.act(event)
        self._act_on_due()

    def _left_s(self) -> float | None:
        while self._due and self._due[0][2].act is None:
            heapq.heappop(self._due)
        return max(0.0, self._due[0][0] - now_s()) if self._due else None

    def _act_on_due(self) -> None:
        began_s = now_s()  # deadlines that are set from now on come with the next turn
        if self._due and began_s > self._due[0][0] + _AWAY_S:
            self._allow_for_absence(began_s)
        while self._due and self._due[0][0] <= began_s:
            _, _, due = heapq.heappop(self._due)
            act, due.act = due.act, None
            if act is not None:
                act()

    def _allow_for_absence(self, back_s: float) -> None:
        """Postpone what is due, once: those who were to act by then may have stood still as well."""
        for index, (at_s, number, due) in enumerate(self._due):
            if at_s < back_s + due.more_s:
                self._due[index] = back_s + due.more_s, number, due
                due.more_s = 0.0
        heapq.heapify(self._due)

    def close(self) -> None:
        self._epoll.close()


def now_s() -> float:
    """CLOCK_MONOTONIC, by which epoll waits."""
    return time.monotonic()


class ProcessWatch:
    """Calls ``ended`` once the process has ended. Takes ownership of the descriptor."""

    def __init__(self, on: Loop, pidfd: int, ended: Callable[[], None]) -> None:
        self._loop = on
        self.pidfd = pidfd
        self._ended = ended
        on.watch(pidfd, self._act)

    def then(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def _act(self, _: int) -> None:
        self.close()
        self._ended()

    def close(self) -> None:
        if self.pidfd >= 0:
            self._loop.forget(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1


class CgroupWatch:
    """Calls ``emptied`` once the cgroup is empty or removed. Raises OSError if it cannot be watched.

    The kernel holds back an event that comes soon after another, and drops it if the cgroup is removed in the
    meantime (kernel/cgroup/cgroup.c: CGROUP_FILE_NOTIFY_MIN_INTV, cgroup_rm_file). That happens to short
    jobs. So one more check follows each event.
    """

    def __init__(self, on: Loop, name: str, emptied: Callable[[], None]) -> None:
        self._loop = on
        self._emptied = emptied
        self._again: Due | None = None
        path = f"{cgroup.path_of(name)}/cgroup.events"
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        on.watch(self._fd, self._act, URGENT)
        self._look_again()  # a process has just entered it

    def is_populated(self) -> bool:
        """The present state. Without this read the descriptor stays ready."""
        try:
            return b"populated 1" in os.pread(self._fd, _EVENTS_BYTES, 0)
        except OSError:  # the cgroup was removed
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
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def watch_cgroup(on: Loop, name: str, emptied: Callable[[], None]) -> CgroupWatch | None:
    """Watch a populated cgroup; None: it is empty. Raises OSError if it cannot be watched."""
    if not cgroup.lives(name):
        return None
    try:
        watch = CgroupWatch(on, name, emptied)
    except FileNotFoundError:
        return None
    if watch.is_populated():
        return watch
    watch.close()
    return None
