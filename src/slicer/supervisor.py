"""One job, from lease to outcome. Nothing else in slicer launches anything.

The supervisor has two halves. The outer one, here, is what the user started: it holds the terminal's
attention, forwards signals, and writes down the outcome. The keeper (:mod:`slicer.keeper`) sits in the scope
as the command's parent. When the outer half is killed, the keeper writes the outcome down and gives the lease
back in its place; so no exit code is lost and no resource is free while the job lives.
"""

from __future__ import annotations

import _signal as signal
import os
import sys
import time

from slicer.errors import EX_NOT_FOUND, EX_TIMEOUT, BackendError, CannotExecute, CommandNotFound, SlicerError
from slicer.model import Outcome, Usage
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from slicer import journal
    from slicer.backend import Backend
    from slicer.keeper import Report
    from slicer.ledger import HeldLease
    from slicer.model import Manager, Profile, ScopeSpec

# Imports inside functions here are not needed before the scope is asked for: they are made while systemd
# works on it (see _meanwhile), or in the keeper, on the other CPU.

# From the outer half (or ``slicer stop``) to a keeper without systemd: stop the job, as systemctl would.
STOP_SIGNAL = signal.SIGRTMIN + 3

# What a user may send to slicer and means for the job.
_FORWARDED = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGCONT, signal.SIGALRM, signal.SIGWINCH, STOP_SIGNAL}
)  # fmt: skip
_BLOCKED = _FORWARDED | {signal.SIGCHLD}

_RECORDED = b"r"  # the outer half's word that the outcome is written down


@record
class Job:
    """A command that is ready to be started: everything settled but the process."""

    id: str
    name: str
    command: tuple[str, ...]
    program: str
    env: dict[str, str]
    profile: Profile
    spec: ScopeSpec
    waited_s: float
    outcome_path: str  # where --outcome wants the JSON; "" for nowhere
    history_path: str
    with_journal: bool  # the command's output goes to the journal too


@record
class Started:
    """A job whose command is about to run."""

    job: Job
    cgroup: str
    started_at: float  # seconds since the epoch
    began: float  # monotonic seconds, from before the scope's start


def run(job: Job, backend: Backend, held: HeldLease, warn: Callable[[str], None]) -> Outcome:
    """Start the job, wait for its end and give the lease back. Raises SlicerError when it never started.

    ``warn`` takes one line for the user about something that stops no job (a full disk under the history).
    """
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED))
    try:
        return _Supervisor(job, backend, held, warn, mask).run()
    finally:
        held.release()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def execute(job: Job, backend: Backend, held: HeldLease) -> NoReturn:
    """``--exec``: become the command, inside the scope; the lease stays with it. Raises SlicerError."""
    try:
        name = backend.start(job.spec, os.getpid(), lambda: None)
        held.update(cgroup=name)
        backend.close()
        _event(job, "started")
        os.set_inheritable(held.fd, True)
        for signo in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signo, signal.SIG_DFL)
        os.execve(job.program, job.command, job.env)
    except OSError as error:
        held.release()
        raise cannot_execute(job, error.errno or 0) from error
    except SlicerError:
        held.release()
        raise


def cannot_execute(job: Job, exec_errno: int) -> SlicerError:
    """The error for a command that the kernel would not execute (exit code 126 or 127)."""
    from slicer.keeper import exec_exit

    kind = CommandNotFound if exec_exit(exec_errno).code == EX_NOT_FOUND else CannotExecute
    return kind(f"cannot execute: {os.strerror(exec_errno)}", where=job.program)


