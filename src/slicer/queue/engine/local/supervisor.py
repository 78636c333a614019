"""The supervisor for one job of a queue. Unlike the supervisor of ``slicer run``, it never waits.

The queue has many at a time. ``slicer run`` waits for one step after the other. Here descriptors announce
that a step is done, and the queue's loop acts on it. After the command's end, everything is the keeper's duty
(``keeper.py``). If the keeper was killed, a forked child cleans up, because that may take long.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from slicer import faults
from slicer.errors import BackendError
from slicer.job import ending
from slicer.job.job import GPUS_CHECKED, QUIT, STARTING, Job, Started
from slicer.job.report import Report
from slicer.job.scope_watch import limit_at
from slicer.job.supervisor import Supervisor, pipe
from slicer.kernel import proc
from slicer.kernel.open_files import close_all_but
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.model import Lease, Usage
from slicer.queue.engine.local.starters import Starters
from slicer.queue.state import attempt
from slicer.queue.state.log_dir import LogDir

if TYPE_CHECKING:
    from slicer.backend import QueueBackend
    from slicer.job.job import Listener
    from slicer.share.environment import ShareOrder


_GPU_DEVICES = "/dev/nvidia"


def is_unbound(lease: Lease) -> bool:
    """Whether the job holds nothing that the ledger counts."""
    return not lease.gpus and not lease.slots


class QueueSupervisor(Supervisor):
    """From the lease to the keeper's end. ``pidfd``: the keeper's, or its cleaner's; or -1."""

    def __init__(
        self, key: str, job: Job, backend: QueueBackend, starters: Starters, log_dir: LogDir, ledger: Ledger,
        listener: Listener,
    ) -> None:  # fmt: skip
        super().__init__(job, backend, ledger, listener, frozenset())
        self.key = key
        self.job_id = job.id
        self.pidfd = -1
        self.said: tuple[Report, Usage] | None = None  # how the command ended
        self.keeper_was_killed = False  # and a child cleans up in its place
        self._log_dir = log_dir
        self._starters = starters
        self._up_read = self._down_write = -1
        self._started: Started | None = None

    @property
    def held(self) -> HeldLease:
        return self._held

    @property
    def sharing(self) -> ShareOrder | None:
        return self._job.sharing

    @property
    def may_be_early(self) -> bool:
        """Whether its scope may start before its turn: it blocks no other job, and has no time limit."""
        return is_unbound(self._held.lease) and self._job.profile.timeout_s is None

    @property
    def limit_at(self) -> float | None:
        """When systemd asks the job to end (monotonic); None: never."""
        return limit_at(self._job, self._began)

    # -- starting ----------------------------------------------------------------------------------------

    def start(self, held: HeldLease, waited_s: float) -> None:
        """Request the keeper and its scope. Raises BackendError; then :meth:`abandon` the job."""
        self._held = held
        self._waited_s = waited_s
        self._began = time.monotonic()
        theirs: tuple[int, ...] = ()
        try:
            self._up_read, up_write = pipe()
            theirs = (up_write,)
            down_read, self._down_write = pipe()
            theirs = down_read, up_write
            os.set_blocking(self._up_read, False)
            os.write(self._down_write, STARTING)
            self._fence()
            directories = self._log_dir.directory.fd, self._log_dir.attempts.fd
            self._starters.begin(self._job, held.lease.gpus, (*theirs, *directories, *held.descriptors))
        finally:
            for fd in theirs:
                os.close(fd)
        faults.point("queue-asked-for-scope")

    def is_ready(self) -> bool:
        """Whether the keeper is in its scope, and the command may start. Raises BackendError, StateError."""
        if self._started is not None:
            return True
        found = self._starters.poll(self.job_id)
        if found is None:
            return False
        self.pidfd = found.pidfd
        self._cgroup = found.cgroup
        self._why_no_cap = found.why_no_cap
        self._started = Started(found.cgroup, time.time(), self._began, 0.0)
        start = proc.start_time(found.pid) or 0
        self._held.update(cgroup=found.cgroup, keeper=found.pid, pid=found.pid, pid_start=start)
        self._note_kills()
        faults.point("queue-scope-stands")
        return True

    def start_command(self) -> None:
        """Let the keeper start the command. The journal must have that already. Raises BackendError."""
        self._started = Started(self._cgroup, time.time(), self._began, self._waited_s)
        self._send_order(self._started)
        self._held.do_postponed()
        self._journal_start(self._waited_s)

    def abandon(self) -> None:
        """Start no command: the keeper exits, at the latest by its pipe's end; release the lease."""
        self._starters.forget(self.job_id)
        if self.pidfd >= 0:
            self._send(QUIT)
        self._close()
        self._forget()
        self._held.release()

    # -- running -----------------------------------------------------------------------------------------

    @property
    def reports(self) -> int:
        """Readable when the keeper has sent a report, or has ended (then :meth:`is_gone`)."""
        return self._up_read

    def listen(self) -> None:
        said = self._read_report()
        if said is not None and said[0].is_final:
            self.said = said

    # -- after the command -------------------------------------------------------------------------------

    def gpus_are_free(self) -> None:
        """The GPUs were checked after the job: the keeper may release them."""
        self._send(GPUS_CHECKED)

    def is_gone(self) -> bool:
        return proc.has_ended(self.pidfd)

    def clean_up(self) -> bool:
        """The keeper was killed: fork a child for its duties. False if that is impossible now."""
        last = self._read_report()
        try:
            read_fd, write_fd = pipe()
        except BackendError:
            return False
        try:
            child = os.fork()
        except OSError:
            os.close(read_fd)
            os.close(write_fd)
            return False
        if child == 0:
            proc.be_child(lambda: self._be_cleaner(last, read_fd, write_fd))
        self._keeper = child
        self.keeper_was_killed = True
        os.close(self.pidfd)
        self.pidfd = os.pidfd_open(child)
        self._held.close()  # the child has to determine whether another process holds the lease
        os.close(read_fd)
        os.close(write_fd)
        return True

    def close(self) -> None:
        """The keeper has ended: close everything that was opened for it."""
        if self.keeper_was_killed:
            os.waitpid(self._keeper, 0)
        self._close()
        self._held.close()

    def _close(self) -> None:
        for fd in (self._up_read, self._down_write, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._up_read = self._down_write = self.pidfd = -1

    def _be_cleaner(self, last: tuple[Report, Usage] | None, read_fd: int, write_fd: int) -> None:
        os.close(write_fd)
        os.read(read_fd, 1)  # until the queue no longer holds the lease
        # Other leases live as long as their descriptors. NVML needs its open devices.
        attempts = self._log_dir.attempts.fd
        kept = {*self._held.descriptors, *self._held.private, *self._ledger.descriptors(), attempts}
        close_all_but(kept, _GPU_DEVICES)
        self._backend.after_fork()
        self._ledger.after_fork()
        assert self._started is not None
        report, usage = self._without_keeper(self._started, last)
        known = attempt.read(attempts, self.job_id)
        if known is not None and known.outcome is not None and known.is_final:
            outcome = known.outcome  # the keeper had recorded it before it died
        else:
            enforced = self._backend.enforced(self._job.spec, self._cgroup)
            outcome = ending.outcome_of(self._job, self._started, report, usage, self._held, enforced)
            attempt.note(attempts, self.job_id, outcome)
        watch = ending.gpu_watch(self._job, self._held, self._ledger, lambda _: None)
        ending.finish(self._job, outcome, self._held, lambda _: None, watch)
        ending.forget(self._job, self._held)
