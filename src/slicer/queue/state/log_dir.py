"""The log directory of a queue: its owner and its contents.

    lock            flocked by the queue that uses the directory; contains its pid
    journal.jsonl   the jobs' states (slicer.queue.state.journal)
    status.txt      the board, for people
    job0007.log     the output of job 7; job0007.2.log: of its second attempt
    earlier-…/      logs of queues before one with --fresh
    paused          there while the queue is paused, also after a crash
    attempts/ID     the attempt file of a keeper, named by the id of its lease

The directory must belong to the user or to root, and not be writable by others. It is opened once
(slicer.state.directory); its files are opened through its descriptor, and no symbolic link is followed.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from functools import partial

from slicer.errors import EX_TEMPFAIL, SlicerError, StateError
from slicer.state import directory
from slicer.state.directory import Directory, Rules, open_or_make, try_lock, write_all
from slicer.text import quote

HINT = "choose another one with --log-dir"
RULES = Rules(
    may_be_roots=True,
    is_sticky_safe=False,
    is_probed=False,
    is_closed=False,
    foreign="belongs to uid {uid}",
    writable="can be written to by others (mode {mode})",
    no_directory="cannot be used: Not a directory",
    no_file="is not a regular file",
    second_name="has a second name (a hard link)",
    hint=HINT,
    writable_hint=f"chmod go-w {{path}}, or {HINT}",
    full_hint="make room there",
    file_hint=f"remove it, or {HINT}",
)
_LOCK = "lock"
_STATUS = "status.txt"
_PAUSED = "paused"
_LOG = re.compile(r"job\d{4,}(?:\.\d+)?\.log")


failing = partial(directory.failing, rules=RULES)  # raises an OSError of its block as StateError


class QueueRunning(SlicerError):
    """Another queue uses the log directory (exit code 75). ``pid``: its process; None if unknown."""

    exit_code = EX_TEMPFAIL
    kind = "queue-busy"

    def __init__(self, path: str, pid: int | None, since: float) -> None:
        """``since``: when it began, in seconds since the epoch."""
        began, day = (time.strftime("%Y-%m-%d", time.localtime(at)) for at in (since, time.time()))
        at = time.strftime("%H:%M" if began == day else "%Y-%m-%d %H:%M", time.localtime(since))
        who = f"since {at}" if pid is None else f"pid {pid}, since {at}"
        look = f"watch cat {quote(f'{path}/{_STATUS}')}"
        super().__init__(f"already running ({who}): {look}", where=path, hint=f"or {HINT}")
        self.pid = pid


class LogDir:
    """A log directory, locked until :meth:`close` or the end of this process and its forked children."""

    def __init__(self, path: str) -> None:
        """Create the directory if missing, and lock it. Raises QueueRunning, StateError."""
        self._said = path
        self._owner = os.getpid()
        self.directory = open_or_make(path, RULES)
        self.attempts = Directory(-1, "")
        try:
            self.attempts = self.directory.own_folder("attempts")
            self._fd = self._lock()
        except BaseException:
            self.attempts.close()
            self.directory.close()
            raise

    @property
    def path(self) -> str:
        return self.directory.path

    @staticmethod
    def log_name(no: int, attempt: int) -> str:
        """The file name of the log of a job's attempt (from 1), for :attr:`JobState.log`."""
        return f"job{no:04d}.log" if attempt <= 1 else f"job{no:04d}.{attempt}.log"

    def write_status(self, text: str) -> None:
        """Replace status.txt. Raises OSError."""
        os.close(self.directory.replace(_STATUS, text.encode("utf-8", "backslashreplace")))

    def is_paused(self) -> bool:
        """Whether the queue is paused. Raises StateError."""
        with failing(self.path):
            return self.directory.has(_PAUSED)

    def note_pause(self, *, is_paused: bool) -> str:
        """Remember it for the next queue. Returns why that failed; "": it did not."""
        try:
            if is_paused:
                os.close(self.directory.replace(_PAUSED, b""))
            else:
                self.directory.remove(_PAUSED)
        except OSError as error:
            return error.strerror or "unknown"
        return ""

    def set_logs_aside(self) -> str:
        """Move the jobs' logs into a new directory; its name, "" if there are no logs. Raises StateError."""
        with failing(self.path, "earlier logs cannot be set aside"):
            logs = [name for name in self.directory.names() if _LOG.fullmatch(name)]
            if not logs:
                return ""
            name = time.strftime("earlier-%Y%m%dT%H%M%S")
            aside = self.directory.own_folder(name)
            for log in logs:
                self.directory.rename(log, aside, log)
            aside.close()
            return name

    def restore(self) -> None:
        """Create the directory and the lock again if they were deleted. Raises QueueRunning, StateError."""
        self._reopen()
        if not self._is_current(self._fd):
            fd = self._lock()
            os.close(self._fd)
            self._fd = fd

    def close(self) -> None:
        """Release the directory. Safe to repeat; in a forked child, the parent keeps the lock."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            with failing(self._lock_path):
                if os.getpid() == self._owner:
                    os.ftruncate(fd, 0)  # the pid will be invalid
                    fcntl.flock(fd, fcntl.LOCK_UN)  # even if a child still has it open
        finally:
            os.close(fd)
            self.attempts.close()
            self.directory.close()

    @property
    def _lock_path(self) -> str:
        return f"{self.path}/{_LOCK}"

    def _reopen(self) -> None:
        """Open the directories again, because ours may have been deleted or renamed."""
        try:
            found = open_or_make(self._said, RULES)
        except StateError:
            if self.directory.is_there():
                return  # something foreign is in its place: keep ours
            raise
        self.directory.close()
        self.directory = found
        attempts = found.own_folder("attempts")
        self.attempts.close()
        self.attempts = attempts

    def _lock(self) -> int:
        """Take the lock, and write our pid into its file. Raises QueueRunning, StateError."""
        while True:
            with failing(self._lock_path):
                fd = self.directory.open_lock()
            try:
                with failing(self._lock_path):
                    if not try_lock(fd):
                        text = os.pread(fd, 32, 0).strip()
                        pid = int(text) if text.isdigit() else None
                        raise QueueRunning(self._said, pid, os.fstat(fd).st_mtime)
                    if self._is_current(fd):
                        os.ftruncate(fd, 0)
                        write_all(fd, b"%d\n" % os.getpid(), 0)
                        return fd
            except SlicerError:
                os.close(fd)
                raise
            os.close(fd)  # it was deleted while we took it

    def _is_current(self, fd: int) -> bool:
        """Whether the name still leads to the file that we have open."""
        with failing(self._lock_path):
            try:
                return os.path.samestat(os.fstat(fd), self.directory.lstat(_LOCK))
            except FileNotFoundError:
                return False
