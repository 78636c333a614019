"""One job of the queue in flight: the outer half of its supervisor, which here never waits.

The queue has many at a time. What a single ``slicer run`` waits for, one step after the other, is here told
by descriptors and taken up by the queue's loop. All that follows the command's end is the keeper's
(:mod:`slicer.queue.run.keeper`); where the keeper is killed, a child forked for it cleans up, since that
may take long.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from slicer import faults
from slicer.errors import BackendError
from slicer.job import ending
from slicer.job.job import Started
from slicer.job.keeper import QUIT, SETTLE, STARTING
from slicer.job.outer_half import OuterHalf, pipe
from slicer.kernel import proc
from slicer.kernel.open_files import close_all_but
from slicer.kernel.signals import STOP
from slicer.queue.state import attempt

if TYPE_CHECKING:
    from slicer.backend import BatchBackend
    from slicer.job.job import Job, Observer
    from slicer.job.report import Report
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease, Usage
    from slicer.queue.run.starters import Starters
    from slicer.queue.state.log_dir import LogDir

_GPU_DEVICES = "/dev/nvidia"


def signal_keeper(pidfd: int) -> None:
    """Ask a keeper to end its job: SIGTERM, and SIGKILL when its stop timeout is over."""
    try:
        signal.pidfd_send_signal(pidfd, STOP)
    except ProcessLookupError:
        pass  # it is ending by itself


class QueueOuterHalf(OuterHalf):
    """From the lease to the keeper's end. ``key`` is the job's in the queue."""

    def __init__(
        self, key: str, job: Job, backend: BatchBackend, starters: Starters, log_dir: LogDir, book: Ledger,
        observer: Observer,
    ) -> None:  # fmt: skip
        super().__init__(job, backend, book, observer, frozenset())
        self.key = key
        self._log_dir = log_dir
        self.pidfd = -1  # of the keeper, once it is in its place
        self._up_read = self._down_write = -1
        self.said: tuple[Report, Usage] | None = None  # how the command ended
        self.was_bereaved = False  # the keeper was killed, and another process sees to its duties
        self._starters = starters
        self._started: Started | None = None

    # -- taking off --------------------------------------------------------------------------------------

    def take_off(self, held: HeldLease) -> None:
        """Have the keeper forked and put into its scope. Raises BackendError: then the lease is back."""
        self._held = held
        self._began = time.monotonic()
        theirs: tuple[int, ...] = ()
        try:
            self._up_read, up_write = pipe()
            theirs = (up_write,)
            down_read, self._down_write = pipe()
            theirs = down_read, up_write
            os.set_blocking(self._up_read, False)
            os.write(self._down_write, STARTING)
            directories = self._log_dir.directory.fd, self._log_dir.attempts.fd
            self._starters.begin(self._job, held.lease.gpus, (*theirs, *directories, *held.descriptors))
        except BaseException:
            self.call_off()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        faults.point("queue-asked-for-scope")

    def is_ready(self) -> bool:
        """Whether the keeper is in its scope, and the command may be let go. Raises BackendError."""
        if self._started is not None:
            return True
        try:
            found = self._starters.poll(self._job.id)
        except BackendError:
            self.call_off()
            raise
        if found is None:
            return False
        self.pidfd = found.pidfd
        self._cgroup = found.cgroup
        self._started = Started(found.cgroup, time.time(), self._began, 0.0)
        start_time = proc.start_time(found.keeper) or 0
        self._held.update(
            cgroup=found.cgroup, keeper=found.keeper, pid=found.keeper, pid_start=start_time
        )  # fmt: skip
        self._note_kills()
        faults.point("queue-scope-stands")
        return True

    def let_go(self, waited_s: float) -> None:
        """Let the command begin. What announces it must be on the disk by now. Raises BackendError."""
        assert self._started is not None
        self._started = Started(self._cgroup, time.time(), self._began, waited_s)
        try:
            self._let_go(self._started)
        except BackendError:
            self.call_off()
            raise
        self._held.do_postponed()
        self._tell_start(waited_s)

    def call_off(self) -> None:
        """The command will not be started: let the keeper leave, and give the lease back.

        One that is not in its scope yet is there soon, and leaves then: it sees the end of its pipe.
        """
        self._starters.forget(self._job.id)
        if self.pidfd >= 0:
            self._say(QUIT)
        self.close()
        self._held.release()

    # -- in the air --------------------------------------------------------------------------------------

    @property
    def reports(self) -> int:
        """Readable when the keeper has something to say, or has gone (then :meth:`is_gone`)."""
        return self._up_read

    def listen(self) -> None:
        """Take what the keeper says."""
        said = self._hear()
        if said is not None and said[0].is_final:
            self.said = said

    def stop(self) -> None:
        """Ask the job to end."""
        signal_keeper(self.pidfd)

    def note_peaks(self, peaks_mib: tuple[int, ...]) -> None:
        """Tell the others, and the outcome, how much GPU memory it was seen to use. Raises StateError."""
        self._held.note_peaks(peaks_mib)

    @property
    def lease(self) -> Lease:
        return self._held.lease

    # -- landing -----------------------------------------------------------------------------------------

    def gpus_are_free(self) -> None:
        """The GPUs have been looked at after the job: the keeper may give them back."""
        self._say(SETTLE)

    def is_gone(self) -> bool:
        """Whether the keeper has ended."""
        return proc.has_ended(self.pidfd)

    def mourn(self) -> bool:
        """The keeper was killed: have what is left of the job ended, and its outcome written down.

        False where no process can be forked for that now.
        """
        last = self._hear()
        wait_fd, held_fd = pipe()
        try:
            child = os.fork()
        except OSError:
            os.close(wait_fd)
            os.close(held_fd)
            return False
        if child == 0:
            proc.be_child(lambda: self._be_mourner(last, wait_fd, held_fd))
        self._keeper = child
        self.was_bereaved = True
        os.close(self.pidfd)
        self.pidfd = os.pidfd_open(child)
        self._held.close()  # it has to see whether anybody else holds the lease
        os.close(wait_fd)
        os.close(held_fd)
        return True

    def land(self) -> None:
        """The keeper has ended: let go of all that was ours."""
        if self.was_bereaved:
            os.waitpid(self._keeper, 0)
        self.close()
        self._held.close()

    def close(self) -> None:
        """Close what was opened for the keeper. Safe to repeat."""
        for fd in (self._up_read, self._down_write, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._up_read = self._down_write = self.pidfd = -1

    def _be_mourner(self, last: tuple[Report, Usage] | None, wait_fd: int, held_fd: int) -> None:
        os.close(held_fd)
        os.read(wait_fd, 1)  # until the queue holds the lease no more
        # Others' leases live for as long as their descriptors do. NVML goes on using those that it has open.
        attempts = self._log_dir.attempts.fd
        kept = {*self._held.descriptors, *self._held.private, *self._book.descriptors(), attempts}
        close_all_but(kept, _GPU_DEVICES)
        self._backend.after_fork()
        self._book.after_fork()
        assert self._started is not None
        report, usage = self._bereaved(self._started, last)
        known = attempt.read(attempts, self._job.id)
        if known is not None and known.outcome is not None and known.is_final:
            outcome = known.outcome  # the keeper had come so far
        else:
            enforced = self._backend.enforced(self._job.spec, self._cgroup)
            outcome = ending.outcome_of(self._job, self._started, report, usage, self._held, enforced)
            attempt.note(attempts, self._job.id, outcome)
        watch = ending.gpu_watch(self._job, self._held, self._book, lambda _: None)
        ending.settle(self._job, outcome, self._held, lambda _: None, watch)