class _Supervisor:
    """The outer half, and what the keeper inherits of it by the fork."""

    def __init__(
        self, job: Job, backend: Backend, held: HeldLease, warn: Callable[[str], None], mask: frozenset[int]
    ) -> None:
        self._job = job
        self._backend = backend
        self._held = held
        self._warn = warn
        self._mask = mask
        self._pid = os.getpid()
        # Reports go up; "go" and "recorded" go down. Each side sees the other's death as end of file.
        self._up_read, self._up_write = os.pipe2(os.O_CLOEXEC)
        self._down_read, self._down_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._up_read, False)
        self._said = b""
        self._enforced: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def run(self) -> Outcome:
        keeper = os.fork()
        if keeper == 0:
            self._be_keeper()
        os.close(self._up_write)
        os.close(self._down_read)
        try:
            started = self._start(keeper)
        except BaseException:
            os.close(self._down_write)  # the keeper leaves without having started anything
            os.waitpid(keeper, 0)
            raise
        os.write(self._down_write, _go(started))
        _event(self._job, "started", command=" ".join(self._job.command))
        self._backend.close()
        # Now, because afterwards the scope is gone.
        self._enforced = self._backend.enforced(self._job.spec, started.cgroup)
        return self._finish(keeper, started, self._wait(keeper))

    def _start(self, keeper: int) -> Started:
        began = time.monotonic()
        name = self._backend.start(self._job.spec, keeper, self._meanwhile)
        self._held.update(cgroup=name, keeper=keeper)
        return Started(self._job, name, time.time(), began)

    def _meanwhile(self) -> None:
        """What can be done while systemd is busy: tell the journal, and load what the job's end needs."""
        from slicer import history, keeper

        del keeper
        history.preload()
        lease = self._held.lease
        if lease.gpus or lease.cpu_slots:
            _event(self._job, "acquired", waited_s=round(self._job.waited_s, 3), cpu_slots=lease.cpu_slots)

    # -- the outer half's wait ------------------------------------------------------------------------

    def _wait(self, keeper: int) -> tuple[Report, Usage] | None:
        """Forward signals until the keeper has reported the end, or is dead itself (then: None or partial)."""
        while True:
            info = signal.sigwaitinfo(_BLOCKED)
            if info.si_signo != signal.SIGCHLD:
                if info.si_pid != keeper:
                    os.kill(keeper, info.si_signo)
                continue
            found = self._hear()
            if found is not None and found[0].is_final:
                return found
            if os.waitid(os.P_PID, keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return self._hear()

    def _hear(self) -> tuple[Report, Usage] | None:
        """The last thing that the keeper said."""
        from slicer.keeper import unpack

        try:
            while data := os.read(self._up_read, 65536):
                self._said += data
        except BlockingIOError:
            pass
        return unpack(self._said)

    def _finish(self, keeper: int, started: Started, found: tuple[Report, Usage] | None) -> Outcome:
        if found is None or not found[0].is_final:
            found = self._bereaved(keeper, started, found)
        report, usage = found
        outcome = make_outcome(started, report, usage, self._held, self._enforced)
        if not report.exec_errno:
            keep(outcome, self._job, self._warn)
        os.write(self._down_write, _RECORDED)
        os.waitpid(keeper, 0)
        os.close(self._up_read)
        os.close(self._down_write)
        self._held.release()
        _event(self._job, "released")
        if report.exec_errno:
            raise cannot_execute(self._job, report.exec_errno)
        return outcome

    def _bereaved(
        self, keeper: int, started: Started, last: tuple[Report, Usage] | None
    ) -> tuple[Report, Usage]:
        """The keeper was killed: say what is known, and see to it that nothing of the job stays behind."""
        from slicer import cgroup
        from slicer.keeper import Report

        directory = cgroup.path_of(started.cgroup) if started.cgroup else ""
        usage = last[1] if last else cgroup.usage(directory) if directory else Usage()
        left = sum(1 for _ in cgroup.processes(directory)) if directory else 0
        if left and not self._job.profile.linger:
            try:
                self._backend.stop(self._job.spec.unit)
            except BackendError as error:
                self._warn(str(error))
        reason = last[0].reason if last else "oom-kill" if usage.oom_kills else "signal"
        wall_s = time.monotonic() - started.began
        return Report(1, signal.SIGKILL, 0, reason, wall_s, left), usage

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

        job, profile = self._job, self._job.profile
        task = Task(
            job.program, job.command, job.env, job.spec.unit if self._backend.name == "systemd" else "",
            profile.timeout_s, stop_timeout_s(profile), profile.linger, self._pid,
            (self._held.fd,) if self._held.fd >= 0 else (), self._mask,
        )  # fmt: skip
        watchdog = self._backend.watchdog(job.spec)
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(b"slicer-keeper")  # what ps and systemd-cgls -l show beside the command
        order = os.read(self._down_read, 65536)  # stopped here until the scope stands
        if not order:
            return
        started = _started(job, order)
        output = None
        if job.with_journal:
            from slicer.tee import Tee

            output = Tee(job.spec.unit, job.name)
        members = self._backend.members(started.cgroup, output.pid if output else 0)
        report, usage = Keeper(task, self._tell, watchdog, members, output).run(started.began)
        self._tell(report, usage)
        os.close(self._up_write)
        if os.read(self._down_read, 1) == _RECORDED:
            return
        # End of file: the outer half is dead, so this is the last chance to write it down.
        if not report.exec_errno:
            self._enforced = self._backend.enforced(job.spec, started.cgroup)
            keep(make_outcome(started, report, usage, self._held, self._enforced), job, lambda _: None)
        self._held.release()
        _event(job, "released")

    def _tell(self, report: Report, usage: Usage) -> None:
        from slicer.keeper import pack

        try:
            os.write(self._up_write, pack(report, usage))
            if os.getppid() == self._pid:
                os.kill(self._pid, signal.SIGCHLD)
        except (BrokenPipeError, ProcessLookupError):
            pass  # the outer half is dead; the keeper finishes alone


def _go(started: Started) -> bytes:
    from slicer.statefile import encode

    return encode(_Order(started.cgroup, started.started_at, started.began))


def _started(job: Job, order: bytes) -> Started:
    from slicer.statefile import decode

    given = decode(_Order, order)
    return Started(job, given.cgroup, given.started_at, given.began)


@record
class _Order:
    """What the outer half learned after the fork."""

    cgroup: str
    started_at: float
    began: float


def make_outcome(
    started: Started, report: Report, usage: Usage, held: HeldLease,
    enforced: tuple[tuple[str, ...], tuple[str, ...]],
) -> Outcome:  # fmt: skip
    """The outcome of a job that ran. ``enforced``: the directives that act here, and those that do not."""
    from slicer.keeper import Exit, exit_of

    job, lease = started.job, held.lease
    ended = exit_of(report.status)
    if report.reason == "timeout":
        ended = Exit(EX_TIMEOUT, ended.signal)
    return Outcome(
        job=job.id,
        name=job.name,
        command=job.command,
        profile=job.profile.name,
        backend=lease.backend,
        manager=job.spec.manager,
        unit=lease.unit,
        slice=job.spec.slice,
        gpus=lease.gpus,
        cpu_slots=lease.cpu_slots,
        uid=lease.uid,
        reason=report.reason,
        exit_code=ended.code,
        signal=ended.signal,
        started_at=started.started_at,
        waited_s=job.waited_s,
        wall_s=report.wall_s,
        usage=usage,
        leftovers=report.leftovers,
        enforced=enforced[0],
        not_enforced=enforced[1],
    )


def keep(outcome: Outcome, job: Job, warn: Callable[[str], None]) -> None:
    """Write the outcome down wherever it is wanted. What fails here is said and stops nothing."""
    from slicer import history

    steps: list[Callable[[], str | None]] = [lambda: history.append(outcome, job.history_path)]
    if job.outcome_path:
        from slicer.outcome_file import write

        steps.append(lambda: write(outcome, job.outcome_path))
    for step in steps:
        try:
            warning = step()
        except SlicerError as error:
            warning = str(error)
        if warning:
            warn(warning)
            _event(job, "error", message=warning)
    _event(
        job, "finished", reason=outcome.reason, exit_code=outcome.exit_code, wall_s=round(outcome.wall_s, 3),
        cpu_s=outcome.usage.cpu_s, memory_peak_bytes=outcome.usage.memory_peak_bytes,
    )  # fmt: skip


def _event(job: Job, kind: journal.Kind, **more: str | float | None) -> None:
    from slicer import journal

    message = str(more.pop("message", ""))
    journal.event(
        kind, job=job.id, name=job.name or job.command[0], unit=job.spec.unit, manager=job.spec.manager,
        message=message, **more,
    )  # fmt: skip
