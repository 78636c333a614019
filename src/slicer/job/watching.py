"""What the supervisor does while its job's command runs, from the order to the keeper's last report.

It forwards signals, measures the job's GPUs, samples what the job uses, and notes its pauses. It decides
little: whether a signal goes on is up to :mod:`slicer.job.job_control`, and how the job ends is up to its
keeper (:mod:`slicer.job.life`).
"""

from __future__ import annotations

import os
import time

from slicer.errors import SlicerError
from slicer.job import ending
from slicer.job.job import tell
from slicer.job.job_control import passed_on
from slicer.job.report import unpack
from slicer.kernel import proc
from slicer.kernel.signals import FORWARDED, INTERRUPTS, STOP, signal, timed_wait
from slicer.kernel.sleep import seconds_until, soonest
from slicer.model import KEEPER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.backend import Backend
    from slicer.job.git import GitLook
    from slicer.job.giving_way import GivingWay
    from slicer.job.job import Follower, Job, Listener
    from slicer.job.report import KeeperReport
    from slicer.job.sampling import Sampler
    from slicer.job.scope_watch import ScopeWatch
    from slicer.ledger.control_log import Kind
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger
    from slicer.model import Git, Usage
    from slicer.outcome.series import Series

    Reported = tuple[KeeperReport, Usage]

_TAKEN = FORWARDED | {signal.SIGCHLD}
_ENDING = INTERRUPTS | {signal.SIGQUIT, STOP}  # these ask the job to end

_LOOK_S = 0.01  # between looks, while no event tells of a stop
_GIT_S = 0.05  # after the command's start, git is asked which code that is
_QUIET_S = 1.0  # after this time, postponed work no longer delays a short job


