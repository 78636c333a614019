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
from slicer.errors import BackendError, KeeperEnded, SlicerError
from slicer.job.job import ORDER_END, QUIT, RECORDED, STARTING, Started, tell_start, warn_of_ineffective
from slicer.kernel import proc
from slicer.kernel.signals import STOP, signal, timed_wait
from slicer.ledger.held_lease import HeldLease
from slicer.model import KEEPER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.backend import Backend
    from slicer.job.gpu_watch import GpuWatch
    from slicer.job.job import Follower, Job, Listener
    from slicer.job.report import Report
    from slicer.job.sampling import Sampler
    from slicer.job.scope_watch import ScopeWatch
    from slicer.ledger.control_log import Kind
    from slicer.ledger.ledger import Ledger
    from slicer.model import Outcome, Usage

    Reported = tuple[Report, Usage]

# Signals that users send to slicer but mean for the job. They include SIGTSTP (Ctrl-Z), because a command may
# ignore it: see slicer.job.job_control.
_FORWARDED = frozenset({
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGCONT, signal.SIGTSTP, signal.SIGALRM, signal.SIGWINCH, STOP,
})  # fmt: skip
_BLOCKED = _FORWARDED | {signal.SIGCHLD}

# Signals that ask the job to end.
_ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, STOP})

# A job that outgrows one of these disturbs others. A weight without effect only makes things slower.
_HARD_LIMITS = frozenset({
    "AllowedCPUs", "CPUQuota", "DeviceAllow", "DevicePolicy", "MemoryHigh", "MemoryMax", "MemorySwapMax",
    "TasksMax",
})  # fmt: skip

_LOOK_S = 0.01  # between looks, while no event tells of a stop

_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # these may be over soon
_QUIET_S = 1.0  # after this time, postponed work no longer delays a short job


