"""The log directory of a queue: whose it is, and where things lie in it.

    lock            flocked by the queue that uses the directory; its pid stands in it
    journal.jsonl   what must last (slicer.queue.journal)
    status.txt      the board, for people
    job0007.log     what job 7 printed; job0007.2.log in its second attempt
    attempts/ID     of one attempt, by the id of its lease: what its supervisor leaves for the queue

The directory is the user's: one that belongs to somebody else, or that everybody may write to, is taken as
it is, but no symbolic link in it is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer.errors import EX_TEMPFAIL, SlicerError, StateError

HINT = "choose another one with --log-dir"


class QueueRunning(SlicerError):
    """Another queue uses the log directory (exit code 75). ``pid`` is its process, if it is told."""

    exit_code = EX_TEMPFAIL
    kind = "queue-busy"

    def __init__(self, path: str, pid: int | None) -> None:
        who = "another queue" if pid is None else f"the queue with pid {pid}"
        super().__init__(f"is in use by {who}", where=path, hint=f"wait for it, or {HINT}")
        self.pid = pid


class LogDir:
    """A log directory that is ours until :meth:`close`, or until all processes that have it open are dead.

    A forked child that is to outlive the queue must call :meth:`close`, too, which takes nothing away from
    the queue.
    """

    def __init__(self, path: str) -> None:
        """Make the directory where it is missing, and lock it. Raises QueueRunning, StateError."""
        self.path = os.path.abspath(path)
        self._owner = os.getpid()
        self._make()
        self._fd = self._lock()

    @property
    def journal_path(self) -> str:
        return f"{self.path}/journal.jsonl"

    @property
    def status_path(self) -> str:
        return f"{self.path}/status.txt"

    @staticmethod
    def log_name(no: int, attempt: int) -> str:
        """The file name of the log of a job's attempt (from 1), as :attr:`JobState.log` has it."""
        return f"job{no:04d}.log" if attempt <= 1 else f"job{no:04d}.{attempt}.log"

    def log_path(self, no: int, attempt: int) -> str:
        """Where the log of a job's attempt lies. A file there may be of an earlier queue (``--fresh``)."""
        return f"{self.path}/{self.log_name(no, attempt)}"

    @property
    def attempts_path(self) -> str:
        return f"{self.path}/attempts"

    def attempt_path(self, job_id: str) -> str:
        """Where the supervisor of an attempt leaves what the queue wants to know."""
        return f"{self.attempts_path}/{job_id}"

    def restore(self) -> bool:
        """Make again what somebody deleted of directory and lock; whether that was needed.

        Raises QueueRunning where another queue was faster, StateError where it cannot be made; the lock that
        we had stays ours then.
        """
        had_to = self._make()
        if self._is_current(self._fd):
            return had_to
        fd = self._lock()
        os.close(self._fd)
        self._fd = fd
        return True

    def close(self) -> None:
        """Let others have the directory. Safe to repeat; in a forked child, the lock stays the parent's."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            if os.getpid() == self._owner:
                os.ftruncate(fd, 0)  # nobody is to be told of a pid that is gone
                fcntl.flock(fd, fcntl.LOCK_UN)  # even if a child still has it open
        except OSError as error:
            raise _unusable(self._lock_path, error) from error
        finally:
            os.close(fd)

    @property
    def _lock_path(self) -> str:
        return f"{self.path}/lock"

    def _make(self) -> bool:
        """Make the directories that are missing; whether there were any."""
        attempts = self.attempts_path
        try:
            os.makedirs(self.path, exist_ok=True)
            try:
                os.mkdir(attempts)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(attempts).st_mode):
                    raise
                return False
        except OSError as error:
            raise _unusable(error.filename or self.path, error) from error
        return True

    def _lock(self) -> int:
        while True:
            fd = self._open()
            try:
                self._take(fd)
                if self._is_current(fd):
                    _write_pid(fd)
                    return fd
            except OSError as error:
                os.close(fd)
                raise _unusable(self._lock_path, error) from error
            except SlicerError:
                os.close(fd)
                raise
            os.close(fd)  # it was deleted while we took it

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            fd = os.open(self._lock_path, flags, 0o644)
        except OSError as error:
            raise _unusable(self._lock_path, error) from error
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise StateError("is not a regular file", where=self._lock_path, hint=f"remove it, or {HINT}")

    def _take(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, 32, 0).strip()
            raise QueueRunning(self.path, int(text) if text.isdigit() else None) from None

    def _is_current(self, fd: int) -> bool:
        """Whether what we have open is what others would find."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._lock_path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _unusable(self._lock_path, error) from error


def _write_pid(fd: int) -> None:
    text = b"%d\n" % os.getpid()
    os.ftruncate(fd, 0)
    if os.pwrite(fd, text, 0) < len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unusable(path: str, error: OSError) -> StateError:
    if error.errno == errno.ELOOP:
        return StateError("is a symbolic link; not followed", where=path, hint=f"remove it, or {HINT}")
    return StateError(f"cannot be used: {error.strerror}", where=path, hint=HINT)
