"""The queue's side of its attempts: each is a process with an ordinary run, and a connection to it."""

from __future__ import annotations

import os
import resource
import signal
import socket
from typing import Any

from slicer import faults
from slicer.errors import BackendError, KeeperEnded, SlicerError
from slicer.job.following import Followed, error_of
from slicer.job.gpu_use import GpuUse
from slicer.job.supervisor import cannot_fork
from slicer.kernel import proc
from slicer.kernel.signals import STOP
from slicer.ledger.ledger import Ledger
from slicer.queue.engine.local.run import RunOrder, be_run
from slicer.queue.state.register import Register


class Run:
    """One attempt. ``pidfd``: its supervisor's."""

    def __init__(self, order: RunOrder, key: str, followed: Followed, pid: int) -> None:
        self.job_id = order.job
        self.key = key
        self.plan = order.plan
        self.pidfd = os.pidfd_open(pid)
        self.why: str | None = None  # it waits for its lease
        self.gpus: tuple[str, ...] = ()
        self.gpu_indices: tuple[int, ...] = ()
        self.vram_mib: int | None = None
        self.is_granted = self.is_unbound  # then there is nothing to wait for
        self.is_ready = False  # it waits for the word
        self.has_word = False  # it was told to go
        self.is_running = False
        self.error: SlicerError | None = None
        self.use: GpuUse | None = None
        self.told_mib = 0  # the last reported peak
        self.told_gpus: set[str] = set()  # on which it was reported to use too much
        self._pid = pid
        self._followed = followed

    @property
    def fd(self) -> int:
        return self._followed.fd

    @property
    def is_decided(self) -> bool:
        """Whether it has its lease, or knows that it has to wait."""
        return self.is_granted or self.is_gone or self.why is not None

    @property
    def is_unbound(self) -> bool:
        """Whether the job holds nothing that the ledger counts."""
        return self.plan.missing.is_nothing

    @property
    def may_be_early(self) -> bool:
        """Whether its scope may start before its turn: it blocks no other job, and has no time limit."""
        return self.is_unbound and self.plan.profile.timeout_s is None

    def hear(self) -> list[dict[str, Any]]:
        """Take what it has said; returns what is for people."""
        news: list[dict[str, Any]] = []
        for said in self._followed.heard():
            event = said["event"]
            if event == "waiting":
                self.why = said["why"]
            elif event == "acquired":
                self.is_granted = True
                self.gpus, self.gpu_indices = tuple(said["gpus"]), tuple(said["gpu_indices"])
                self.vram_mib = said["vram_mib"]
            elif event == "ready":
                self.is_ready = True
            elif event == "runs":
                self.is_running = True
            elif event == "error":
                self.error = error_of(said)
            else:
                news.append(said)
            if event == "used":
                self.use = GpuUse(
                    tuple(said["now_mib"]), tuple(said["peak_mib"]), said["utilisation"], said["looks"]
                )
        return news

    @property
    def is_gone(self) -> bool:
        """Whether it says no more."""
        return self._followed.has_ended

    def go(self) -> None:
        self.has_word = True
        faults.point("queue-letting-go")
        self._followed.go()
        faults.point("queue-let-go")

    def why_not(self) -> SlicerError:
        """Why it has ended without a command."""
        return self.error or KeeperEnded("its process was ended before the command could start")

    def stop(self) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, STOP)
        except ProcessLookupError:
            return  # it is ending by itself

    def hang_up(self) -> None:
        """Say no more. Without the word, this withdraws the job. Safe to repeat."""
        self._followed.close()

    def reap(self) -> None:
        """Wait for the process, which has ended or is about to, and close what was opened for it."""
        self._followed.close()
        os.waitpid(self._pid, 0)
        os.close(self.pidfd)


class Forks:
    def __init__(self, ledger: Ledger, mask: frozenset[int]) -> None:
        """``mask``: the signal mask for commands."""
        self._ledger = ledger
        self._mask = mask
        # Commands get the original limit. The queue needs a higher one: it has two descriptors for each job.
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[1], self._limits[1]))

    def begin(self, order: RunOrder, key: str, register: Register) -> Run:
        """Fork the process. Raises BackendError."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise BackendError(f"cannot create sockets: {error.strerror}", hint="see ulimit -n") from error
        attempts, logs = register.log_dir.attempts.fd, register.log_dir.directory.fd

        def duty() -> None:
            be_run(order, theirs, self._ledger, attempts, logs, self._mask, self._limits)

        with theirs:
            try:
                pid = os.fork()
            except OSError as error:
                ours.close()
                raise cannot_fork(error) from error
            if pid == 0:
                proc.be_child(duty)
        faults.point("queue-forked")
        return Run(order, key, Followed(ours), pid)
