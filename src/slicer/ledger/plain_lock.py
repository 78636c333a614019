"""The plain lock file that scripts flock around GPU work (``compat_gpu_lock``, ``GPU_LOCK_PATH``).

Scripts take it exclusively (``flock FILE command``), slicer's jobs take it shared. So several jobs, each on
its GPUs, may hold it together. A script excludes all of them and is excluded by each. The kernel keeps no
order between the two kinds: a script can wait for long while jobs follow each other without a gap.

flock(2) has no time limit. So a child sleeps in it, on the file that it inherits. A flock belongs to the open
file: this process has the lock once the child has it. The child is killed at the end of the time.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.kernel.open_files import descriptors_of, flock_holder
from slicer.kernel.signals import signal
from slicer.kernel.sleep import until_readable
from slicer.state.directory import try_lock

_HINT = "see compat_gpu_lock in the configuration, or GPU_LOCK_PATH"
_ALL = frozenset(signal.valid_signals())
_FROM_TERMINAL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# Standard input is the lock file. The kernel kills the child (PR_SET_PDEATHSIG) when its parent has ended.
_SLEEPER = """
import ctypes, fcntl, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    fcntl.flock(0, fcntl.LOCK_SH)
"""


class PlainLock:
    """One holder's share of the lock.

    ``fd`` is the open file that has it (-1: none). It is not inheritable at first: a process that inherits it
    keeps the lock held.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1

    def take(self, wait_s: float | None, mask: frozenset[int] | None) -> bool:
        """Take the lock, waiting at most ``wait_s`` seconds for it (None: for ever, 0: not at all).

        ``mask`` is the signal mask while asleep (None: unchanged), so that a caller that blocks signals can
        be interrupted there. Returns whether the lock is held now. Raises StateError for a path that cannot
        be a lock, and whatever a signal handler raises; then nothing is held.
        """
        end_s = None if wait_s is None else time.monotonic() + wait_s
        try:
            while True:
                if self.fd < 0:
                    self.fd = _open(self.path)
                if not try_lock(self.fd, shared=True) and (wait_s == 0 or not self._wait(end_s, mask)):
                    return False
                if self._is_current():
                    return True
                self.release()  # a script has removed the file: the new file's lock counts
        except OSError as error:
            self.release()
            raise _failed(self.path, error) from error
        except BaseException:
            self.release()
            raise

    def holder(self) -> int:
        """The process that holds the lock exclusively; 0 if it is unknown."""
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
        """Release the lock, unless a process that inherited ``fd`` has it open. Safe to repeat."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except FileNotFoundError:
            return False

    def _wait(self, end_s: float | None, mask: frozenset[int] | None) -> bool:
        """Sleep until the lock is ours or ``end_s`` (on the monotonic clock) has come."""
        while not try_lock(self.fd, shared=True):
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            _sleep_in_flock(self.fd, left_s, mask)
        return True


def _sleep_in_flock(fd: int, left_s: float | None, mask: frozenset[int] | None) -> None:
    """Sleep until the file can be locked, at most ``left_s`` seconds. Raises OSError."""
    before = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, _ALL))
    try:
        command = (sys.executable, "-I", "-S", "-c", _SLEEPER, str(os.getpid()))
        child = os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_CLOSE, 1), (os.POSIX_SPAWN_CLOSE, 2)],
            setsigmask=_ALL - _FROM_TERMINAL,  # Ctrl-Z stops both: no stopped process may get the lock
            setsigdef=_FROM_TERMINAL,
        )
        pidfd = os.pidfd_open(child)
        try:
            until_readable([pidfd], left_s, before if mask is None else mask)
        finally:
            _end(pidfd)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pidfd: int) -> None:
    """Kill the child, if it still sleeps. Raises OSError if it could not wait for the lock."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except (ProcessLookupError, ChildProcessError):
        return  # the program reaps all children itself
    finally:
        os.close(pidfd)
    if ended is not None and ended.si_code == os.CLD_EXITED and ended.si_status:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def _open(path: str) -> int:
    """The lock file, created for everybody if missing. Reading is enough to lock it. Raises StateError.

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
        raise StateError("is not a plain file, so it cannot be the GPU lock", where=path, hint=_HINT)
    return fd


def _create(path: str, flags: int) -> int:
    # Never O_CREAT on an existing file: in a sticky directory that is refused for others' files.
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)  # created meanwhile; still missing: a link to nowhere


def _failed(path: str, error: OSError) -> StateError:
    return StateError(f"cannot be the GPU lock: {error.strerror}", where=path, hint=_HINT)


def _with_lock_open(info: os.stat_result) -> int:
    """The first process that has the locked file open, as far as we may inspect them; 0: none."""
    return next(
        (pid for pid in sorted(proc.pids()) for fd in descriptors_of(pid, info) if _has_lock(pid, fd)), 0
    )


def _has_lock(pid: int, fd: str) -> bool:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as lines:
            return any(line.startswith("lock:") and " WRITE " in line for line in lines)
    except OSError:
        return False  # closed in the meantime
