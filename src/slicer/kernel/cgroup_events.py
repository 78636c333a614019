"""Waiting for a signal and for a cgroup that freezes or thaws at the same time, without a look in between.

``sigwaitinfo(2)`` tells who sent a signal, but waits for nothing else. signalfd(2) says when it would return
at once. The change of ``cgroup.events`` is a POLLPRI (inotify would do, but takes the kernel 15 ms to close).
"""

from __future__ import annotations

import ctypes
import os
import select

from slicer.kernel.proc import LONGEST_POLL_S
from slicer.kernel.signals import timed_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIGSET_BYTES = 128  # of glibc's and musl's sigset_t
_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK  # SFD_CLOEXEC and SFD_NONBLOCK have these values
_READ_BYTES = 4096


class CgroupEvents:
    """The events of one cgroup, and signals that are blocked. Raises OSError if it cannot be watched."""

    def __init__(self, directory: str, signals: frozenset[int]) -> None:
        self._signals = signals
        self._poll = select.poll()
        self._events = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._signal_fd = _signal_fd(signals)
            self.is_frozen = self._read()  # without a read every poll would return at once
        except OSError:
            os.close(self._events)
            raise
        self._poll.register(self._signal_fd, select.POLLIN)
        self._poll.register(self._events, select.POLLPRI)

    def wait(self, timeout_s: float | None) -> tuple[Any, bool]:
        """Sleep until a signal comes, the cgroup changes, or the time is over (None: for ever).

        Returns the signal, None if there is none, and whether the cgroup's events changed. :attr:`is_frozen`
        is as of then.
        """
        timeout_ms = None if timeout_s is None else min(timeout_s, LONGEST_POLL_S) * 1000
        has_changed = False
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == self._events:
                has_changed = True
                self._take()
        return timed_wait(self._signals, 0.0), has_changed

    def _take(self) -> None:
        try:
            self.is_frozen = self._read()
        except OSError:  # the cgroup is gone: from now on every poll would return at once
            self._poll.unregister(self._events)
            self.is_frozen = False

    def _read(self) -> bool:
        return b"frozen 1" in os.pread(self._events, _READ_BYTES, 0)

    def close(self) -> None:
        """Give up the descriptors."""
        os.close(self._events)
        os.close(self._signal_fd)


def _signal_fd(signals: frozenset[int]) -> int:
    """A descriptor that is readable while one of the signals is pending. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    bits = sum(1 << (signo - 1) for signo in signals)
    mask = ctypes.create_string_buffer(bits.to_bytes(_SIGSET_BYTES, "little"), _SIGSET_BYTES)
    fd = int(libc.signalfd(-1, mask, _CLOEXEC_NONBLOCK))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd
