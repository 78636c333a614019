"""The keeper of a queue's job: without a terminal, its output in a file, and on its own to the end.

The queue is only told. Whether it lives or is dead, the keeper notes in the attempt file that the command
began and how it ended, writes the outcome to the history and gives the lease back. The file is flocked for as
long as the keeper lives: so a queue that is started anew knows what still runs.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import select

from slicer import ending, faults, history, proc
from slicer.inner_half import SETTLE, InnerHalf
from slicer.model import Usage
from slicer.outcome_file import outcome_json
from slicer.record import record
from slicer.report import Report, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.job import Batch, Started
    from slicer.keeper import Task
    from slicer.model import Outcome

_CANNOT_BEGIN = 126  # as of a shell that cannot execute something
_QUEUE_LOOKS_S = 15.0  # how long the queue has for its look at the GPUs, before we look ourselves


def preload() -> None:
    """Load what every keeper will need, once for all of them."""
    from slicer import cgroup, keeper

    del cgroup, keeper
    history.preload()


class LogFile:
    """Takes the command's output as it is: whatever its size, nobody is in its way."""

    pid = 0

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        # An attempt that never began, or --fresh, may have left one of this name: its text is not ours.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
        self.stdout = self.stderr = os.open(path, flags, 0o666)

    def handed_over(self) -> None:
        """Kept open: for what slicer has to say."""

    def finish(self) -> None:
        """Nothing is on its way."""

    def say(self, text: str) -> None:
        """Add a line of slicer's own; a full disk is no reason to stop."""
        try:
            os.write(self.stdout, f"slicer: {text}\n".encode())
        except OSError:
            return


class BatchHalf(InnerHalf):
    """The keeper's side of the fork, for a job of a queue."""

    _log: LogFile
    _attempt: int  # the attempt file

    def run(self, descriptors: tuple[int, ...]) -> None:
        """From the fork to the end of the scope; ``descriptors`` hold the lease."""
        gc.disable()  # a keeper makes no garbage worth collecting, and looking for it copies shared pages
        os.setsid()  # Ctrl-C and Ctrl-Z at the queue's terminal are the queue's
        self._forwarder = -1
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        super().run(descriptors)

    @property
    def _batch(self) -> Batch:
        assert self._job.batch is not None
        return self._job.batch

    def _output(self) -> LogFile:
        return self._log

    def _run(self, task: Task, started: Started) -> tuple[Report, Usage]:
        batch = self._batch
        try:
            self._log = LogFile(batch.log_path)
            self._attempt = begin(batch.attempt_path)
        except OSError as error:
            return Report(1, 0, error.errno or errno.EIO, "unknown", 0.0, 0), Usage()
        faults.point("batch-noted-start")
        try:
            os.chdir(batch.directory)
        except OSError as error:
            self._log.say(f"cannot run in {batch.directory}: {error.strerror}")
            return Report(1, _CANNOT_BEGIN << 8, 0, "exited", 0.0, 0), Usage()
        return super()._run(task, started)

    def _end(self, started: Started, report: Report, usage: Usage) -> None:
        if report.exec_errno:
            self._held.release()
            self._tell(report, usage)
            return
        outcome = self._outcome(started, report, usage)
        problem = end(self._attempt, outcome)
        if problem:
            self._log.say(problem)
        faults.point("batch-noted-end")
        self._tell(report, usage)
        os.close(self._up_write)
        faults.point("keeper-told")
        watch = None
        if outcome.gpus and not self._is_looked_after():
            watch = ending.gpu_watch(self._job, self._held, self._book, self._log.say)
        ending.settle(self._job, outcome, self._held, self._log.say, watch)

    def _is_looked_after(self) -> bool:
        """Whether the queue has looked at the GPUs, and will not have to be waited for."""
        ready, _, _ = select.select([self._down_read], [], [], _QUEUE_LOOKS_S)
        return bool(ready) and os.read(self._down_read, 1) == SETTLE

    def _tell(self, report: Report, usage: Usage) -> None:
        try:
            os.write(self._up_write, pack(report, usage))
        except BrokenPipeError:
            pass  # the queue is dead, and will be told by the attempt file


# -- the attempt file: a mark, and then the outcome --------------------------------------------------------


def begin(path: str) -> int:
    """Note that the command begins; the descriptor of the file, flocked. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = os.getpid()
        os.write(fd, f"{pid} {proc.start_time(pid)}\n".encode())
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def end(fd: int, outcome: Outcome) -> str:
    """Note how it ended; "" or what went wrong (then the history has it)."""
    data = f"{json.dumps(outcome_json(outcome))}\n".encode()
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        return f"how the job ended cannot be written: {error.strerror}"
    return ""


def note(path: str, outcome: Outcome) -> None:
    """As :func:`end`, in place of a keeper that was killed. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        end(fd, outcome)
    finally:
        os.close(fd)


@record
class Attempt:
    """What an attempt file says of one attempt."""

    is_alive: bool  # its keeper lives
    keeper: int  # its pid; 0 unknown
    outcome: dict[str, Any] | None  # as in docs/json.md; None before the end


def read(path: str) -> Attempt | None:
    """What became of an attempt; None when its command never began. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_alive = False
        except BlockingIOError:
            is_alive = True
        head, _, rest = file.read().partition(b"\n")
    pid = head.partition(b" ")[0]
    outcome = json.loads(rest) if rest.endswith(b"\n") else None
    return Attempt(is_alive, int(pid) if pid.isdigit() else 0, outcome)
