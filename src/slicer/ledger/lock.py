"""The ledger's lock. It is held for as long as a decision takes, and never while asleep."""

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

# How soon to try again while somebody else holds the lock, in seconds. A decision takes about a millisecond.
#
# A child could sleep in flock(2) instead, as for the lock of scripts. But /proc/locks names the process that
# called flock(2): after such a wait it would name a dead child as the holder.
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02
_TELL_S = 3.0  # when to tell the user


class LedgerLock:
    """Holds the lock within a ``with``. Signals are blocked there: Ctrl-Z must not stop all other decisions.

    ``mask`` is the signal mask while asleep (None: as it is). ``patience_s`` is how long to try, in seconds
    (None: for ever). ``tell`` is called once if it takes long. Entering raises LedgerBusy when the time is
    over, and LedgerGone when the ledger was removed.
    """

    def __init__(
        self, fd: int, path: str, mask: frozenset[int] | None, patience_s: float | None,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._fd = fd
        self._path = path
        self._sleeping_mask = mask
        self._patience_s = patience_s
        self._tell = tell

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if not try_lock(self._fd):
                self._wait()
            if not os.fstat(self._fd).st_nlink:
                raise LedgerGone(self._path)
        except BaseException:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise

    def _wait(self) -> None:
        """Try until the lock is free. Signals act in the pauses, so a stopped holder cannot block Ctrl-C."""
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        sleeping = self._mask if self._sleeping_mask is None else self._sleeping_mask
        is_told = False
        while not try_lock(self._fd):
            waited_s = time.monotonic() - began_s
            if self._patience_s is not None and waited_s >= self._patience_s:
                raise LedgerBusy(self._path, _holder(self._fd), waited_s)
            if waited_s >= _TELL_S and not is_told:
                is_told = True
                self._tell(f"still waiting: {LedgerBusy(self._path, _holder(self._fd), waited_s)}")
            signal.pthread_sigmask(signal.SIG_SETMASK, sleeping)
            time.sleep(pause_s)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _holder(fd: int) -> int:
    """The process that holds the flock on a file; 0: it cannot be seen."""
    from slicer.kernel.open_files import flock_holder

    try:
        return flock_holder(os.fstat(fd))
    except OSError:
        return 0  # no descriptor is left, or this container has no /proc/locks
