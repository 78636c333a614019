"""The ledger's critical section: one lock, held for as long as a decision takes, and never asleep."""

from __future__ import annotations

import fcntl

from slicer.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class Locked:
    """Holds the lock. Signals wait outside, so that Ctrl-Z cannot stop everybody else's decisions."""

    def __init__(self, fd: int, mask: frozenset[int] | None) -> None:
        self._fd = fd
        self._sleeping_mask = mask

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait()

    def _wait(self) -> None:
        """Somebody is inside: normally for a moment, but a stopped one must not make us deaf to Ctrl-C."""
        try:
            signal.pthread_sigmask(
                signal.SIG_SETMASK, self._mask if self._sleeping_mask is None else self._sleeping_mask
            )
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        except BaseException:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # it may have come after the lock
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
