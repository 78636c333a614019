"""One job, from lease to outcome. Nothing else in slicer launches anything.

The supervisor has two halves. The outer one, here, is what the user started: it holds the terminal's
attention, forwards signals, and writes down the outcome. The keeper (:mod:`slicer.keeper`) sits in the scope
as the command's parent. When the outer half is killed, the keeper writes the outcome down and gives the lease
back in its place; so no exit code is lost and no resource is free while the job lives.

Imports inside functions are not needed before the scope is asked for: they are made while systemd works on
it, or in the keeper, on another CPU.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from slicer import faults
from slicer.errors import EX_NOT_FOUND, BackendError, CannotExecute, CommandNotFound
from slicer.job import Started, tell
from slicer.signals import STOP, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from slicer.backend import Backend
    from slicer.errors import SlicerError
    from slicer.job import Job
    from slicer.launch import Observer
    from slicer.ledger import HeldLease
    from slicer.model import Outcome, Usage
    from slicer.report import Report

    Said = tuple[Report, Usage]

# What a user may send to slicer and means for the job. Ctrl-Z among it: a command may ignore it, so the outer
# half stops only when the keeper sees the command stopped, and sends it SIGSTOP.
_FORWARDED = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGCONT, signal.SIGTSTP, signal.SIGALRM, signal.SIGWINCH, STOP}
)  # fmt: skip
_BLOCKED = _FORWARDED | {signal.SIGCHLD}

# A job that outgrows one of these surprises somebody; a weight that does not act only makes things slower.
_HARD_LIMITS = frozenset(
    {"AllowedCPUs", "CPUQuota", "DeviceAllow", "DevicePolicy", "MemoryHigh", "MemoryMax", "MemorySwapMax"}
    | {"TasksMax"}
)  # fmt: skip

_SCOPE_DEADLINE_S = 5.0
_STARTING = b"s"  # systemd is about to be asked for the scope
_QUIT = b"q"  # there will be no scope
_RECORDED = b"r"  # the outer half's word that the outcome is written down


def run(job: Job, backend: Backend, held: HeldLease, observer: Observer, mask: frozenset[int]) -> Outcome:
    """Start the job, wait for its end and give the lease back. Raises SlicerError when it never started.

    ``mask`` is the signal mask that the command gets. What slicer forwards stays blocked afterwards: a
    signal that came too late for the job must not change how slicer ends.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        return _Supervisor(job, backend, held, observer, mask).run()
    finally:
        held.release()


def execute(job: Job, backend: Backend, held: HeldLease, mask: frozenset[int]) -> NoReturn:
    """``--exec``: become the command, inside the scope; the lease stays with it. Raises SlicerError."""
    try:
        name = backend.start(job.spec, os.getpid(), lambda: None)
        held.update(cgroup=name)
        backend.close()
        tell(job, "started", command=" ".join(job.command))
        os.set_inheritable(held.fd, True)
        for signo in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signo, signal.SIG_DFL)  # Python ignores these two
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execve(job.program, job.command, job.env)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ("/bin/sh", job.program, *job.command[1:]), job.env)
    except OSError as error:
        held.release()
        raise _cannot_execute(job, error.errno or 0) from error
    except BaseException:
        held.release()
        raise


def _cannot_execute(job: Job, exec_errno: int) -> SlicerError:
    """The error for a command that the kernel would not execute (exit code 126 or 127)."""
    from slicer.report import exec_exit

    kind = CommandNotFound if exec_exit(exec_errno).code == EX_NOT_FOUND else CannotExecute
    return kind(f"cannot execute: {os.strerror(exec_errno)}", where=job.program)


