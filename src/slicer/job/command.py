"""The parent of one job's command: starts, signals, limits and reaps it, and measures its use.

This runs in the keeper (:mod:`slicer.job.keeper`), inside the scope, until no other process is left there. So
the scope's figures can still be read after the command's end, and the lease stays held meanwhile. Every
signal is blocked and taken by waiting for it, so no signal handler runs here.
"""

from __future__ import annotations

import errno
import os
import time

from slicer import faults
from slicer.backend import time_limit_of
from slicer.job.job_control import JobControl
from slicer.job.leftovers import living, wait_for_any
from slicer.job.life import Event, Life, Terms, beside_containers, due_s, step
from slicer.job.program import spawn
from slicer.job.report import KeeperReport, final_reason
from slicer.job.stop_rule import StopRule, asked_for, due
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import (
    CONTINUED,
    INTERRUPTS,
    SI_KERNEL,
    STOP,
    SYSTEMD_STOPS,
    asked_by,
    pending,
    signal,
    timed_wait,
)
from slicer.kernel.sleep import seconds_until
from slicer.model import Usage
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from slicer.backend import Watchdog
    from slicer.job.life import Action
    from slicer.job.log_bound import LogBound
    from slicer.model import EndedBy, Manager

    class Output(Protocol):
        """The destination of the command's output."""

        stdout: int
        stderr: int
        pid: int  # of the process that copies it; 0 for none

        def handed_over(self) -> None:
            """The command has its descriptors now."""

        def finish(self) -> None:
            """Wait until everything is written."""


# SIGSTOP and SIGKILL cannot be blocked. All others are taken one by one with sigtimedwait.
_ALL_SIGNALS = frozenset(signal.valid_signals())

# The signals that matter after the command's end, during the wait for its leftovers.
_WAKING = INTERRUPTS | {signal.SIGCHLD, signal.SIGIO, STOP, CONTINUED, SYSTEMD_STOPS}

# Signals that ask a program to end or stop. If one arrives before the command, the command gets it, too.
_ASKING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP})


@record
class Task:
    """A command to run, and how to end it."""

    program: str  # path to execute
    command: tuple[str, ...]
    env: dict[str, str]
    scope: str  # the name of the scope ("slicer-x.scope"); "" without systemd
    timeout_s: float | None  # enforced by systemd; without it, here
    stop: StopRule
    linger: bool  # wait for leftovers instead of ending them
    supervisor: int  # pid of the supervisor, which forwards signals
    by: EndedBy  # who ends the job if the supervisor asks for it
    inherited: tuple[int, ...]  # descriptors that the command inherits (the lease)
    mask: frozenset[int]  # the signal mask that the command gets
    has_lost_caller: Callable[[], bool] | None = None  # called at SIGIO: the job ends with its caller
    manager: Manager = "system"  # of the scope
    log_mib: int = 0  # of standard output, beyond which its beginning is freed; 0: never
    cgroup: str = ""  # the job's, with a scope
    end_containers: Callable[[], None] | None = None  # kills those that a daemon runs for the job


