"""The ledger's lock. A process holds it for one decision, and never while asleep."""

from __future__ import annotations

import fcntl
import os
import time

from slicer.errors import LedgerBusy, LedgerGone
from slicer.kernel.signals import signal
from slicer.state.directory import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# The pauses between tries while another process holds the lock, in seconds. A decision takes about a
# millisecond. The longer a wait has lasted, the more others wait, and the longer are the pauses: a thousand
# processes that try every 20 ms leave the holder no CPU. Random pauses separate processes that came together.
# Nobody sleeps in flock(2), where the kernel wakes waiters one after the other: it would also wake a stopped
# one (Ctrl-Z), and all behind that one would sleep on.
_FIRST_PAUSE_S = 0.0002
LONGEST_PAUSE_S = 0.5
EAGER_PAUSE_S = 0.02  # the longest pause of processes that only look, which are few
_GROWTH = 1.25
_TELL_S = 3.0  # how long one holder may keep the lock before the user is told
_IN_TURN = 10  # the patience for one holder times this, if many hold the lock in turn


class LedgerLock:
    """Holds the lock within a ``with``. Signals are blocked there: Ctrl-Z must not stop all other decisions.

    ``mask`` is the signal mask while asleep (None: unchanged). ``patience_s`` is how long one holder may
    delay us, in seconds (None: for ever). ``longest_pause_s`` is the longest pause between two tries, in
    seconds. ``tell`` is called once if one holder keeps the lock for long. Entering raises LedgerBusy at the
    end of the time, and LedgerGone if the ledger was removed.
    """

    def __init__(
        self, fd: int, path: str, mask: frozenset[int] | None, patience_s: float | None,
        longest_pause_s: float, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._fd = fd
        self._path = path
        self._sleeping_mask = mask
        self._patience_s = patience_s
        self._longest_pause_s = longest_pause_s
        self._tell = tell

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if not try_lock(self._fd):
                self._wait()
            if not os.fstat(self._fd).st_nlink:
                raise LedgerGone(self._path)
            taken_ns = time.monotonic_ns()
            os.utime(self._fd, ns=(taken_ns, taken_ns))  # to show others that the lock changes hands
        except BaseException:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise

    def _wait(self) -> None:
        """Try until the lock is free. Signals act in the pauses, so a stopped holder cannot block Ctrl-C."""
        began_s = since_s = time.monotonic()
        taken_ns, pause_s = self._taken_ns(), _FIRST_PAUSE_S
        sleeping = self._mask if self._sleeping_mask is None else self._sleeping_mask
        is_told = False
        while not try_lock(self._fd):
            now_s, known_ns, taken_ns = time.monotonic(), taken_ns, self._taken_ns()
            if taken_ns != known_ns:
                since_s = now_s  # another process holds it
            self._check_patience(now_s - since_s, now_s - began_s)
            if now_s - since_s >= _TELL_S and not is_told:
                is_told = True
                self._tell(f"still waiting: {LedgerBusy(self._path, _holder(self._fd), now_s - since_s)}")
            signal.pthread_sigmask(signal.SIG_SETMASK, sleeping)
            time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 255))
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            pause_s = min(_GROWTH * pause_s, self._longest_pause_s)

    def _taken_ns(self) -> int:
        """The monotonic time at which the lock was last taken."""
        return os.fstat(self._fd).st_mtime_ns

    def _check_patience(self, held_s: float, waited_s: float) -> None:
        """``held_s``: how long the same holder has had it. Raises LedgerBusy."""
        if self._patience_s is None:
            return
        if held_s >= self._patience_s:
            raise LedgerBusy(self._path, _holder(self._fd), held_s)
        if waited_s >= _IN_TURN * self._patience_s:
            raise LedgerBusy(self._path, 0, waited_s, is_in_turn=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _holder(fd: int) -> int:
    """The process that holds the flock on a file; 0: it is not visible."""
    from slicer.kernel.open_files import flock_holder

    try:
        return flock_holder(os.fstat(fd))
    except OSError:
        return 0  # no descriptor is left, or this container has no /proc/locks
