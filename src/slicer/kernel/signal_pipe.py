"""Signals as a readable descriptor, so that a loop can wait for signals and descriptors at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable


class SignalPipe:
    """Takes signals until :meth:`close`; ``fd`` is readable when one has come. One for each process."""

    def __init__(self, signals: Iterable[int], *, unless_ignored: Collection[int] = ()) -> None:
        """``unless_ignored``: signals that stay ignored if they are ignored now (nohup)."""
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._before = {}
        for signo in signals:
            if signo not in unless_ignored or signal.getsignal(signo) != signal.SIG_IGN:
                self._before[signo] = signal.signal(signo, lambda came, _: self._signals.append(came))
        self._fd_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def take(self) -> list[int]:
        """The signals since the last call."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        found, self._signals = self._signals, []
        return found

    def close(self) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for signo, handler in self._before.items():
            signal.signal(signo, handler)
        os.close(self.fd)
        os.close(self._write_fd)
