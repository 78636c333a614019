"""The attempt file of a queue's job: whether its command began, and how it ended, for any later queue.

The queue creates the file at full size, so that a full disk is noticed before the job and not after it. The
keeper flocks it as long as it lives. It has up to two lines:

    PID START     when the command begins: the keeper's pid and start time
    {outcome}     when it has ended

The unwritten rest reads as NUL. A file is identified by its directory's descriptor and the job's id. Every
field that is read back is checked. An invalid file affects only its own attempt.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat

from slicer import faults
from slicer.job.keeper import Redirection
from slicer.kernel import proc
from slicer.model import Outcome
from slicer.outcome.outcome_file import INVALID, outcome_from, outcome_json
from slicer.record import record
from slicer.state.directory import try_lock
from slicer.state.statefile import PID_MAX, START_MAX

_ROOM = 8192  # bytes: an outcome with a long command has 3000
_LONGEST = 4 << 20  # bytes that are read; the longest command has half as many
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# Errors for something else in the file's place: a link, a socket, another user's file.
_ODD = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EISDIR)


@record
class AttemptFile:
    is_alive: bool  # whether its keeper lives
    keeper: int  # its pid; 0 unknown
    keeper_start: int  # field 22 of /proc/PID/stat
    outcome: Outcome | None


def reserve(directory: int, job: str, rooms: int = 1) -> None:
    """Create the file, with the disk space of ``rooms`` attempts. Raises OSError; then it does not exist."""
    fd = os.open(job, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        os.posix_fallocate(fd, 0, rooms * _ROOM)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some file systems cannot reserve
            os.unlink(job, dir_fd=directory)
            raise
        os.ftruncate(fd, rooms * _ROOM)
    finally:
        os.close(fd)


class Attempt:
    """The record of one job, with the file that its output goes to. See :class:`slicer.job.job.Attempt`."""

    def __init__(self, attempts: int, job: str, logs: int, log: str) -> None:
        """``attempts``, ``logs``: descriptors of directories; ``log``: the name of the output's file."""
        self._attempts = attempts
        self._job = job
        self._logs = logs
        self._log = log
        self._fd = -1
        self._output = -1

    def begin(self) -> Redirection:
        with contextlib.suppress(FileNotFoundError):  # of an attempt that never began
            os.unlink(self._log, dir_fd=self._logs)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._output = os.open(self._log, flags, 0o666, dir_fd=self._logs)
        self.take()
        faults.point("keeper-noted-start")
        os.dup2(self._output, 2)  # so that it has slicer's exceptions, too
        return Redirection(self._output, self._output, is_kept=True)

    def take(self) -> None:
        """Note in its file that the command begins, and flock that while we live. Raises OSError."""
        self._fd = _open(self._attempts, self._job)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = os.getpid()
        os.write(self._fd, f"{pid} {proc.start_time(pid)}\n".encode())

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the disk has no room
            os.write(self._output, f"slicer: {text}\n".encode())

    def take_back(self) -> None:
        with contextlib.suppress(OSError):
            fd = _open(self._attempts, self._job)
            os.ftruncate(fd, 0)
            os.ftruncate(fd, _ROOM)
            os.close(fd)

    def end(self, outcome: Outcome) -> str:
        try:
            # The queue may have removed the file that we hold.
            fd = os.dup(self._fd) if self._fd >= 0 else _open(self._attempts, self._job)
            try:
                problem = _end(fd, outcome)
            finally:
                os.close(fd)
        except OSError as error:
            problem = error.strerror or str(error)
        faults.point("attempt-noted-end")
        return f"the job's outcome cannot be written: {problem}" if problem else ""


def _open(directory: int, job: str) -> int:
    """Open the file for writing, and create it if somebody removed it. Raises OSError."""
    fd = os.open(job, _FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "is not a regular file")


def _end(fd: int, outcome: Outcome) -> str:
    line = f"{json.dumps(outcome_json(outcome))}\n".encode()
    if _outcome(line, outcome.job) is None:
        return "nobody could read it back"
    whole = _whole(_contents(fd))
    if not whole:  # it did begin, but its keeper is not known
        os.pwrite(fd, whole := b"0 0\n", 0)
    os.lseek(fd, len(whole), os.SEEK_SET)
    while line:
        line = line[os.write(fd, line) :]
    return ""


def read(directory: int, job: str) -> AttemptFile | None:
    """Read an attempt file; None: the command never began. Raises OSError."""
    try:
        fd = os.open(job, _FLAGS & ~os.O_RDWR, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _ODD:
            raise
        return _NOTHING
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return _NOTHING
        is_alive = not try_lock(fd, shared=True)
        data = _contents(fd)
        is_damaged = not os.fstat(fd).st_size
    finally:
        os.close(fd)
    if not data and not is_alive and not is_damaged:
        return None
    return decode(data, job, is_alive=is_alive)


def decode(data: bytes, job: str, *, is_alive: bool) -> AttemptFile:
    """Decode the file of the attempt with that id. Invalid parts are left out."""
    first, *rest = _whole(data).split(b"\n")
    keeper, start = _keeper(first)
    found = [each for each in (_outcome(line, job) for line in rest) if each is not None]
    return AttemptFile(is_alive, keeper, start, found[-1] if found else None)


_NOTHING = AttemptFile(False, 0, 0, None)


def _contents(fd: int) -> bytes:
    return os.pread(fd, min(_LONGEST, max(_ROOM, os.fstat(fd).st_size)), 0).partition(b"\0")[0]


def _whole(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


# -- reading ----------------------------------------------------------------------------------------------


def _keeper(line: bytes) -> tuple[int, int]:
    """The keeper's pid and start time; zeros for anything else."""
    words = line.split(b" ")
    if len(words) != 2 or not all(word.isdigit() and len(word) < 20 for word in words):
        return 0, 0
    pid, start = map(int, words)
    return (pid, start) if 1 < pid <= PID_MAX and start <= START_MAX else (0, 0)


def _outcome(line: bytes, job: str) -> Outcome | None:
    """The outcome in a line; None for anything else."""
    try:
        outcome = outcome_from(json.loads(line))
    except INVALID:
        return None
    return outcome if outcome.job == job else None
