"""Jobs that are not this queue's children: an earlier queue began them, or their supervisors were killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from slicer.errors import SlicerError, StateError
from slicer.job.gpu_use import GpuUse
from slicer.job.pause import thaw_to_end
from slicer.job.plan import backend_of
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import STOP
from slicer.kernel.sleep import seconds_until
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.model import Lease, manager_of
from slicer.queue.engine import ended_attempt
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.state.attempt import AttemptFile

if TYPE_CHECKING:
    from slicer.backend import Backend
    from slicer.job.job import Listener

_ORPHANS_S = 0.25  # how often to check jobs without a keeper, whose end causes no event


class AdoptedJobs:
    """All of them, by their ids. ``attempt`` reads a job's attempt file."""

    attempt: Callable[[str], AttemptFile | None]

    def __init__(self, ledger: Ledger, usual: Backend, wanted: str, listener: Listener) -> None:
        """``usual``: the backend of this queue's jobs; ``wanted``: the one that --backend names."""
        self.jobs: dict[str, Adopted] = {}
        self._ledger = ledger
        self._usual = usual
        self._wanted = wanted
        self._listener = listener
        self._orphans_at = 0.0  # monotonic

    def add(self, key: str, job_id: str) -> bool:
        """Whether the attempt still runs; then it is adopted."""
        found = self.attempt(job_id)
        with self._ledger.locked():
            lease = next((each for each in self._ledger.leases() if each.job == job_id), None)
        has_ended = found is not None and found.outcome is not None
        if has_ended or (lease is None and (found is None or not found.is_alive)):
            return False
        self.jobs[job_id] = Adopted(key, job_id, self.attempt, lease, self._ledger)
        return True

    def descriptors(self) -> list[int]:
        return [job.pidfd for job in self.jobs.values() if job.pidfd >= 0]

    def left_s(self) -> float | None:
        """The seconds until :meth:`take_ended` is due without an event; None: never."""
        has_orphans = any(job.pidfd < 0 for job in self.jobs.values())
        return seconds_until(self._orphans_at) if has_orphans else None

    def take_ended(self, ready: Collection[int]) -> Iterator[tuple[Adopted, EndedAttempt]]:
        is_time = time.monotonic() >= self._orphans_at
        for job_id, job in list(self.jobs.items()):
            had_keeper = job.pidfd >= 0
            if not (job.pidfd in ready if had_keeper else is_time):
                continue
            if job.is_gone():
                del self.jobs[job_id]
                job.close()
                found = self.attempt(job_id)
                yield job, ended_attempt.recovered(job.key, job_id, found, None, self._listener.warning)
            elif had_keeper and job.pidfd < 0:
                self._end(job)  # nobody else would
        if is_time:
            self._orphans_at = time.monotonic() + _ORPHANS_S

    def look(self) -> Iterator[tuple[Adopted, str, int]]:
        """Read the peaks that the jobs' supervisors have written down; those beyond the declaration."""
        with self._ledger.locked():
            leases = {each.job: each for each in self._ledger.leases()}
        for job in self.jobs.values():
            lease = leases.get(job.job_id)
            if lease is not None and job.held is not None:
                job.held.lease = lease
                for uuid, mib in zip(lease.gpus, lease.vram_peak_mib, strict=False):
                    if mib > (lease.vram_mib or mib):
                        yield job, uuid, mib

    def stop(self, key: str | None) -> None:
        for job in self.jobs.values():
            if key in (None, job.key):
                self._end(job)

    def _end(self, job: Adopted) -> None:
        """Have the keeper end it. Without a keeper, end it."""
        if job.pidfd >= 0:
            with suppress(ProcessLookupError):  # it is ending by itself
                signal.pidfd_send_signal(job.pidfd, STOP)
        if job.held is None:
            return
        lease = job.held.lease
        try:
            thaw_to_end(lease, self._ledger)
            if job.pidfd < 0:
                if lease.cgroup:
                    cgroup.signal_all(lease.cgroup, signal.SIGTERM)  # systemd would tell the keeper alone
                is_own = lease.manager == manager_of(os.geteuid())
                backend = backend_of(self._wanted) if is_own else self._usual
                backend.request_end(lease.job, lease.unit)
        except SlicerError as error:
            self._listener.warning(str(error))


class Adopted:
    """One of them. ``pidfd``: its keeper's, or -1; ``held``: its lease, or None."""

    def __init__(
        self, key: str, job_id: str, attempt: Callable[[str], AttemptFile | None], lease: Lease | None,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        """``attempt`` reads a job's attempt file."""
        self.key = key
        self.job_id = job_id
        self.told_gpus: set[str] = set()  # on which it was reported to use too much
        self._attempt = attempt
        self._ledger = ledger
        self.held = _held(ledger, lease) if lease is not None else None
        self.pidfd = -1
        self._find_keeper()

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.held.lease.gpus if self.held is not None else ()

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        return self.held.lease.gpu_indices if self.held is not None else ()

    @property
    def use(self) -> GpuUse | None:
        return GpuUse((), self.held.lease.vram_peak_mib, None, 0) if self.held is not None else None

    @property
    def is_unbound(self) -> bool:
        lease = self.held.lease if self.held is not None else None
        return lease is not None and not lease.gpus and not lease.slots

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
            if found is not None and found.outcome is not None:
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
