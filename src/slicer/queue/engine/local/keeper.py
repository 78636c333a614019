"""The keeper of a queue's job. It has no terminal, its command writes to a file, and it needs no queue.

The keeper records in the attempt file that the command began and how it ended. It writes the outcome to the
history and releases the lease. It also notifies a living queue. The keeper holds a flock on the attempt file
until it ends, so a new queue knows which jobs still run.
"""

from __future__ import annotations

import errno
import gc
import os
import select

from slicer import faults
from slicer.backend import Backend
from slicer.job import ending
from slicer.job.command import Task
from slicer.job.job import GPUS_CHECKED, Job, Started
from slicer.job.keeper import Keeper, Redirection
from slicer.job.report import Report, pack
from slicer.kernel.signals import signal
from slicer.kernel.sleep import until_readable
from slicer.ledger.ledger import Ledger
from slicer.model import Usage
from slicer.outcome import history
from slicer.queue.state import attempt
from slicer.record import replace

_CANNOT_BEGIN = 126  # a shell's exit code if it cannot execute a command
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # these may be over soon
_ENDED_FROM_OUTSIDE = ("timeout", "stopped")
_QUEUE_CHECK_S = 15.0  # the queue's time to check the GPUs before the keeper does


def preload() -> None:
    """Import the modules that every keeper needs, once for all."""
    from slicer.outcome import journal

    del journal
    history.preload()


class LogFile(Redirection):
    """The file to which the command writes directly."""

    def __init__(self, directory: int, name: str) -> None:
        """``directory``: a descriptor of the log directory. Raises OSError."""
        # An attempt that never began may have left a log of this name.
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o666, dir_fd=directory)
        super().__init__(fd, fd)

    def handed_over(self) -> None:
        """The file stays open for messages of slicer."""

    def say(self, text: str) -> None:
        """Add a message of slicer, if the disk has room for it."""
        try:
            os.write(self.stdout, f"slicer: {text}\n".encode())
        except OSError:
            return


class QueueKeeper(Keeper):
    """A keeper that records the attempt itself."""

    _log: LogFile
    _attempt: int  # the attempt file

    def __init__(
        self, job: Job, backend: Backend, ledger: Ledger, mask: frozenset[int], queue: int, up_write: int,
        down_read: int, logs: int, attempts: int,
    ) -> None:  # fmt: skip
        """``logs`` and ``attempts``: descriptors of the log directory and of its attempts directory."""
        super().__init__(job, backend, ledger, mask, queue, up_write, down_read)
        self._logs = logs
        self._attempts = attempts

    def run(self, descriptors: tuple[int, ...]) -> None:
        """From the fork to the end of the scope; ``descriptors`` hold the lease."""
        gc.disable()  # there is little garbage, and collecting it would copy shared pages
        os.setsid()  # Ctrl-C and Ctrl-Z at the queue's terminal are for the queue
        self._forwarder = -1
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)  # a reader of the queue's output must not wait for our end
        os.close(null)
        super().run(descriptors)

    def _output(self) -> LogFile:
        return self._log

    def _run(self, task: Task, started: Started) -> tuple[Report, Usage]:
        self._started = started
        try:
            self._log = LogFile(self._logs, os.path.basename(self._job.log))
            self._attempt = attempt.begin(self._attempts, self._job.id)
        except OSError as error:
            return Report(1, "unknown", exec_errno=error.errno or errno.EIO), Usage()
        os.dup2(self._log.stdout, 2)  # so that the log has our exceptions
        faults.point("keeper-noted-start")
        try:
            os.chdir(self._job.directory)
        except OSError as error:
            self._log.say(f"cannot run in {self._job.directory}: {error.strerror}")
            return Report(1, "exited", _CANNOT_BEGIN << 8), Usage()
        report, usage = super()._run(task, started)
        if report.exec_errno:
            self._log.say(f"cannot execute {task.program}: {os.strerror(report.exec_errno)}")
            if report.exec_errno == errno.E2BIG:
                self._log.say("a command, and each of its variables, must be below 128 KiB: put it in a file")
            if report.exec_errno in _SHORTAGES:
                attempt.take_back(self._attempt)
                report = replace(report, reason="unknown")
        return report, usage

    def _end(self, started: Started, report: Report, usage: Usage) -> None:
        if report.exec_errno:
            self._held.release()
            ending.forget(self._job, self._held)
            self._tell(report, usage)
            return
        outcome = self._outcome(started, report, usage)
        problem = attempt.end(self._attempt, outcome)
        if problem:
            self._log.say(problem)
        faults.point("keeper-noted-end")
        self._tell(replace(report, ended_by=outcome.ended_by), usage)
        os.close(self._up_write)
        faults.point("keeper-told")
        watch = None
        if outcome.gpus and not self._has_queue_checked():
            watch = ending.gpu_watch(self._job, self._held, self._ledger, self._log.say)
        ending.finish(self._job, outcome, self._held, self._log.say, watch)
        ending.forget(self._job, self._held)

    def _was_watched(self) -> bool:
        poll = select.poll()
        poll.register(self._down_read, 0)  # POLLHUP is always reported: the queue is dead
        return not poll.poll(0)

    def _has_queue_checked(self) -> bool:
        """Wait until the queue has checked the GPUs; False if it takes too long."""
        has_word = until_readable([self._down_read], _QUEUE_CHECK_S, None)
        return bool(has_word) and os.read(self._down_read, 1) == GPUS_CHECKED

    def _tell(self, report: Report, usage: Usage) -> None:
        if not report.is_final and report.reason in _ENDED_FROM_OUTSIDE:
            # systemd may kill us together with the job. Otherwise the final outcome follows.
            foreseen = replace(report, status=signal.SIGKILL)
            attempt.end(self._attempt, self._outcome(self._started, foreseen, usage), is_final=False)
        try:
            os.write(self._up_write, pack(report, usage))
        except BrokenPipeError:
            pass  # the queue is dead, and the next one reads the attempt file
