"""The queue's jobs whose commands run, until their keepers have also ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from slicer.errors import SlicerError, StateError
from slicer.job.pause import thaw_to_end
from slicer.job.scope_watch import ScopeWatch
from slicer.job.stop import note
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import STOP
from slicer.kernel.sleep import seconds_until, soonest
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.model import Lease
from slicer.queue.engine import ended_attempt
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.local.gpu_use import QueueMonitor
from slicer.queue.engine.local.sampling import QueueSampler
from slicer.queue.engine.local.starters import Backends
from slicer.queue.engine.local.supervisor import QueueSupervisor, is_unbound
from slicer.queue.model import JobState
from slicer.queue.state.attempt import AttemptFile
from slicer.queue.state.register import Register

if TYPE_CHECKING:
    from slicer.job.job import Listener
    from slicer.ledger.control_log import Kind


_CLEAN_UP_AGAIN_S = 1.0  # after no process could be forked for it
_SWEEP_S = 60.0  # between two searches for empty scopes
_ORPHANS_S = 0.25  # how often to check jobs without a keeper, whose end causes no event


class RunningJobs:
    """All running jobs, by their ids: this queue's own, and those adopted from a dead one."""

    def __init__(
        self, ledger: Ledger, backends: Backends, register: Register, monitor: QueueMonitor,
        listener: Listener, broker: str,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._backends = backends
        self._register = register
        self._monitor = monitor
        self._sampler = QueueSampler(monitor, broker, listener.warning)
        self._listener = listener
        self._running: dict[str, QueueSupervisor] = {}
        self._ended: dict[str, QueueSupervisor] = {}  # their commands have ended, their keepers have not
        self._adopted: dict[str, Adopted] = {}
        self._scopes = ScopeWatch(ledger.directory, listener.warning)
        self._orphans_at = 0.0  # monotonic
        self._sweep_at = 0.0  # monotonic
        self._clean_up_at: dict[str, float] = {}  # monotonic: of jobs whose keepers were killed

    def __len__(self) -> int:
        return len(self._running) + len(self._adopted)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to wait for."""
        return not (self._running or self._ended or self._adopted)

    def leases(self) -> Iterator[Lease]:
        for job in self._running.values():
            yield job.held.lease
        for adopted in self._adopted.values():
            if adopted.held is not None:
                yield adopted.held.lease

    def unbound(self) -> int:
        return sum(map(is_unbound, self.leases()))

    def add(self, job: QueueSupervisor) -> None:
        """The job's command has started. Raises NoGpu, GpuError."""
        self._running[job.job_id] = job
        self._scopes.follow(job.held.lease, job.limit_at)
        self._sampler.follow(job.held)
        self._monitor.follow(job.held, shares=job.sharing is not None)

    def recover(self, state: JobState) -> EndedAttempt | None:
        """The end of an attempt that an earlier queue began; None: it still runs, and is adopted."""
        found = self._register.attempt(state.job)
        with self._ledger.locked():
            lease = next((each for each in self._ledger.leases() if each.job == state.job), None)
        is_over = found is not None and found.is_final
        if is_over or (lease is None and (found is None or not found.is_alive)):
            return self._recovered(state.key, state.job, state.boot_id)
        adopted = Adopted(state.key, state.job, self._register.attempt, lease, self._ledger)
        self._adopted[state.job] = adopted
        if adopted.held is not None:
            self._scopes.follow(adopted.held.lease, None)
            self._sampler.follow(adopted.held)
            self._monitor.follow(adopted.held, shares=True)
        return None

    # -- events ------------------------------------------------------------------------------------------

    def descriptors(self) -> list[int]:
        """Readable when something happened to any of the jobs."""
        found: list[int] = []
        for job in self._running.values():
            if job.job_id not in self._clean_up_at:  # otherwise its end is known already
                found += [job.pidfd] if job.keeper_was_killed else [job.pidfd, job.reports]
        found += [job.pidfd for job in self._ended.values()]
        return found + [adopted.pidfd for adopted in self._adopted.values() if adopted.pidfd >= 0]

    def urgent(self) -> list[int]:
        """The same for descriptors with exceptional events instead of data."""
        return self._scopes.descriptors()

    def left_s(self) -> float | None:
        """The seconds until :meth:`take_ended` is due without an event; None: never."""
        has_orphans = any(adopted.pidfd < 0 for adopted in self._adopted.values())
        due_s = seconds_until(self._orphans_at if has_orphans else None, *self._clean_up_at.values())
        return soonest(due_s, self._scopes.left_s(), self._sampler.left_s())

    def take_ended(self, ready: Collection[int]) -> list[EndedAttempt]:
        """Process events; the attempts that are over. ``ready``: the readable descriptors."""
        self._scopes.take(ready)
        self._sampler.take()
        found = [*self._take_running(ready)]
        self._take_keepers()
        return [*found, *self._take_adopted(ready)]

    def _take_running(self, ready: Collection[int]) -> Iterator[EndedAttempt]:
        for job in list(self._running.values()):
            clean_up_at = self._clean_up_at.get(job.job_id)
            is_due = clean_up_at is not None and time.monotonic() >= clean_up_at
            if is_due or job.pidfd in ready or job.reports in ready:
                ended = self._hear(job)
                if ended is not None:
                    yield ended

    def _hear(self, job: QueueSupervisor) -> EndedAttempt | None:
        """Process the job's events; its end, if it is over."""
        job_id = job.job_id
        if not job.keeper_was_killed:
            job.listen()
        if job.said is not None:
            self._ended[job_id] = self._running.pop(job_id)
            self._scopes.forget(job_id)
            self._monitor.has_ended(job_id)
            self._sampler.has_ended(job_id)
            self._sweep(job)
            return ended_attempt.reported(job.key, job_id, *job.said, self._monitor.use_of(job_id))
        if not job.is_gone():
            return None
        if job.keeper_was_killed:
            del self._running[job_id]
            job.close()
            return self._recovered(job.key, job_id)
        if self._register.attempt(job_id) is not None:  # a child does its keeper's duties, maybe later
            self._clean_up_at.pop(job_id, None)
            if not job.clean_up():
                self._clean_up_at[job_id] = time.monotonic() + _CLEAN_UP_AGAIN_S
            return None
        del self._running[job_id]
        self._monitor.forget(job_id)
        self._sampler.has_ended(job_id)
        job.abandon()
        return ended_attempt.unbegun(job.key, job_id)

    def _sweep(self, job: QueueSupervisor) -> None:
        """Stop empty scopes of killed keepers and starters. If only queues run, no one else does."""
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_S
            job.stop_empty_scopes()

    def _take_keepers(self) -> None:
        """Forget jobs whose keepers have ended; tell the other keepers if their GPUs are free."""
        free = self._monitor.settled(self._listener.warning)
        for job_id, job in list(self._ended.items()):
            if job_id in free:
                job.gpus_are_free()
            if job.is_gone():
                del self._ended[job_id]
                self._monitor.forget(job_id)
                job.close()

    def _take_adopted(self, ready: Collection[int]) -> Iterator[EndedAttempt]:
        is_time = time.monotonic() >= self._orphans_at
        for job_id, adopted in list(self._adopted.items()):
            had_keeper = adopted.pidfd >= 0
            if not (adopted.pidfd in ready if had_keeper else is_time):
                continue
            if adopted.is_gone():
                del self._adopted[job_id]
                adopted.close()
                yield self._recovered(adopted.key, job_id)
            elif had_keeper and adopted.pidfd < 0:
                self._stop(adopted)  # like an own job whose keeper was killed
        if is_time:
            self._orphans_at = time.monotonic() + _ORPHANS_S

    def _recovered(self, key: str, job_id: str, boot_id: str = "") -> EndedAttempt:
        self._scopes.forget(job_id)
        self._sampler.has_ended(job_id)
        found, use = self._register.attempt(job_id), self._monitor.forget(job_id)
        return ended_attempt.recovered(key, job_id, found, use, self._listener.warning, boot_id)

    def close(self) -> None:
        """Write what was sampled."""
        self._sampler.write()

    # -- ending ------------------------------------------------------------------------------------------

    def stop(self, key: str | None) -> None:
        """Ask a job to end; None: all jobs."""
        jobs: list[QueueSupervisor | Adopted] = [*self._running.values(), *self._adopted.values()]
        for job in jobs:
            if key in (None, job.key):
                self._stop(job)

    def end_for(self, job_id: str, kind: Kind) -> None:
        job = self._running.get(job_id) or self._adopted.get(job_id)
        if job is not None and job.held is not None:
            note(job.held.lease, self._ledger, kind)
            self._stop(job)

    def _stop(self, job: QueueSupervisor | Adopted) -> None:
        """Ask the keeper to end it: SIGTERM, and SIGKILL after its stop timeout. Without a keeper, end it."""
        if job.pidfd >= 0:
            with suppress(ProcessLookupError):  # it is ending by itself
                signal.pidfd_send_signal(job.pidfd, STOP)
        if job.held is None:
            return
        lease = job.held.lease
        try:
            thaw_to_end(lease, self._ledger)
        except SlicerError as error:
            self._listener.warning(str(error))
        try:
            if job.pidfd < 0:
                if lease.cgroup:
                    cgroup.signal_all(lease.cgroup, signal.SIGTERM)  # systemd would tell the keeper alone
                self._backends.of_lease(lease).request_end(lease.job, lease.unit)
        except SlicerError as error:
            self._listener.warning(str(error))


class Adopted:
    """A running job that is not our child. ``pidfd``: its keeper's, or -1; ``held``: its lease, or None."""

    def __init__(
        self, key: str, job_id: str, attempt: Callable[[str], AttemptFile | None], lease: Lease | None,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        """``attempt`` reads a job's attempt file."""
        self.key = key
        self.job_id = job_id
        self._attempt = attempt
        self._ledger = ledger
        self.held = _held(ledger, lease) if lease is not None else None
        self.pidfd = -1
        self._find_keeper()

    def _find_keeper(self) -> None:
        found = self._attempt(self.job_id)
        if found is not None and found.is_alive and found.keeper:
            try:
                self.pidfd = os.pidfd_open(found.keeper)
            except OSError:
                return
            if proc.start_time(found.keeper) != found.keeper_start:  # another process has the pid
                self._close_pidfd()

    def is_gone(self) -> bool:
        """Whether the job has no processes any more."""
        if self.pidfd >= 0:
            if not proc.has_ended(self.pidfd):
                return False
            self._close_pidfd()
            found = self._attempt(self.job_id)
            if found is not None and found.is_final:
                return True
        else:
            self._find_keeper()  # it may have recorded the command's start just now
            if self.pidfd >= 0:
                return False
        # There is no visible keeper. The lease lasts as long as the job.
        with self._ledger.locked():
            return all(lease.job != self.job_id for lease in self._ledger.leases())

    def close(self) -> None:
        """Close all descriptors. Safe to repeat."""
        self._close_pidfd()
        if self.held is not None:
            self.held.close()

    def _close_pidfd(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _held(ledger: Ledger, lease: Lease) -> HeldLease:
    """A writable lease, not flocked: the keeper holds the flock."""
    try:
        return HeldLease(ledger, lease, ledger.directory.leases.open(lease.job, os.O_RDONLY))
    except (OSError, StateError):
        return HeldLease(ledger, lease)