class Command:
    """One task's command. ``notify`` gets reports before its end; ``others`` lists the other processes."""

    def __init__(
        self, task: Task, notify: Callable[[KeeperReport, Usage], None],
        watchdog: Watchdog | None, others: Callable[[], list[int]], output: Output | None,
    ) -> None:  # fmt: skip
        self._task = task
        self._notify = notify
        self._watchdog = watchdog
        self._others = others
        self._output = output
        self._job_control = JobControl(task.supervisor)
        self._directory = cgroup.path_of(task.cgroup) if task.scope else ""
        self._pid = 0
        self._status: int | None = None  # in waitpid(2)'s form; None: it runs
        self._cpu = (0.0, 0.0, 0)  # user s, system s, peak KiB, from wait4(2)
        self._terms = Terms(task.stop, task.linger, None if task.scope else task.timeout_s, bool(task.scope))
        self._asked: set[tuple[int, int | None, int]] = set()  # pid, start and signal
        self._check_at = time.monotonic() + (watchdog.interval_s if watchdog else 0.0)  # for the watchdog
        self._log_bound: LogBound | None = None
        if task.log_mib:
            from slicer.job.log_bound import LogBound

            self._log_bound = LogBound(1, task.log_mib)

    def run(self, began: float, early: Sequence[int] = ()) -> tuple[KeeperReport, Usage]:
        """Stay until no process is left. ``began``: the scope's start; ``early``: signals before that."""
        self._scope_began = began
        self._life = Life(time.monotonic(), self._task.stop)
        arrived = list(pending(_ALL_SIGNALS))
        exec_errno = self._spawn()
        proc.survive_group_kill()
        if exec_errno:
            return KeeperReport(1, "exited", exec_errno=exec_errno), self._usage()
        for signo in early:
            self._step(Event("passed", signo))
        for info in arrived:
            self._handle(info)
            if info.si_signo in _ASKING and info.si_pid != self._task.supervisor:
                self._send(self._pid, info.si_signo)
        self._job_control.tell_supervisor(signal.SIGCHLD)  # it may wake the next in the queue now
        faults.point("keeper-spawned")
        while self._status is None:
            left_s = self._left_s()
            info = signal.sigwaitinfo(_ALL_SIGNALS) if left_s is None else timed_wait(_ALL_SIGNALS, left_s)
            if info is not None:
                self._handle(info)
            self._meet_deadlines()
        faults.point("keeper-reaped")
        # systemd may have signalled the command a moment before us. That shows the reason for its end.
        for info in pending(_ALL_SIGNALS):
            self._handle(info)
        leftovers = self._end_leftovers()
        life = self._life
        ended_s = time.monotonic() if self._task.linger or life.ended_s is None else life.ended_s
        if self._output is not None:
            self._output.finish()
        usage = self._usage()
        reason = final_reason(life.reason, self._status, usage.oom_kills)
        by = life.ended_by if reason != "signal" else life.senders.get(os.WTERMSIG(self._status), "")
        return KeeperReport(1, reason, self._status, 0, ended_s - life.began_s, leftovers, by), usage

    # -- its beginning -------------------------------------------------------------------------------------

    def _spawn(self) -> int:
        """Execute the command; 0, or the errno of the failure."""
        task = self._task
        for fd in task.inherited:
            os.set_inheritable(fd, True)
        out = self._output
        moves = ((out.stdout, 1), (out.stderr, 2)) if out else ()
        try:
            self._pid = spawn(task.program, task.command, task.env, task.mask, moves)
        except OSError as error:
            return error.errno or errno.ENOEXEC
        finally:
            for fd in task.inherited:
                os.set_inheritable(fd, False)
            if out is not None:
                out.handed_over()
        return 0

    # -- incoming signals ----------------------------------------------------------------------------------

    def _handle(self, info: signal.struct_siginfo) -> None:
        if info.si_signo in (signal.SIGCHLD, CONTINUED):
            self._look(info.si_signo == CONTINUED)
        elif info.si_signo == STOP:
            rule = asked_for(self._task.stop, *asked_by(info))
            self._stop(Event("stop", by=self._task.by, rule=rule))
        elif info.si_signo == SYSTEMD_STOPS and self._task.scope and proc.is_systemd(info.si_pid):
            self._stop_for_systemd()
        elif info.si_signo == signal.SIGIO:
            if self._task.has_lost_caller is not None and self._task.has_lost_caller():
                self._stop(Event("stop", by="caller"))
        elif info.si_pid == self._task.supervisor:
            self._reap()  # a command that has just ended would swallow it
            self._step(Event("passed", info.si_signo))
        else:
            self._step(Event("direct", info.si_signo, by=self._sender(info)))

    def _look(self, was_continued: bool) -> None:
        """Look at what has become of the command, or of a supervisor that was continued."""
        if self._still_runs() and self._job_control.is_to_continue(was_continued, self._still_runs):
            self._send(self._pid, signal.SIGCONT)

    def _sender(self, info: signal.struct_siginfo) -> EndedBy:
        """Who sent the command the same signal as us, if that tells why it may end."""
        if info.si_code == SI_KERNEL:
            return "terminal"  # Ctrl-C
        if not proc.is_systemd(info.si_pid):
            return ""
        if self._task.scope:
            return "systemd"
        # It stops the session or the service in which the job was started.
        manager: Manager = "system" if info.si_pid == 1 else "user"
        return "shutdown" if info.si_signo == signal.SIGTERM and _is_shutdown(manager) else ""

    # -- deadlines -----------------------------------------------------------------------------------------

    def _left_s(self) -> float | None:
        """Seconds until something is due without a signal; None: never."""
        is_watched = self._watchdog is not None and self._life.reason is None
        watch_at = self._check_at if is_watched else None
        bound_at = self._log_bound.due if self._log_bound is not None else None
        return seconds_until(due_s(self._life, self._terms), watch_at, bound_at)

    def _meet_deadlines(self) -> None:
        """Do the work that is due, however many signals arrive."""
        self._reap()  # a command that has just ended is not over its time
        self._step(Event("time"))
        if self._log_bound is not None:
            self._log_bound.look()
        if self._watchdog is None or self._life.reason is not None or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + self._watchdog.interval_s
        if (found := self._watchdog.check()) is not None:
            self._step(Event("exceeds", reason=found))

    # -- its end -------------------------------------------------------------------------------------------

    def _stop_for_systemd(self) -> None:
        """systemd stops the scope. It kills all processes, and us, after the time that it gives the job."""
        since_s = time.monotonic() - self._scope_began
        limits = self._task.timeout_s, time_limit_of(self._task.scope)  # perhaps the administrator's
        if any(limit_s is not None and since_s >= limit_s for limit_s in limits):
            self._stop(Event("systemd", reason="timeout", rule=self._task.stop))
        else:
            by: EndedBy = "shutdown" if _is_shutdown(self._task.manager) else "systemd"
            self._stop(Event("systemd", by=by, rule=self._task.stop))

    def _stop(self, event: Event) -> None:
        self._reap()
        if self._status is None or self._others():  # else it has just ended by itself
            self._step(event)

    def _step(self, event: Event) -> None:
        """Something has happened: do what follows from it."""
        self._life, actions = step(self._life, event, time.monotonic(), self._terms)
        for action in actions:
            self._act(action, event.signo)

    def _act(self, action: Action, signo: int) -> None:
        match action:
            case "send":
                self._send(self._pid, signo)
            case "send all":
                self._signal_all(signo)
            case "ask":
                self._ask()
            case "kill":
                self._kill()
            case "report":
                self._report()

    def _ask(self) -> None:
        """Ask those whose turn it is by the rule, each once."""
        since_s = time.monotonic() - (self._life.asked_s or 0.0)
        parents = {pid: proc.parent(pid) for pid in self._whom(self._all())}
        signo, whom = due(self._life.rule, since_s, self._pid if self._status is None else 0, parents)
        if signo == signal.SIGKILL:
            self._kill()
            return
        for pid in whom:
            who = pid, proc.start_time(pid), signo
            if who not in self._asked:
                self._asked.add(who)
                self._send(pid, signo, is_stop=True)

    def _all(self) -> list[int]:
        pids = [self._pid] if self._status is None else []
        return pids + [pid for pid in self._others() if pid not in pids]

    def _whom(self, pids: list[int]) -> list[int]:
        """Those of the processes that may be told to end now."""
        if self._life.beside_s == 0.0:
            return pids
        spared = beside_containers({pid: proc.comm(pid) for pid in pids}, proc.parent)
        return [pid for pid in pids if pid not in spared or pid == self._pid]

    def _kill(self) -> None:
        self._end_containers()  # first, so that their client still hears of it
        if self._signal_all(signal.SIGKILL):
            self._step(Event("killed"))
        else:  # the remaining processes are another user's (sudo): report them, and wait for their end
            self._step(Event("spared"))
            self._report(len(self._others()))

    def _end_containers(self) -> None:
        if self._task.end_containers is not None:
            self._task.end_containers()

    def _report(self, leftovers: int = 0) -> None:
        life, usage = self._life, self._usage()
        reason = final_reason(life.reason, self._status, usage.oom_kills)
        wall_s = time.monotonic() - life.began_s
        report = KeeperReport(0, reason, wall_s=wall_s, leftovers=leftovers, ended_by=life.ended_by)
        self._notify(report, usage)

    def _signal_all(self, signo: int) -> bool:
        """Signal the job's processes; False if there are some, and we may signal none of them."""
        pids = self._whom(self._all())
        return any([self._send(pid, signo) for pid in pids]) or not pids

    def _send(self, pid: int, signo: int, *, is_stop: bool = False) -> bool:
        """Send a signal; False if the process is another user's by now, and we may not signal it."""
        if not proc.send(pid, signo):
            return False
        if is_stop or signo == signal.SIGTERM:
            if self._life.rule.sends_hup or proc.is_interactive_shell(pid):
                proc.send(pid, signal.SIGHUP)  # such a shell restores its terminal and exits
            proc.send(pid, signal.SIGCONT)  # a stopped process must be able to react; systemd does the same
        return True

    def _still_runs(self) -> bool:
        """Look at the command: whether it has not ended."""
        self._reap()
        return self._status is None

    def _reap(self) -> None:
        """Process every change of a child: the command's end or stop, and those of adopted orphans."""
        changes = os.WEXITED | os.WSTOPPED | os.WCONTINUED
        while True:
            try:
                change = os.waitid(os.P_ALL, 0, changes | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if change is None:
                return
            if change.si_code in (os.CLD_STOPPED, os.CLD_CONTINUED):
                # The change that this call takes may be later than the one that was seen.
                change = os.waitid(os.P_PID, change.si_pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
                if change is not None and change.si_pid == self._pid:
                    self._job_control.command_changed(change.si_code)
                continue
            _, status, used = os.wait4(change.si_pid, 0)
            if change.si_pid == self._pid:
                self._status = status
                self._cpu = (used.ru_utime, used.ru_stime, used.ru_maxrss)
                self._step(Event("ended"))

    def _end_leftovers(self) -> int:
        """Wait for (linger) or end the command's leftovers; the number of ended processes."""
        ended: set[tuple[int, int]] = set()
        while left := living(self._others):
            pids = [pid for pid, _ in left]
            whom = self._whom(pids)
            self._step(Event("left", is_beside=not whom))
            if self._life.ends_leftovers(time.monotonic(), self._terms):
                ended.update(each for each in left if each[0] in whom)
            self._wait_for_any(pids)
            self._meet_deadlines()
        if os.WIFSIGNALED(self._status or 0):
            self._end_containers()  # it was docker's client, perhaps, whose container is about to be started
        return len(ended)

    def _wait_for_any(self, pids: list[int]) -> None:
        """Wait until one of the processes ends, a signal arrives, or something is due."""
        for info in wait_for_any(pids, _WAKING, self._left_s()):
            if info.si_signo in INTERRUPTS:
                self._signal_all(info.si_signo)  # the user ends the lingering
            else:
                self._handle(info)

    def _usage(self) -> Usage:
        if self._directory:
            return cgroup.usage(self._directory)
        user_s, system_s, maxrss_kib = self._cpu
        peak = proc.peak_bytes(maxrss_kib)
        if self._watchdog is not None:
            peak = max(peak, self._watchdog.peak_bytes)
        return Usage(
            cpu_s=user_s + system_s, cpu_user_s=user_s, cpu_system_s=system_s, memory_peak_bytes=peak or None
        )


def _is_shutdown(manager: Manager) -> bool:
    """Whether systemd, which has just asked the job to end, is shutting down."""
    try:
        from slicer.backend.shutdown import is_shutting_down
    except ImportError:  # slicer was uninstalled while the job ran
        return False
    return is_shutting_down(manager)