class Watching:
    """The watch over one job. ``keeper``: its pid; ``reports``: a pipe; ``began``: monotonic seconds."""

    def __init__(
        self, job: Job, held: HeldLease, backend: Backend, ledger: Ledger, listener: Listener,
        follower: Follower, keeper: int, reports: int, began: float,
    ) -> None:  # fmt: skip
        self._job = job
        self._held = held
        self._backend = backend
        self._ledger = ledger
        self._listener = listener
        self._follower = follower
        self._keeper = keeper
        self._reports = reports
        self._received = b""
        self._began = began
        self._settle_at: float | None = began + _QUIET_S  # None: it has run for a while
        self._git_at: float | None = None  # when git is asked
        self._git: GitLook | None = None  # from then on
        self._sampler: Sampler | None = None  # from the settling on
        self._scope: ScopeWatch | None = None  # from then on
        self._giving_way: GivingWay | None = None  # from then on, of a preemptible job
        self._has_executed = False  # the keeper, as far as it has told
        self._awaits_stop = False  # of a command that Ctrl-Z may have stopped before that
        self._has_told_leftovers = False
        self.gpus = ending.gpu_watch(job, held, ledger, listener.warning, follower)
        if self.gpus is not None:
            self.gpus.end_job = self._end_for

    def until_end(self) -> Reported | None:
        """The keeper's final report. If it is killed, its last report; None: it has not reported."""
        while True:
            info = self._next_signal()
            if info.si_signo != signal.SIGCHLD:
                self._forward(info)
                continue
            if not self._has_executed and self._job.with_git:
                self._git_at = time.monotonic() + _GIT_S
            self._has_executed, self._awaits_stop = True, False
            if self._git is not None:
                self._git.reap()
            self._held.do_postponed()
            is_dead = proc.is_dead_child(self._keeper)  # before the last look at what it has said
            reported = self._read()
            if is_dead or (reported is not None and reported[0].is_final):
                return reported
            if reported is not None and reported[0].leftovers and not self._has_told_leftovers:
                self._has_told_leftovers = True
                self._listener.notice(
                    f"{reported[0].leftovers} processes of other users outlive the command: waiting for them"
                )

    def series(self) -> Series | None:
        """What was sampled; None: nothing."""
        return self._sampler.series() if self._sampler is not None else None

    def git(self) -> Git | None:
        """Which code it is; None: not known, or none that git has."""
        return self._git.end() if self._git is not None else None

    def _read(self) -> Reported | None:
        try:
            while data := os.read(self._reports, 65536):
                self._received += data
        except BlockingIOError:
            pass
        return unpack(self._received)

    # -- signals -------------------------------------------------------------------------------------------

    def _forward(self, info: Any) -> None:
        signo = info.si_signo
        if self._job.attempt is not None and signo != STOP:
            return  # what ends supervisors, as a logout does, does not end a queue's jobs
        if word := passed_on(signo, info.si_code, info.si_pid, self._keeper, signal.sigpending()):
            os.kill(self._keeper, word)
        is_alone = self._job.attempt is None  # else its queue knows whether it runs again
        if is_alone and signo in _ENDING and self._held.lease.gives_way_by_s is not None:
            self._note("signal")  # somebody wants it to end for good
        self._thaw_to_end(signo)
        self._awaits_stop |= signo == signal.SIGTSTP and not self._has_executed

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
        self._note(kind)
        os.kill(self._keeper, STOP)
        self._thaw_to_end(STOP)

    def _note(self, kind: Kind) -> None:
        from slicer.job.stop import note

        note(self._held.lease, self._ledger, kind)

    # -- what is due without a signal ----------------------------------------------------------------------

    def _next_signal(self) -> Any:
        """Sleep until a signal arrives, and do what becomes due meanwhile."""
        while (info := self._sleep()) is None:
            if self._awaits_stop:
                self._stop_before_exec()
            if self.gpus is not None and self.gpus.left_s() == 0.0:
                self.gpus.sample()
                self._follower.used(self.gpus.use)
            if self._sampler is not None:
                self._sampler.take()
            if seconds_until(self._git_at) == 0.0:
                self._ask_git()
            if self._giving_way is not None and self._giving_way.left_s() == 0.0:
                self._give_way(self._giving_way)
            if seconds_until(self._settle_at) == 0.0:
                self._settle()
        return info

    def _sleep(self) -> Any:
        """The next signal; None: something may be due."""
        limit_s = soonest(
            seconds_until(self._git_at, self._settle_at),
            _LOOK_S if self._awaits_stop else None,
            self.gpus.left_s() if self.gpus is not None else None,
            self._sampler.left_s() if self._sampler is not None else None,
            self._giving_way.left_s() if self._giving_way is not None else None,
        )
        if self._scope is not None:
            return self._scope.wait(limit_s)
        return signal.sigwaitinfo(_TAKEN) if limit_s is None else timed_wait(_TAKEN, limit_s)

    def _give_way(self, giving_way: GivingWay) -> None:
        try:
            whom = giving_way.look()
        except SlicerError as error:
            self._listener.warning(f"the job can no longer give way: {error}")
            self._giving_way = None
            return
        if whom:
            told = f"gives way to {whom}"
            self._listener.notice(told)
            tell(self._job, "stopping", lease=self._held.lease, message=told, by="slicer")
            self._end_for("way")

    def _stop_before_exec(self) -> None:
        """Stop with a command that was stopped before its exec. Until that the keeper sleeps in vfork(2)."""
        if any(proc.is_stopped(pid) and proc.comm(pid) == KEEPER for pid in proc.children(self._keeper)):
            self._awaits_stop = False
            os.kill(os.getpid(), signal.SIGSTOP)

    def _ask_git(self) -> None:
        from slicer.job.git import GitLook

        self._git_at = None
        try:
            self._git = GitLook(self._job.runs_in(), os.environ.get("PATH", ""))
        except OSError:
            pass  # no descriptors or processes are left

    def _settle(self) -> None:
        """The job has run for a while: do the work that would have delayed a short job."""
        self._settle_at = None
        self._held.do_postponed_slow()
        lease, backend = self._held.lease, self._backend
        if self._held.fd >= 0 and (lease.cgroup or lease.gpus):  # not inside another job's scope
            from slicer.job.sampling import Sampler

            self._sampler = Sampler(lease, self.gpus)
        if self._held.fd >= 0 and lease.min_run_s is not None:
            from slicer.job.giving_way import GivingWay

            self._giving_way = GivingWay(self._job, self._held, self._ledger)
        if backend.name != "systemd" or self._held.fd < 0:
            return
        if not self._job.broker:  # the broker sweeps its own
            from slicer.backend import empty_scopes

            empty_scopes.stop_beside(lease.cgroup, backend.manager)
        from slicer.job.scope_watch import ScopeWatch, limit_at

        ends_at = limit_at(self._job, self._began)
        try:
            self._scope = ScopeWatch(lease, self._ledger.directory, ends_at, _TAKEN, self._listener.warning)
        except OSError:
            pass  # no descriptors are left
