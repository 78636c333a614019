"""Waits for the processes that outlive a job's command, and for signals at the same time."""

from __future__ import annotations

import errno
import os

from slicer.kernel.proc import start_time
from slicer.kernel.signal_fd import signal_fd
from slicer.kernel.signals import pending
from slicer.kernel.sleep import soonest, until_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.kernel.signals import signal

_CROWDED_S = 0.5  # between looks, while there are more processes than descriptors


def living(look: Callable[[], list[int]]) -> list[tuple[int, int]]:
    """The processes that ``look`` lists and that have not ended, each with its start time.

    A process that ended since the look may have forked another one just before (a daemon does so twice). So
    the list is empty only if a look finds no new process.
    """
    ended: set[int] = set()
    while not ended.issuperset(listed := look()):
        left = [(pid, at) for pid in listed if (at := start_time(pid)) is not None]
        if left:
            return left
        ended.update(listed)
    return []


def wait_for_any(
    pids: list[int], signals: frozenset[int], wait_s: float | None
) -> list[signal.struct_siginfo]:
    """Wait for an end, a blocked signal, or the timeout (None: forever). Returns the signals received."""
    fds = [signal_fd(signals)]
    try:
        for pid in pids:
            fds.append(os.pidfd_open(pid))
    except ProcessLookupError:
        wait_s = 0.0  # a process has ended already
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        # There are more processes than descriptors: watch as many as possible.
        wait_s = soonest(_CROWDED_S, wait_s)
    try:
        until_readable(fds, wait_s, None)
    finally:
        for fd in fds:
            os.close(fd)
    return list(pending(signals))