class _Supervisor:
    """The outer half, and what the keeper inherits of it by the fork."""

    def __init__(
        self, job: Job, backend: Backend, held: HeldLease, observer: Observer, mask: frozenset[int]
    ) -> None:
        self._job = job
        self._backend = backend
        self._held = held
        self._observer = observer
        self._mask = mask
        self._pid = os.getpid()
        # Reports go up; "go" and "recorded" go down. Each side sees the other's death as end of file.
        self._up_read, self._up_write = os.pipe2(os.O_CLOEXEC)
        self._down_read, self._down_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._up_read, False)
        self._heard = b""

    def run(self) -> Outcome:
        try:
            keeper = os.fork()
        except OSError as error:
            raise BackendError(f"cannot fork: {error.strerror}", hint="see ulimit -u and TasksMax") from error
        if keeper == 0:
            self._be_keeper()
        faults.point("outer-forked")
        os.close(self._up_write)
        os.close(self._down_read)
        try:
            started = self._start(keeper)
            self._let_go(started)
        except BaseException:
            self._say(_QUIT)  # the keeper leaves without having started anything
            os.waitpid(keeper, 0)
            os.close(self._down_write)
            raise
        tell(self._job, "started", command=" ".join(self._job.command))
        # Now, because afterwards the scope is gone.
        enforced = self._backend.enforced(self._job.spec, started.cgroup)
        self._own_up(enforced[1])
        said = self._wait(keeper)
        if said is None or not said[0].is_final:
            said = self._bereaved(started, said)
        return self._finish(keeper, started, said, enforced)

    def _start(self, keeper: int) -> Started:
        began = time.monotonic()
        os.write(self._down_write, _STARTING)
        name = self._backend.start(self._job.spec, keeper, self._meanwhile)
        faults.point("outer-started-scope")
        self._held.update(cgroup=name, keeper=keeper)
        faults.point("outer-updated-lease")
        self._backend.close()
        return Started(name, time.time(), began)

    def _meanwhile(self) -> None:
        """What can be done while systemd is busy: load what the job's end needs, and tell the journal."""
        from slicer import ending, history

        del ending
        history.preload()
        lease = self._held.lease
        if lease.gpus or lease.cpu_slots:
            tell(self._job, "acquired", waited_s=round(self._job.waited_s, 3), cpu_slots=lease.cpu_slots)

    def _let_go(self, started: Started) -> None:
        from slicer.statefile import encode

        try:
            os.write(self._down_write, encode(started))
        except BrokenPipeError as error:
            raise BackendError("the keeper was killed before the command could start") from error
        faults.point("outer-let-go")

    def _own_up(self, not_enforced: tuple[str, ...]) -> None:
        """Say which limits that were asked for do not act. (Without systemd the backend's notice says it.)"""
        missing = [name for name in not_enforced if name in _HARD_LIMITS]
        if self._backend.name == "inner":
            asked = [name for name in missing if self._job.profile.sources.get(name) == "--set"]
            if asked:
                self._observer.notice(
                    f"{', '.join(asked)}: not set, for it runs inside {self._job.spec.unit}"
                )
        elif missing and self._backend.name == "systemd":
            self._observer.notice(f"not enforced here: {', '.join(missing)} (no cgroup controller for it)")

    def _wait(self, keeper: int) -> Said | None:
        """Forward signals until the keeper has reported the end, or is dead itself (None, or partial)."""
        warned = False
        while True:
            info = signal.sigwaitinfo(_BLOCKED)
            if info.si_signo != signal.SIGCHLD:
                if info.si_pid != keeper:
                    os.kill(keeper, info.si_signo)
                continue
            said = self._hear()
            if said is not None and said[0].is_final:
                return said
            if said is not None and said[0].leftovers and not warned:
                warned = True
                self._observer.notice(
                    f"{said[0].leftovers} processes of other users outlive the command: waiting for them"
                )
            if os.waitid(os.P_PID, keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return self._hear()

    def _say(self, word: bytes) -> None:
        try:
            os.write(self._down_write, word)
        except BrokenPipeError:
            pass  # the keeper was killed

    def _hear(self) -> Said | None:
        """The last thing that the keeper said."""
        from slicer.report import unpack

        try:
            while data := os.read(self._up_read, 65536):
                self._heard += data
        except BlockingIOError:
            pass
        return unpack(self._heard)

    def _finish(
        self, keeper: int, started: Started, said: Said, enforced: tuple[tuple[str, ...], tuple[str, ...]]
    ) -> Outcome:
        from slicer import ending

        faults.point("outer-heard-end")
        report, usage = said
        outcome = ending.outcome_of(self._job, started, report, usage, self._held, enforced)
        if report.exec_errno:
            ending.release(self._job, self._held)
        else:
            ending.settle(self._job, outcome, self._held, self._observer.warning)
        faults.point("outer-settled")
        self._say(_RECORDED)
        faults.point("outer-told-keeper")
        os.waitpid(keeper, 0)
        os.close(self._up_read)
        os.close(self._down_write)
        faults.point("outer-reaped-keeper")
        if report.exec_errno:
            raise _cannot_execute(self._job, report.exec_errno)
        return outcome

    def _bereaved(self, started: Started, last: Said | None) -> Said:
        """The keeper was killed: say what is known, and see to it that nothing of the job stays behind."""
        from slicer import cgroup
        from slicer.model import Usage
        from slicer.report import Report
        from slicer.scope import stop_timeout_s

        job, backend = self._job, self._backend
        usage = (
            last[1] if last else cgroup.usage(cgroup.path_of(started.cgroup)) if started.cgroup else Usage()
        )
        left = len(backend.living(job.id, started.cgroup))
        if left and not job.profile.linger:
            try:
                backend.end(job.id, job.spec.unit, stop_timeout_s(job.profile))
            except BackendError as error:
                self._observer.warning(str(error))
        self._held.is_outlived = bool(backend.living(job.id, started.cgroup))
        reason = last[0].reason if last else "oom-kill" if usage.oom_kills else "signal"
        return Report(1, signal.SIGKILL, 0, reason, time.monotonic() - started.began, left), usage

    # -- the keeper's side of the fork ----------------------------------------------------------------

    def _be_keeper(self) -> NoReturn:
        """Never returns and never raises: this is a forked child."""
        code = 1
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            os.close(self._up_read)
            os.close(self._down_write)
            self._backend.after_fork()
            self._keep()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # nobody above would show it
        finally:
            os._exit(code)

    def _keep(self) -> None:
        from slicer.keeper import Keeper, Task
        from slicer.scope import stop_timeout_s
        from slicer.statefile import decode

        job, profile, held = self._job, self._job.profile, self._held
        in_scope = self._backend.name == "systemd"
        task = Task(
            program=job.program,
            command=job.command,
            env=job.env,
            scope=job.spec.unit if in_scope else "",
            timeout_s=profile.timeout_s,
            stop_timeout_s=stop_timeout_s(profile),
            linger=profile.linger,
            supervisor=self._pid,
            inherited=(held.fd,) if held.fd >= 0 else (),
            mask=self._mask,
        )
        watchdog = self._backend.watchdog(job.spec)
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(b"slicer-keeper")  # what ps and systemd-cgls -l show beside the command
        faults.point("keeper-forked")
        order = self._wait_for_order()
        if not order:
            return
        faults.point("keeper-ordered")
        started = decode(Started, order)
        output = None
        if job.with_journal:
            from slicer.tee import Tee

            output = Tee(job.spec.unit, job.name)
        members = self._backend.members(started.cgroup, output.pid if output else 0)
        report, usage = Keeper(task, self._tell, watchdog, members, output).run(started.began)
        faults.point("keeper-ended")
        self._tell(report, usage)
        faults.point("keeper-told")
        os.close(self._up_write)
        if os.read(self._down_read, 1) != _RECORDED:
            self._finish_alone(started, report, usage)

    def _wait_for_order(self) -> bytes:
        """Stopped here until the scope stands; empty when it will not, or the outer half is dead."""
        order = os.read(self._down_read, 65536)
        if order == _STARTING:
            order = os.read(self._down_read, 65536)
            if not order:
                self._await_scope()
        order = order.removeprefix(_STARTING)
        return b"" if order == _QUIT else order

    def _await_scope(self) -> None:
        """Let systemd, which was asked already, put us into the scope before we leave.

        A scope whose only process died on the way in is never seen to become empty, and stays for ever.
        """
        from slicer import cgroup

        end = time.monotonic() + _SCOPE_DEADLINE_S
        while self._backend.name == "systemd" and time.monotonic() < end:
            if cgroup.of("self").endswith(f"/{self._job.spec.unit}"):
                return
            time.sleep(0.01)

    def _finish_alone(self, started: Started, report: Report, usage: Usage) -> None:
        """The outer half is dead. Should it have written the outcome already: history keeps one row a job."""
        from slicer import ending

        if report.exec_errno:
            ending.release(self._job, self._held)
            return
        enforced = self._backend.enforced(self._job.spec, started.cgroup)
        outcome = ending.outcome_of(self._job, started, report, usage, self._held, enforced)
        ending.settle(self._job, outcome, self._held, lambda _: None)

    def _tell(self, report: Report, usage: Usage) -> None:
        from slicer.report import pack

        try:
            is_alive = os.getppid() == self._pid
            if is_alive and report.is_final:
                os.kill(self._pid, signal.SIGCONT)  # stopped with Ctrl-Z, it would keep the lease
            os.write(self._up_write, pack(report, usage))
            if is_alive:
                os.kill(self._pid, signal.SIGCHLD)
        except (BrokenPipeError, ProcessLookupError):
            pass  # the outer half is dead; the keeper finishes alone
