"""The supervisor: the process that the user starts as ``slicer run``, from the lease to the outcome.

Two processes of slicer accompany a job. The shell waits for the supervisor. It forwards signals, measures the
job's GPUs and records the outcome. It forks the keeper (:mod:`slicer.job.keeper`), which is the command's
parent in the scope. If the supervisor is killed, the keeper records the outcome and releases the lease. So no
exit code is lost, and no resource becomes free while the job lives.

Imports inside functions are not needed before the request for the scope. They happen while systemd works on
that request, or in the keeper, on another CPU.
"""

from __future__ import annotations

import errno
import os
import time

from slicer import faults
from slicer.errors import BackendError, KeeperEnded
from slicer.job.job import ORDER_END, QUIT, RECORDED, STARTING, Started, tell_ineffective, tell_start
from slicer.kernel import proc
from slicer.kernel.signals import FORWARDED, signal
from slicer.ledger.held_lease import HeldLease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.backend import Backend
    from slicer.job.job import Follower, Job, Listener
    from slicer.job.watching import Reported, Watching
    from slicer.ledger.ledger import Ledger
    from slicer.model import Outcome

_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # these may be over soon


def cannot_fork(error: OSError) -> BackendError:
    return BackendError(f"cannot fork: {error.strerror}", hint="see ulimit -u and TasksMax")


def _keeper_was_ended() -> KeeperEnded:
    return KeeperEnded(
        "the keeper was ended before the command could start", hint="by systemctl stop, or out of memory"
    )


