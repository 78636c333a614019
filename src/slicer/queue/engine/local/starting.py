"""The jobs between their leases and their commands: their scopes are being started."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from slicer import faults
from slicer.errors import SlicerError
from slicer.job.plan import Plan
from slicer.kernel import proc
from slicer.ledger.ledger import Ledger
from slicer.queue.engine import ended_attempt
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.local.gpu_use import QueueMonitor
from slicer.queue.engine.local.lease_requests import GrantedJob
from slicer.queue.engine.local.running import RunningJobs
from slicer.queue.engine.local.starters import Backends, Starters
from slicer.queue.engine.local.supervisor import QueueSupervisor, is_unbound
from slicer.queue.model import JobState
from slicer.queue.state import folding
from slicer.queue.state.register import Register
from slicer.record import replace

if TYPE_CHECKING:
    from slicer.job.job import Listener


_MOST_STARTING = 64  # at a time: the kernel limits the messages to the starters
_MOST_AHEAD = 8  # jobs without a demand whose scopes are started before their turn
_SPARE_FDS = 40  # for files that are open for a moment, and for waiting


class StartingJobs:
    """Starts jobs that have their leases, and passes them to ``running`` once their commands run.

    At most ``at_a_time`` jobs start or run (None: as many as the ledger allows). The ledger does not limit
    jobs without a demand; of these at most ``most_unbound`` run (None: no limit of their own).
    """

    def __init__(
        self, ledger: Ledger, backends: Backends, starters: Starters, register: Register,
        monitor: QueueMonitor, running: RunningJobs, listener: Listener, *, at_a_time: int | None,
        most_unbound: int | None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._backends = backends
        self._starters = starters
        self._register = register
        self._monitor = monitor
        self._running = running
        self._listener = listener
        self._at_a_time = at_a_time
        self._most_unbound = most_unbound
        self._directory = os.getcwd()
        self._jobs: dict[str, QueueSupervisor] = {}  # by their ids
        self._told_of_limit = False
        self._told_of_sharing: set[str] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def gpus(self) -> frozenset[str]:
        leases = [*self._running.leases(), *(job.held.lease for job in self._jobs.values())]
        return frozenset(uuid for lease in leases for uuid in lease.gpus)

    # -- limits ------------------------------------------------------------------------------------------

    def may_add(self, plan: Plan) -> bool:
        """Whether its scope may start now. A job with a time limit, counted from then, is never early."""
        if len(self._jobs) >= _MOST_STARTING or self._lacks_descriptors():
            return False
        if not plan.missing.is_nothing:
            return self._is_below_limit()
        if plan.profile.timeout_s is None:
            return self._ahead() < _MOST_AHEAD
        return not self._ahead() and self._has_place()

    def _ahead(self) -> int:
        """The number of scopes started early. Their jobs hold nothing, so they block no other job."""
        return sum(job.may_be_early for job in self._jobs.values())

    def _is_below_limit(self, earlier: int = 0) -> bool:
        count = len(self._jobs) - self._ahead() + len(self._running) + earlier
        return self._at_a_time is None or count < self._at_a_time

    def _has_place(self, earlier: int = 0) -> bool:
        """Whether one more job without a demand may run, besides ``earlier`` ones that are about to run."""
        due = sum(is_unbound(job.held.lease) for job in self._jobs.values()) - self._ahead() + earlier
        is_below = self._most_unbound is None or due + self._running.unbound() < self._most_unbound
        return is_below and self._is_below_limit(earlier)

    def _lacks_descriptors(self) -> bool:
        """Whether too few descriptors are left for one more job. A single job can always be started."""
        fd = os.dup(self._register.log_dir.directory.fd)  # the lowest that is free
        os.close(fd)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_alone = not self._jobs and self._running.is_empty
        is_short = not is_alone and fd >= limit - _SPARE_FDS
        if is_short and not self._told_of_limit:
            self._told_of_limit = True
            count = len(self._jobs) + len(self._running)
            self._listener.warning(
                f"at most {count} jobs at a time: few of {limit} descriptors are left (ulimit -Hn)"
            )
        return is_short

    # -- starting ----------------------------------------------------------------------------------------

    def add(self, granted: GrantedJob, state: JobState) -> bool:
        """Start its scope; False: no room for its attempt file. Raises BackendError, StateError."""
        job_id, lease = granted.job.id, granted.held.lease
        if not self._register.reserve(job_id):
            granted.held.release()
            return False
        attempt = state.attempts + 1
        log = self._register.log_dir.log_name(state.no, attempt)
        directory = os.path.join(self._directory, granted.entry.attributes.cwd)
        self._register.do(
            folding.begun(
                state.key, job_id, boot_id=proc.boot_id(), attempt=attempt, log=log, gpus=lease.gpus,
                gpu_indices=[self._monitor.index(uuid) for uuid in lease.gpus], vram_mib=lease.vram_mib,
                at=time.time(),
            )
        )  # fmt: skip
        job = QueueSupervisor(
            state.key, replace(granted.job, log=f"{self._register.log_dir.path}/{log}", directory=directory),
            self._backends.of(granted.job.broker), self._starters, self._register.log_dir, self._ledger,
            self._listener,
        )  # fmt: skip
        self._jobs[job_id] = job
        problem = job.sharing.problem if job.sharing is not None else ""
        if problem and problem not in self._told_of_sharing:
            self._told_of_sharing.add(problem)
            self._listener.warning(f"no turns are taken (share): {problem}")
        try:
            job.start(granted.held, granted.waited_s)
        except BaseException:
            self.give_up(job_id)
            raise
        return True

    def give_up(self, job_id: str) -> None:
        """Release the job's lease. Its attempt has not begun, and does not count."""
        job = self._jobs[job_id]
        job.abandon()
        del self._jobs[job_id]
        self._register.do(folding.unbegun(job.key, job_id))
        self._register.forget(job_id)

    def start_commands(self) -> tuple[list[str], list[tuple[str, SlicerError]]]:
        """Start the commands whose scopes are ready and whose turn it is.

        Returns the keys of the jobs that run now, and of those that could not be started. To be called only
        when the register is saved, so that the attempts are on the disk before they begin.
        """
        started: list[str] = []
        failed: list[tuple[str, SlicerError]] = []
        earlier = 0  # early jobs whose scopes are not ready yet: later ones must not take their places
        for job_id, job in list(self._jobs.items()):
            try:
                if not job.is_ready():
                    earlier += job.may_be_early
                    continue
                if job.may_be_early and not self._has_place(earlier):
                    continue
                faults.point("queue-letting-go")
                job.start_command()
                faults.point("queue-let-go")
            except SlicerError as error:
                self.give_up(job_id)
                failed.append((job.key, error))
                continue
            del self._jobs[job_id]
            self._running.add(job)
            started.append(job.key)
        return started, failed

    def key_of(self, job_id: str) -> str | None:
        job = self._jobs.get(job_id)
        return job.key if job is not None else None

    # -- waiting -----------------------------------------------------------------------------------------

    def descriptors(self) -> list[int]:
        """The descriptors; readable when a scope is ready, or a keeper was killed."""
        # The starters' answers are taken when commands may start, which waits for the register. If they were
        # watched meanwhile, they would wake us again and again.
        found = self._starters.descriptors() if self._jobs and self._register.is_saved else []
        return found + [job.pidfd for job in self._jobs.values() if job.pidfd >= 0]

    def take_killed(self, ready: Collection[int]) -> list[EndedAttempt]:
        """The attempts whose keepers were killed before their commands started."""
        killed = [job for job in self._jobs.values() if job.pidfd in ready]
        for job in killed:
            del self._jobs[job.job_id]
            job.abandon()
        return [ended_attempt.unbegun(job.key, job.job_id) for job in killed]
