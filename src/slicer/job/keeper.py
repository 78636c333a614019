"""The keeper: slicer's process in the job's scope, from the fork to the end of the scope.

The supervisor (:mod:`slicer.job.supervisor`) forks it and asks systemd to put it into the scope. There it
waits for its order, runs the command (:mod:`slicer.job.command`) and reports the command's end. It exits
after the supervisor has recorded the outcome; if the supervisor is dead, it records the outcome itself. Each
of the two notices the other's death as the end of a pipe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from slicer import faults
from slicer.errors import EX_NOT_EXECUTABLE
from slicer.job.job import ORDER_END, OWN_OUTPUT, QUIT, RECORDED, STARTING, Started
from slicer.kernel import proc
from slicer.kernel.signals import SYSTEMD_STOPS, signal
from slicer.ledger.held_lease import HeldLease
from slicer.model import KEEPER, Lease, Usage
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend import Backend
    from slicer.job.command import Output, Task
    from slicer.job.job import Job
    from slicer.job.report import KeeperReport
    from slicer.ledger.ledger import Ledger
    from slicer.model import Outcome

_SCOPE_DEADLINE_S = 5.0


class Redirection:
    """Sends the command's output to other descriptors than slicer's own. Only the command keeps them."""

    pid = 0  # nobody passes the output on

    def __init__(self, stdout: int, stderr: int, *, is_kept: bool = False) -> None:
        """``is_kept``: for messages of slicer they stay open."""
        self.stdout = stdout
        self.stderr = stderr
        self._kept = {1, 2, stdout, stderr} if is_kept else {1, 2}

    def handed_over(self) -> None:
        """Close our descriptors, so that a reader gets the end of file."""
        for fd in {self.stdout, self.stderr} - self._kept:
            os.close(fd)

    def finish(self) -> None:
        """Nothing to wait for: the command writes directly."""


class Keeper:
    """One keeper. ``supervisor`` is a pid, ``up_write`` and ``down_read`` are ends of the pipes."""

    def __init__(
        self, job: Job, backend: Backend, ledger: Ledger, mask: frozenset[int], supervisor: int,
        up_write: int, down_read: int,
    ) -> None:  # fmt: skip
        self._job = job
        self._backend = backend
        self._ledger = ledger
        self._mask = mask
        self._supervisor = supervisor
        self._up_write = up_write
        self._down_read = down_read
        self._early: list[int] = []  # signals for the command that arrived before it started

    def run(self, descriptors: tuple[int, ...]) -> None:
        """From the fork to the end of the scope; ``descriptors`` hold the ticket or the lease."""
        from slicer.job.command import Task
        from slicer.job.stop_rule import rule_of
        from slicer.state.statefile import END, decode

        job, profile = self._job, self._job.profile
        self._watchdog = self._backend.watchdog(job.spec)
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(KEEPER.encode())
        proc.retitle(f"slicer: {job.spec.description}")  # our own title would repeat the command's words
        if self._backend.name == "systemd":
            proc.adopt_orphans()  # including those that leave the scope
        faults.point("keeper-forked")
        order = self._wait_for_order()
        if order is None:
            self._ledger.give_back(job.id, lambda: _close(descriptors))
        if not order:
            return
        faults.point("keeper-ordered")
        head, _, tail = order.partition(END)
        started, lease = decode(Started, head + END), decode(Lease, tail)
        self._held = HeldLease(self._ledger, lease, descriptors[0] if descriptors else -1)
        if job.has_share_file:
            from slicer.job import sharing

            self._share_file = sharing.keep_file(job, self._held)
        env, docker = job.variables(self._held), job.docker
        task = Task(
            program=job.program, command=job.words(lease.gpus), env=env,
            scope=job.spec.unit if self._backend.name == "systemd" else "", timeout_s=profile.timeout_s,
            stop=rule_of(profile), linger=profile.linger, supervisor=self._supervisor,
            by="slicer queue" if job.queue else "slicer run",
            inherited=(*descriptors, *self._ledger.joined.values()), mask=self._mask,
            manager=job.spec.manager, log_mib=job.log_mib,
            has_lost_caller=self._has_lost_caller if job.ends_with_caller else None, cgroup=started.cgroup,
            end_containers=None if docker is None else lambda: docker.end(job.id, started.cgroup, env),
        )  # fmt: skip
        self._held.note_begun()
        report, usage = self._run(task, started)
        faults.point("keeper-ended")
        self._end(started, report, usage)

    # -- before the command --------------------------------------------------------------------------------

    def _wait_for_order(self) -> bytes | None:
        """The order, which needs scope and lease; empty: no job; None: the supervisor is dead."""
        word = os.read(self._down_read, 1)
        if word != STARTING:
            return b"" if word else None
        # SIGIO announces a readable pipe, so one call waits for the pipe and for signals. A SIGTERM that is
        # not the supervisor's is for all in the scope. systemd stops the scope of a job that still waits.
        fcntl.fcntl(self._down_read, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._down_read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        order = b""
        while not order.endswith(ORDER_END) and order != QUIT:
            try:
                more = os.read(self._down_read, 65536)
            except BlockingIOError:
                info = signal.sigwaitinfo({signal.SIGIO, signal.SIGTERM, SYSTEMD_STOPS})
                if info.si_signo == SYSTEMD_STOPS and proc.is_systemd(info.si_pid):
                    return b""
                if info.si_signo == signal.SIGTERM:
                    if info.si_pid != self._supervisor:
                        return b""
                    self._early.append(info.si_signo)  # for the command, whose order is on its way
                continue
            if not more:
                self._await_scope()
                return None
            order += more
        if not self._job.ends_with_caller:  # else SIGIO must announce the supervisor's death
            fcntl.fcntl(self._down_read, fcntl.F_SETFL, 0)
        signal.sigtimedwait({signal.SIGIO}, 0)
        if self._job.ends_with_caller and self._has_lost_caller():
            return None
        return order.removesuffix(ORDER_END) if order != QUIT else b""

    def _has_lost_caller(self) -> bool:
        """Whether the supervisor is dead: nobody has the other end of the pipe. Does not block."""
        try:
            return not os.read(self._down_read, 1)
        except BlockingIOError:
            return False

    def _await_scope(self) -> None:
        """Let systemd put us into the scope before we exit: a scope that nobody enters stays forever."""
        from slicer.kernel import cgroup

        end = time.monotonic() + _SCOPE_DEADLINE_S
        while self._backend.name == "systemd" and time.monotonic() < end:
            if cgroup.of("self").endswith(f"/{self._job.spec.unit}"):
                return
            time.sleep(0.01)

    # -- the command ---------------------------------------------------------------------------------------

    def _run(self, task: Task, started: Started) -> tuple[KeeperReport, Usage]:
        from slicer.job.command import Command
        from slicer.job.report import KeeperReport

        job = self._job
        try:
            output = self._output()
        except OSError as error:
            return KeeperReport(1, "unknown", exec_errno=error.errno or errno.EIO), Usage()
        try:
            if job.directory:
                os.chdir(job.directory)
            if job.copy:
                from slicer.job import snapshot

                os.set_inheritable(snapshot.hold(job.copy), True)  # until no process of the job is left
        except OSError as error:
            self._say(f"cannot run in {job.directory}: {error.strerror}")
            return KeeperReport(1, "exited", EX_NOT_EXECUTABLE << 8), Usage()
        members = self._backend.members(started.cgroup, output.pid if output else 0)
        command = Command(task, self._tell, self._watchdog, members, output)
        report, usage = command.run(started.began, self._early)
        if report.exec_errno:
            from slicer.job.program import cannot_execute

            self._say(str(cannot_execute(job.program, report.exec_errno)))
        return report, usage

    def _say(self, text: str) -> None:
        """Add a line to the command's output, if it goes to a file of its own."""
        if self._job.attempt is not None:
            self._job.attempt.say(text)

    def _output(self) -> Output | None:
        job = self._job
        if job.attempt is not None:
            return job.attempt.begin()
        if job.with_journal:
            from slicer.job.tee import Tee

            return Tee(job.spec.unit, job.name, job.output)
        if job.output == OWN_OUTPUT:
            return None
        return Redirection(*job.output)

    def _tell(self, report: KeeperReport, usage: Usage) -> None:
        from slicer.job.report import pack

        try:
            is_alive = os.getppid() == self._supervisor
            if is_alive and report.is_final:
                os.kill(self._supervisor, signal.SIGCONT)  # if stopped with Ctrl-Z, it would keep the lease
            os.write(self._up_write, pack(report, usage))
            if is_alive:
                os.kill(self._supervisor, signal.SIGCHLD)
        except (BrokenPipeError, ProcessLookupError):
            pass  # the supervisor is dead; the keeper finishes alone

    # -- after the command ---------------------------------------------------------------------------------

    def _end(self, started: Started, report: KeeperReport, usage: Usage) -> None:
        self._tell(report, usage)
        faults.point("keeper-told")
        os.close(self._up_write)
        os.set_blocking(self._down_read, True)
        if os.read(self._down_read, 1) != RECORDED:
            self._finish_alone(started, report, usage)

    def _finish_alone(self, started: Started, report: KeeperReport, usage: Usage) -> None:
        """The supervisor is dead. It may have recorded the outcome, but history keeps one row per job."""
        from slicer.job import ending

        if self._job.reruns is not None:  # nobody is left who would run it again
            self._job.reruns.is_over = True
        if report.exec_errno:
            ending.release(self._job, self._held)
        else:
            watch = ending.gpu_watch(self._job, self._held, self._ledger, lambda _: None)
            outcome = self._outcome(started, report, usage)
            ending.finish(self._job, outcome, self._held, lambda _: None, watch)
        ending.forget(self._job, self._held)

    def _outcome(self, started: Started, report: KeeperReport, usage: Usage) -> Outcome:
        from slicer.job import ending

        if self._job.fence is not None:  # the supervisor has set it since our fork
            from slicer.job.fencing import fenced

            self._job = fenced(self._job, self._held.lease.gpus)
        enforced = self._backend.enforced(self._job.spec, started.cgroup)
        self._held.lease = replace(self._held.lease, vram_peak_mib=ending.peaks_written(self._held))
        return ending.outcome_of(
            self._job, started, report, usage, self._held, enforced, was_watched=False
        )


def _close(descriptors: tuple[int, ...]) -> None:
    for fd in descriptors:
        os.close(fd)
