"""Signals as a readable descriptor, so that the queue can wait for signals and descriptors at once."""

from __future__ import annotations

import os
import signal

from slicer.kernel.signals import INTERRUPTS, block_interrupts

_TAKEN = (*INTERRUPTS, signal.SIGWINCH, signal.SIGCONT)


class SignalPipe:
    """Takes the signals that the queue acts on, until :meth:`close`. A process can have only one."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._before = {}
        for signo in _TAKEN:
            # A signal that is ignored from the start (nohup) stays ignored.
            if signo == signal.SIGWINCH or signal.getsignal(signo) != signal.SIG_IGN:
                self._before[signo] = signal.signal(signo, self._note)
        self._fd_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def _note(self, signo: int, frame: object) -> None:
        self._signals.append(signo)

    def take(self) -> list[int]:
        """The signals that came since the last call."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        found, self._signals = self._signals, []
        return found

    def close(self) -> None:
        """Restore the handlers. Signals that ask the queue to leave stay blocked, as it is leaving already:
        a late one must neither delay it nor change its exit code.
        """
        block_interrupts()
        signal.set_wakeup_fd(self._fd_before)
        for signo, handler in self._before.items():
            signal.signal(signo, handler)
        os.close(self.fd)
        os.close(self._write_fd)