def pipe() -> tuple[int, int]:
    """A pipe's ends, to read from and to write to. Raises BackendError."""
    try:
        return os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise BackendError(f"cannot create a pipe: {error.strerror}", hint="see ulimit -n") from error


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
        self._why_no_cap: str | None = None  # as in Backend
        self._began = 0.0
        self._stands_by = False
        self._received = b""  # the keeper's reports, as bytes
        self._kills_before: int | None = None  # in the slice, where the kernel kills scopes as a whole
        self._watch: GpuWatch | None = None  # of the job's own GPUs
        self._sampler: Sampler | None = None  # once the job has run for a while
        self._signals: ScopeWatch | None = None  # once the job has run for a while
        self._is_settled = False  # whether it has
        self._has_executed = False  # the keeper, as far as it has told
        self._awaits_stop = False  # of a command that Ctrl-Z may have stopped before that
        self._follower = follower

    # -- before the lease ----------------------------------------------------------------------------------

    def start_scope(self, descriptors: tuple[int, ...], private: tuple[int, ...] = ()) -> dict[str, Any]:
        """Fork the keeper and put it into its scope through systemd, which needs no lease.

        ``descriptors`` belong to the lease, or to the ticket that will become it; the keeper closes the
        ``private`` ones. A keeper that is in its scope already stays there: the broker is told that the scope
        is the lease's. Returns the lease's fields about it. Raises BackendError; then nothing is left.
        """
        if not self._keeper:
            self._fork_keeper(descriptors, private)
        try:
            self._cgroup = self._backend.start(self._job.spec, self._keeper, self.import_ending)
            self._why_no_cap = self._backend.why_no_cap
            faults.point("supervisor-started-scope")
            self._backend.close()
            if self._job.fence is not None:  # it is set later; a new connection gets no signals until then
                self._backend.connect()
        except BaseException as error:
            was_ended = self._is_keeper_dead()
            self.abandon()
            if was_ended and isinstance(error, (BackendError, BrokenPipeError)):
                raise _keeper_was_ended() from error
            raise
        return {"cgroup": self._cgroup, "keeper": self._keeper}

    def _fork_keeper(self, descriptors: tuple[int, ...], private: tuple[int, ...]) -> None:
        # Reports go up; orders and "recorded" go down. Each side notices the other's death as end of file.
        self._up_read, self._up_write = pipe()
        try:
            self._down_read, self._down_write = pipe()
        except BackendError:
            os.close(self._up_read)
            os.close(self._up_write)
            raise
        os.set_blocking(self._up_read, False)
        try:
            self._keeper = os.fork()
        except OSError as error:
            raise cannot_fork(error) from error
        if self._keeper == 0:
            proc.be_child(lambda: self._be_keeper(descriptors, private))
        faults.point("supervisor-forked")
        os.close(self._up_write)
        os.close(self._down_read)
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
        from slicer.job import ending, job_control
        from slicer.outcome import history, journal

        del ending, job_control, journal
        history.preload()
        if self._job.broker:
            from slicer.broker.client import calls

            del calls

    def watch(self) -> int:
        """A descriptor, to be closed by the caller, that becomes readable when the keeper dies."""
        return os.pidfd_open(self._keeper)

    def _is_keeper_dead(self) -> bool:
        return os.waitid(os.P_PID, self._keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def abandon(self) -> None:
        """There will be no job: let the keeper exit, if there is one."""
        self._backend.close()
        if self._keeper:
            self._send(QUIT)
            self._dismiss()
            self._keeper = 0

    def _fence(self) -> None:
        """The job has its GPUs: fence it off from all others. Raises SlicerError."""
        if self._job.fence is None:
            return
        from slicer.job.fencing import fenced, set_fence

        gpus = self._held.lease.gpus
        has_scope = self._keeper > 0
        self._job = set_fence(self._job, gpus, self._backend) if has_scope else fenced(self._job, gpus)

    # -- with the lease ------------------------------------------------------------------------------------

    def stand_by(self, held: HeldLease) -> int:
        """Start the scope, with only the keeper in it. Raises SlicerError; then call :meth:`abandon`.

        Returns what :meth:`watch` does.
        """
        self._held = held
        self._began = time.monotonic()
        self._fence()
        if not self._keeper or self._job.broker:
            held.update(**self.start_scope(held.descriptors, held.private))
        self._stands_by = True
        return self.watch()

    def run(self, held: HeldLease, waited_s: float) -> Outcome:
        """Start the command, wait for its end and release the lease.

        ``waited_s``: the wait for the lease. Raises SlicerError if the command never started. The signals
        that slicer forwards stay blocked afterwards, so that one that comes too late for the job does not
        change slicer's exit.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        self._held = held
        try:
            return self._run(waited_s)
        finally:
            held.release()

    def _run(self, waited_s: float) -> Outcome:
        try:
            if not self._stands_by:
                os.close(self.stand_by(self._held))
            faults.point("supervisor-updated-lease")
            started = Started(self._cgroup, time.time(), self._began, waited_s)
            self._note_kills()
            self._send_order(started)
        except BaseException:
            self.abandon()
            self._forget()
            raise
        faults.point("supervisor-let-go")
        self._journal_start(waited_s)
        # Now, because the scope ends with the job.
        enforced = self._backend.enforced(self._job.spec, started.cgroup)
        self._tell_what_does_not_act(enforced[1])
        self._follower.begun()  # who detached the job has heard all that
        from slicer.job import ending

        self._watch = ending.gpu_watch(
            self._job, self._held, self._ledger, self._listener.warning, self._follower
        )
        if self._watch is not None:
            self._watch.end_job = self._end_for
        faults.point("supervisor-waiting")
        reported = self._wait()
        if reported is None or not reported[0].is_final:
            reported = self._without_keeper(started, reported)
        else:
            self._held.is_handed_on = False  # nothing is left of the job
        return self._finish(started, reported, enforced)

    def _send_order(self, started: Started) -> None:
        from slicer.state.statefile import encode

        if self._job.sharing is not None:
            from slicer.job import sharing

            sharing.prepare(self._job, self._held, self._why_no_cap)
        self._held.is_handed_on = True
        try:
            os.write(self._down_write, encode(started) + encode(self._held.lease) + ORDER_END)
        except BrokenPipeError as error:
            raise _keeper_was_ended() from error

    def _journal_start(self, waited_s: float) -> None:
        tell_start(self._job, self._held.lease, waited_s, is_own=self._held.fd >= 0)

    def _tell_what_does_not_act(self, not_enforced: tuple[str, ...]) -> None:
        """Report ineffective limits: the command line's always, others once per boot (outcomes list them)."""
        backend = self._backend.name
        asked = warn_of_ineffective(self._job, backend, not_enforced, self._listener)
        missing = sorted({*not_enforced} & _HARD_LIMITS - {*asked})
        if missing and backend == "systemd":  # without it, its absence was said
            from slicer.state.statedir import first_time

            if first_time(self._ledger.directory, f"not-enforced-{'-'.join(missing)}"):
                why = "no cgroup controller for it, see slicer doctor; shown once per boot"
                self._listener.notice(f"not enforced here: {', '.join(missing)} ({why})")

    # -- while the command runs ----------------------------------------------------------------------------

    def _wait(self) -> Reported | None:
        """Forward signals until the keeper's final report. If it is killed, its last report, or None."""
        from slicer.job.job_control import passed_on

        warned = False
        while True:
            info = self._next_signal()
            if info.si_signo != signal.SIGCHLD:
                if self._job.attempt is not None and info.si_signo != STOP:
                    continue  # what ends supervisors, as a logout does, does not end a queue's jobs
                later = signal.sigpending()
                if word := passed_on(info.si_signo, info.si_code, info.si_pid, self._keeper, later):
                    os.kill(self._keeper, word)
                self._thaw_to_end(info.si_signo)
                self._awaits_stop |= info.si_signo == signal.SIGTSTP and not self._has_executed
                continue
            self._has_executed, self._awaits_stop = True, False
            self._held.do_postponed()
            reported = self._read_report()
            if reported is not None and reported[0].is_final:
                return reported
            if reported is not None and reported[0].leftovers and not warned:
                warned = True
                self._listener.notice(
                    f"{reported[0].leftovers} processes of other users outlive the command: waiting for them"
                )
            if self._is_keeper_dead():
                return self._read_report()

    def _next_signal(self) -> Any:
        """Sleep until a signal arrives. Meanwhile measure the job's GPUs, and follow its scope's freezes."""
        while True:
            info = self._sleep(self._due_s())
            if info is not None:
                return info
            if self._awaits_stop:
                self._stop_before_exec()
            if self._watch is not None and self._watch.left_s() == 0.0:
                self._watch.sample()
                self._follower.used(self._watch.use)
            if self._sampler is not None:
                self._sampler.take()
            if not self._is_settled and time.monotonic() >= self._began + _QUIET_S:
                self._settle()

    def _stop_before_exec(self) -> None:
        """Stop with a command that was stopped before its exec. Until that the keeper sleeps in vfork(2)."""
        if any(proc.is_stopped(pid) and proc.comm(pid) == KEEPER for pid in proc.children(self._keeper)):
            self._awaits_stop = False
            os.kill(self._pid, signal.SIGSTOP)

    def _due_s(self) -> float | None:
        """Seconds until something is due without a signal; None: never."""
        due = [self._watch.left_s()] if self._watch is not None else []
        if self._awaits_stop:
            due.append(_LOOK_S)
        if self._sampler is not None:
            due.append(self._sampler.left_s())
        if not self._is_settled:
            due.append(max(0.0, self._began + _QUIET_S - time.monotonic()))
        return min((left_s for left_s in due if left_s is not None), default=None)

    def _sleep(self, limit_s: float | None) -> Any:
        if self._signals is not None:
            return self._signals.wait(limit_s)
        return signal.sigwaitinfo(_BLOCKED) if limit_s is None else timed_wait(_BLOCKED, limit_s)

    def _settle(self) -> None:
        """The job has run for a while: do the work that would have delayed a short job."""
        self._is_settled = True
        self._held.do_postponed_slow()
        from slicer.job.sampling import Sampler, can_sample

        if self._held.fd >= 0 and can_sample(self._held.lease):  # not inside another job's scope
            self._sampler = Sampler(self._held.lease, self._watch)
        if self._backend.name != "systemd" or self._held.fd < 0:
            return
        if not self._job.broker:  # the broker sweeps its own
            from slicer.backend import empty_scopes

            empty_scopes.stop_beside(self._cgroup, self._backend.manager)
        from slicer.job.scope_watch import ScopeWatch, limit_at

        ends_at = limit_at(self._job, self._began)
        try:
            self._signals = ScopeWatch(
                self._held.lease, self._ledger.directory, ends_at, _BLOCKED, self._listener.warning
            )
        except OSError:
            pass  # no descriptors are left

    def _thaw_to_end(self, signo: int) -> None:
        """Thaw a frozen job that must end: it would get neither the signal nor Ctrl-C."""
        if signo in _ENDING and self._backend.name == "systemd":
            from slicer.job.pause import thaw_to_end

            try:
                if thaw_to_end(self._held.lease, self._ledger):
                    self._listener.notice("the job was paused; it is resumed so that it can end")
            except SlicerError as error:
                self._listener.notice(str(error))

    def _end_for(self, kind: Kind) -> None:
        from slicer.job.stop import note

        note(self._held.lease, self._ledger, kind)
        os.kill(self._keeper, STOP)
        self._thaw_to_end(STOP)

    def _read_report(self) -> Reported | None:
        from slicer.job.report import unpack

        try:
            while data := os.read(self._up_read, 65536):
                self._received += data
        except BlockingIOError:
            pass
        return unpack(self._received)

    def _send(self, word: bytes) -> None:
        try:
            os.write(self._down_write, word)
        except BrokenPipeError:
            pass  # the keeper was killed

    # -- the end -------------------------------------------------------------------------------------------

    def _finish(
        self, started: Started, reported: Reported, enforced: tuple[tuple[str, ...], tuple[str, ...]]
    ) -> Outcome:
        from slicer.job import ending

        faults.point("supervisor-heard-end")
        report, usage = reported
        outcome = ending.outcome_of(self._job, started, report, usage, self._held, enforced)
        if report.exec_errno:
            self._never_began(report.exec_errno)
        else:
            series = self._sampler.series() if self._sampler is not None else None
            ending.finish(self._job, outcome, self._held, self._listener.warning, self._watch, series)
        if self._watch is not None:
            self._follower.used(self._watch.use, is_last=True)
        faults.point("supervisor-settled")
        self._send(RECORDED)
        faults.point("supervisor-told-keeper")
        ending.forget(self._job, self._held)  # only now, because the keeper might have needed the file
        self._dismiss()
        faults.point("supervisor-reaped-keeper")
        if self._job.notify is not None and not report.exec_errno:
            from slicer.job.notifying import tell_end

            tell_end(self._job, outcome, self._held.lease, self._listener.warning)
        if report.exec_errno:
            from slicer.job.program import cannot_execute

            raise cannot_execute(self._job.program, report.exec_errno)
        return outcome

    def _never_began(self, code: int) -> None:
        from slicer.job import ending

        if self._job.attempt is not None and code in _SHORTAGES:
            self._job.attempt.take_back()
        ending.release(self._job, self._held)

    def _dismiss(self) -> None:
        """Wait for the keeper, which has its last message, and close the pipes."""
        os.waitpid(self._keeper, 0)
        os.close(self._up_read)
        os.close(self._down_write)

    def _forget(self) -> None:
        if self._job.has_share_file:
            from slicer.job import ending

            ending.forget(self._job, self._held)

    def _note_kills(self) -> None:
        """Note the slice's out-of-memory kills, if the kernel kills a scope as a whole (OOMPolicy=kill).

        Then the keeper dies with the command, and systemd may remove the scope's figures before they are
        read. The slice's sum remains.
        """
        if self._cgroup and any(
            p.name == "OOMPolicy" and p.value == "kill" for p in self._job.spec.properties
        ):
            from slicer.job.ending import kills_in_slice

            self._kills_before = kills_in_slice(self._cgroup)

    def _without_keeper(self, started: Started, last: Reported | None) -> Reported:
        """The keeper was killed: do as much of its work as possible."""
        from slicer.job.ending import report_without

        return report_without(
            self._job, self._backend, self._held, started, last, self._kills_before, self._listener.warning
        )
