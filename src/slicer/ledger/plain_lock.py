"""The plain lock file that scripts flock around GPU work (``compat_gpu_lock``, ``GPU_LOCK_PATH``).

Scripts take it exclusively (``flock FILE command``); slicer's jobs take it shared. So several of slicer's
jobs, each on its GPUs, may hold it together, while a script excludes all of them and is excluded by each.
The kernel keeps no order between the two kinds: a script can wait for long where jobs follow each other
without a gap.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.kernel.open_files import flock_holder
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_AGAIN_S = 0.1  # how soon the alarm is repeated in case it rang before the wait began
_HINT = "see compat_gpu_lock in the configuration, or GPU_LOCK_PATH"
_ALL = frozenset(signal.valid_signals())


class _TimeUp(Exception):
    """The alarm rang."""


class PlainLock:
    """One holder's share of the lock.

    ``fd`` is the open file that has it (-1: none), not inheritable until somebody makes it so: a process
    that inherits it keeps the lock held.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1

    def take(self, wait_s: float | None, mask: frozenset[int] | None) -> bool:
        """Take the lock, waiting at most ``wait_s`` seconds for it (None: for ever, 0: not at all).

        ``mask`` is the signal mask while asleep (None: as it is), so that a caller who holds signals back
        can be interrupted there. Returns whether the lock is held now. Raises StateError for a path that
        cannot be a lock, and whatever a signal's handler raises; then nothing is held.
        """
        end_s = None if wait_s is None else time.monotonic() + wait_s
        try:
            while True:
                if self.fd < 0:
                    self.fd = _open(self.path)
                if not _try(self.fd) and (wait_s == 0 or not self._wait(end_s, mask)):
                    return False
                if self._is_current():
                    return True
                self.release()  # a script has removed the file: the lock is that of the new one
        except OSError as error:
            self.release()
            raise _failed(self.path, error) from error
        except BaseException:
            self.release()
            raise

    def holder(self) -> int:
        """The process that holds the lock exclusively, 0 when that cannot be known."""
        try:
            info = os.stat(self.path)
            pid = flock_holder(info, exclusively=True)
        except OSError:
            return 0
        if not pid or not os.path.exists(f"/proc/{pid}"):
            # "exec 9>FILE; flock 9": the process that took the lock has ended, its parent has it. (In a pid
            # namespace /proc/locks leaves out what the dead hold.)
            return _with_lock_open(info)
        return pid

    def release(self) -> None:
        """Let go; the lock stays held while a process that inherited ``fd`` has it open. Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except FileNotFoundError:
            return False

    def _wait(self, end_s: float | None, mask: frozenset[int] | None) -> bool:
        """Sleep until the lock is free or ``end_s`` (on the monotonic clock) has come."""
        before = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        sleeping = before if mask is None else mask
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
            if end_s is None:
                signal.pthread_sigmask(signal.SIG_SETMASK, sleeping)
                fcntl.flock(self.fd, fcntl.LOCK_SH)
                return True
            left_s = max(1e-6, end_s - time.monotonic())
            try:
                handler = signal.signal(signal.SIGALRM, signal.SIG_IGN)
            except ValueError:  # not the main thread: signals are not ours
                return self._wait_in_thread(left_s)
            return _wait_for_alarm(self.fd, left_s, sleeping, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait_in_thread(self, left_s: float) -> bool:
        """As another thread sleeps in flock(2), this one can wait with a limit.

        When the time is over that thread is left behind with the file, which is closed, and with it the lock
        given back, as soon as it gets it.
        """
        import _thread

        fd, failures = self.fd, []
        done = _thread.allocate_lock()
        done.acquire()

        def sleep() -> None:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
            except OSError as error:
                failures.append(error)
            done.release()

        _thread.start_new_thread(sleep, ())  # with every signal blocked
        if not done.acquire(timeout=left_s):
            self.release()
            return False
        if failures:
            raise failures[0]
        return True


def _wait_for_alarm(fd: int, left_s: float, sleeping: frozenset[int], handler: object) -> bool:
    """Sleep in flock(2) until an alarm rings. Called, and left, with every signal blocked.

    ``handler`` is what SIGALRM did before.
    """
    is_armed = True

    def ring(signo: int, frame: FrameType | None) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise _TimeUp

    signal.signal(signal.SIGALRM, ring)
    began_s = time.monotonic()
    # A handler runs between two bytecodes: an alarm after the last of them and before the system call is
    # noticed when it rings again.
    timer_s, interval_s = signal.setitimer(signal.ITIMER_REAL, left_s, _AGAIN_S)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, sleeping - {signal.SIGALRM})
        fcntl.flock(fd, fcntl.LOCK_SH)
        is_armed = False
        return True
    except _TimeUp:
        return _try(fd)  # it may have rung after the lock
    finally:
        is_armed = False
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # takes back an alarm that is still to come
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
            if timer_s:
                left_s = timer_s - (time.monotonic() - began_s)
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, left_s), interval_s)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: str) -> int:
    """The lock file, made for everybody when missing. Reading is enough to lock it. Raises StateError.

    Links are followed, since scripts follow them, except where anybody could have put one.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        if os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH:
            flags |= os.O_NOFOLLOW
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = _create(path, flags)
    except OSError as error:
        raise _failed(path, error) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateError("is not a plain file, and cannot be the GPU lock", where=path, hint=_HINT)
    return fd


def _create(path: str, flags: int) -> int:
    # Never O_CREAT on a file that is there: in a sticky directory that is refused for others' files.
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)  # made meanwhile; still missing: a link to nowhere


def _failed(path: str, error: OSError) -> StateError:
    return StateError(f"cannot be the GPU lock: {error.strerror}", where=path, hint=_HINT)


def _with_lock_open(info: os.stat_result) -> int:
    """The first process that has the locked file open, of those that we may look at; 0: none."""
    for pid in sorted(proc.pids()):
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # gone, or another user's
        if any(_has_lock(pid, fd, info) for fd in fds):
            return pid
    return 0


def _has_lock(pid: int, fd: str, info: os.stat_result) -> bool:
    try:
        if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), info):
            return False
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as lines:
            return any(line.startswith("lock:") and " WRITE " in line for line in lines)
    except OSError:
        return False  # closed meanwhile
