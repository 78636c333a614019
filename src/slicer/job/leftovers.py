"""Waiting for the processes that outlive a job's command, and for signals at the same time."""

from __future__ import annotations

import errno
import os
import select

from slicer.kernel.proc import LONGEST_POLL_S, start_time
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CROWDED_S = 0.5  # between looks, while there are more processes than descriptors


def living(look: Callable[[], list[int]]) -> list[tuple[int, int]]:
    """The processes that ``look`` lists and that have not ended, each with its start time.

    A process that ended since the look may have made another one just before (a daemon does, twice). So none
    is left only when a look has found nobody new.
    """
    ended: set[int] = set()
    while not ended.issuperset(listed := look()):
        left = [(pid, at) for pid in listed if (at := start_time(pid)) is not None]
        if left:
            return left
        ended.update(listed)
    return []


def wait_for_any(pids: list[int], signals: frozenset[int], wait_s: float | None) -> set[int]:
    """Wait until one of the processes ends, one of the signals comes, or the time is up (None: for ever).

    Returns the signals that came. They are blocked before and after.
    """
    poll = select.poll()
    with _SignalPipe(signals) as pipe:
        poll.register(pipe.fd, select.POLLIN)
        pidfds = []
        try:
            for pid in pids:
                pidfds.append(os.pidfd_open(pid))
                poll.register(pidfds[-1], select.POLLIN)
        except ProcessLookupError:
            wait_s = 0.0  # one is gone already
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # There are more processes than descriptors: watch those that there is room for.
            wait_s = _CROWDED_S if wait_s is None else min(_CROWDED_S, wait_s)
        try:
            poll.poll(None if wait_s is None else min(wait_s, LONGEST_POLL_S) * 1000)
        finally:
            for fd in pidfds:
                os.close(fd)
        return pipe.take()


class _SignalPipe:
    """Makes signals readable, so that poll(2) waits for them too."""

    def __init__(self, signals: frozenset[int]) -> None:
        self._signals = signals

    def __enter__(self) -> _SignalPipe:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for signo in self._signals:
            signal.signal(signo, lambda signo, frame: None)
        signal.set_wakeup_fd(self._write_fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)

    def take(self) -> set[int]:
        """Block the signals; those that came until then."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            return set(os.read(self.fd, 4096))
        except BlockingIOError:
            return set()