class Supervisor:
    """The supervisor of one job. ``mask`` is the signal mask that the command gets."""

    def __init__(
        self, job: Job, backend: Backend, ledger: Ledger, listener: Listener, mask: frozenset[int],
        follower: Follower,
    ) -> None:  # fmt: skip
        self._job = job
        self._backend = backend
        self._ledger = ledger
        self._listener = listener
        self._mask = mask
        self._pid = os.getpid()
        self._keeper = 0
        self._cgroup = ""
        self._began = 0.0  # to stand by, or to run; 0: not yet
        self._follower = follower

    # -- before the lease ----------------------------------------------------------------------------------

    def start_scope(
        self, descriptors: tuple[int, ...], private: tuple[int, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        """Fork the keeper and put it into its scope through systemd, which needs no lease.

        ``descriptors`` belong to the lease, or to the ticket that will become it; the keeper closes the
        ``private`` ones. A keeper that is in its scope already stays there: the broker is told that the scope
        is the lease's. Returns a descriptor, to be closed by the caller, that becomes readable when the
        keeper dies, and the lease's fields about the scope. Raises BackendError; then nothing is left.
        """
        if not self._keeper:
            self._fork_keeper(descriptors, private)
        try:
            self._cgroup = self._backend.start(self._job.spec, self._keeper, self.import_ending)
            faults.point("supervisor-started-scope")
            self._backend.close()
            if self._job.fence is not None:  # it is set later; a new connection gets no signals until then
                self._backend.connect()
        except BaseException as error:
            was_ended = proc.is_dead_child(self._keeper)
            self.abandon()
            if was_ended and isinstance(error, (BackendError, BrokenPipeError)):
                raise _keeper_was_ended() from error
            raise
        return os.pidfd_open(self._keeper), {"cgroup": self._cgroup, "keeper": self._keeper}

    def _fork_keeper(self, descriptors: tuple[int, ...], private: tuple[int, ...]) -> None:
        # Reports go up; orders and "recorded" go down. Each side notices the other's death as end of file.
        ends: list[int] = []
        try:
            for _ in range(2):
                ends += os.pipe2(os.O_CLOEXEC)
            self._keeper = os.fork()
        except OSError as error:
            for fd in ends:
                os.close(fd)
            no_pipe = BackendError(f"cannot create a pipe: {error.strerror}", hint="see ulimit -n")
            raise (no_pipe if len(ends) < 4 else cannot_fork(error)) from error
        self._up_read, self._up_write, self._down_read, self._down_write = ends
        if self._keeper == 0:
            proc.be_child(lambda: self._be_keeper(descriptors, private))
        faults.point("supervisor-forked")
        os.close(self._up_write)
        os.close(self._down_read)
        os.set_blocking(self._up_read, False)
        self._send(STARTING)

    def _be_keeper(self, descriptors: tuple[int, ...], private: tuple[int, ...]) -> None:
        from slicer.job.keeper import Keeper  # the supervisor does not need it

        for fd in (self._up_read, self._down_write, *private):
            os.close(fd)
        self._backend.after_fork()
        self._ledger.after_fork()
        Keeper(
            self._job, self._backend, self._ledger, self._mask, self._pid, self._up_write, self._down_read
        ).run(descriptors)

    def import_ending(self) -> None:
        """Import modules for later, while the broker or systemd is busy."""
        from slicer.job import watching
        from slicer.outcome import history, journal

        del journal, watching
        history.preload()
        if self._job.broker:
            from slicer.broker.client import calls

            del calls

    def abandon(self) -> None:
        """There will be no job: let the keeper exit, if there is one."""
        self._backend.close()
        if self._keeper:
            self._send(QUIT)
            self._dismiss()
            self._keeper = 0

    # -- with the lease ------------------------------------------------------------------------------------

    def stand_by(self, held: HeldLease) -> int:
        """Start the scope, with only the keeper in it. Raises SlicerError; then call :meth:`abandon`.

        Returns a descriptor, as :meth:`start_scope`.
        """
        self._held = held
        self._began = time.monotonic()
        if self._job.fence is not None:
            from slicer.job.fencing import fenced

            self._job = fenced(self._job, held.lease.gpus, self._backend if self._keeper else None)
        if self._keeper and not self._job.broker:
            return os.pidfd_open(self._keeper)
        guard, known = self.start_scope(held.descriptors, held.private)
        held.update(**known)
        return guard

    def run(self, held: HeldLease, waited_s: float) -> Outcome:
        """Start the command, wait for its end and release the lease.

        ``waited_s``: the wait for the lease. Raises SlicerError if the command never started. The signals
        that slicer forwards stay blocked afterwards, so that one that comes too late for the job does not
        change slicer's exit.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
        self._held = held
        try:
            return self._run(waited_s)
        finally:
            held.release()

    def _run(self, waited_s: float) -> Outcome:
        held = self._held
        try:
            if not self._began:
                os.close(self.stand_by(held))
            faults.point("supervisor-updated-lease")
            started = Started(self._cgroup, time.time(), self._began, waited_s)
            kills_before = self._kills_in_slice()
            self._send_order(started)
        except BaseException:
            self.abandon()
            if self._job.has_share_file:
                from slicer.job.ending import forget

                forget(self._job, held)
            raise
        faults.point("supervisor-let-go")
        tell_start(self._job, held.lease, waited_s, is_own=held.fd >= 0)
        # Now, because the scope ends with the job.
        enforced = self._backend.enforced(self._job.spec, started.cgroup)
        tell_ineffective(self._job, held, self._backend.name, enforced[1], self._listener)
        self._follower.begun()  # who detached the job has heard all that
        from slicer.job import ending
        from slicer.job.watching import Watching

        watching = Watching(
            self._job, held, self._backend, self._ledger, self._listener, self._follower, self._keeper,
            self._up_read, started.began,
        )  # fmt: skip
        faults.point("supervisor-waiting")
        reported = watching.until_end()
        if reported is None or not reported[0].is_final:
            reported = ending.report_without(
                self._job, self._backend, held, started, reported, kills_before, self._listener.warning
            )
        else:
            held.is_handed_on = False  # nothing is left of the job
        return self._finish(started, reported, enforced, watching)

    def _send_order(self, started: Started) -> None:
        from slicer.state.statefile import encode

        if self._job.sharing is not None:
            from slicer.job import sharing

            sharing.prepare(self._job, self._held, self._backend.why_no_cap)
        self._held.is_handed_on = True
        try:
            os.write(self._down_write, encode(started) + encode(self._held.lease) + ORDER_END)
        except BrokenPipeError as error:
            raise _keeper_was_ended() from error

    def _send(self, word: bytes) -> None:
        try:
            os.write(self._down_write, word)
        except BrokenPipeError:
            pass  # the keeper was killed

    # -- the end -------------------------------------------------------------------------------------------

    def _finish(
        self, started: Started, reported: Reported, enforced: tuple[tuple[str, ...], tuple[str, ...]],
        watching: Watching,
    ) -> Outcome:  # fmt: skip
        from slicer.job import ending

        faults.point("supervisor-heard-end")
        report, usage = reported
        git = watching.git()
        outcome = ending.outcome_of(self._job, started, report, usage, self._held, enforced, git=git)
        if report.exec_errno:
            if self._job.attempt is not None and report.exec_errno in _SHORTAGES:
                self._job.attempt.take_back()
            ending.release(self._job, self._held)
        else:
            warn = self._listener.warning
            series = watching.series()
            outcome = ending.finish(self._job, outcome, self._held, warn, watching.gpus, series)
        if watching.gpus is not None:
            self._follower.used(watching.gpus.use, is_last=True)
        faults.point("supervisor-settled")
        self._send(RECORDED)
        faults.point("supervisor-told-keeper")
        ending.forget(self._job, self._held)  # only now, because the keeper might have needed the file
        self._dismiss()
        faults.point("supervisor-reaped-keeper")
        is_due = self._job.reruns is not None and self._job.reruns.is_due
        has_ended = not report.exec_errno and not is_due
        if self._job.notify is not None and has_ended:
            from slicer.job.notifying import tell_end

            tell_end(self._job, outcome, self._held.lease, self._listener.warning)
        if report.exec_errno:
            from slicer.job.program import cannot_execute

            raise cannot_execute(self._job.program, report.exec_errno)
        return outcome

    def _dismiss(self) -> None:
        """Wait for the keeper, which has its last message, and close the pipes."""
        os.waitpid(self._keeper, 0)
        os.close(self._up_read)
        os.close(self._down_write)

    def _kills_in_slice(self) -> int | None:
        """The slice's out-of-memory kills, if the kernel kills a scope as a whole (OOMPolicy=kill).

        Then the keeper dies with the command, and systemd may remove the scope's figures before they are
        read. The slice's sum remains.
        """
        properties = {each.name: each.value for each in self._job.spec.properties}
        if not self._cgroup or properties.get("OOMPolicy") != "kill":
            return None
        from slicer.job.ending import kills_in_slice

        return kills_in_slice(self._cgroup)
