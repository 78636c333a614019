"""Jobs that are not this queue's children: an earlier queue began them, or their supervisors were killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from slicer.backend import Backend
from slicer.errors import SlicerError
from slicer.job.gpu_use import GpuUse
from slicer.job.pause import thaw_to_end
from slicer.job.plan import backend_of
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import STOP
from slicer.kernel.sleep import seconds_until
from slicer.ledger.ledger import Ledger
from slicer.model import Lease, manager_of
from slicer.queue.engine import ended_attempt
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.events import Events
from slicer.queue.state.register import Register

_ORPHANS_S = 0.25  # how often to check jobs without a keeper, whose end causes no event


class AdoptedJobs:
    """All of them, by their ids."""

    def __init__(
        self, register: Register, ledger: Ledger, usual: Backend, wanted: str, events: Events
    ) -> None:
        """``usual``: the backend of this queue's jobs; ``wanted``: the one that --backend names."""
        self.jobs: dict[str, Adopted] = {}
        self._register = register
        self._ledger = ledger
        self._usual = usual
        self._wanted = wanted
        self._events = events
        self._orphans_at = 0.0  # monotonic

    def adopt(
        self, key: str, job_id: str, boot_id: str = "", use: GpuUse | None = None
    ) -> EndedAttempt | None:
        """Adopt the attempt if it still runs, and return None; else its end. ``boot_id``: "" unknown."""
        found, lease = self._register.attempt(job_id), self._leases().get(job_id)
        has_ended = found is not None and found.outcome is not None
        if has_ended or (lease is None and (found is None or not found.is_alive)):
            return self._end_of(key, job_id, boot_id, use)
        self.jobs[job_id] = Adopted(key, job_id, lease)
        self._find_keeper(self.jobs[job_id])
        return None

    def _end_of(self, key: str, job_id: str, boot_id: str = "", use: GpuUse | None = None) -> EndedAttempt:
        found = self._register.attempt(job_id)  # only now, as it may have ended a moment ago
        return ended_attempt.recovered(key, job_id, found, use, self._events.warning, boot_id)

    def _leases(self) -> dict[str, Lease]:
        with self._ledger.locked():
            return {lease.job: lease for lease in self._ledger.leases()}

    def _find_keeper(self, job: Adopted) -> bool:
        found = self._register.attempt(job.job_id)
        if found is not None and found.is_alive and found.keeper:
            with suppress(OSError):  # no descriptor is left: it is found at another look
                job.pidfd = proc.open_process(found.keeper, found.keeper_start)
        return job.pidfd is not None

    def descriptors(self) -> list[int]:
        return [job.pidfd for job in self.jobs.values() if job.pidfd is not None]

    def left_s(self) -> float | None:
        """The seconds until :meth:`take_ended` is due without an event; None: never."""
        has_orphans = any(job.pidfd is None for job in self.jobs.values())
        return seconds_until(self._orphans_at) if has_orphans else None

    def take_ended(self, ready: Collection[int]) -> Iterator[tuple[Adopted, EndedAttempt]]:
        is_time = time.monotonic() >= self._orphans_at
        for job_id, job in list(self.jobs.items()):
            had_keeper = job.pidfd is not None
            if not (job.pidfd in ready if had_keeper else is_time):
                continue
            if self._is_gone(job):
                del self.jobs[job_id]
                job.close()
                yield job, self._end_of(job.key, job_id)
            elif had_keeper and job.pidfd is None:
                self._stop(job)  # nobody else would
        if is_time:
            self._orphans_at = time.monotonic() + _ORPHANS_S

    def _is_gone(self, job: Adopted) -> bool:
        """Whether the job has no processes any more."""
        if job.pidfd is None:
            if self._find_keeper(job):  # it may have recorded the command's start just now
                return False
        elif not proc.has_ended(job.pidfd):
            return False
        else:
            job.close()
            found = self._register.attempt(job.job_id)
            if found is not None and found.outcome is not None:
                return True
        return job.job_id not in self._leases()  # no keeper is visible; the lease lasts as long as the job

    def look(self) -> Iterator[tuple[Adopted, Lease, str, int]]:
        """Read the peaks that the jobs' supervisors have written down; those beyond the declaration."""
        leases = self._leases()
        for job in self.jobs.values():
            lease = leases.get(job.job_id)
            if lease is not None and job.lease is not None:
                job.lease = lease
                for uuid, mib in zip(lease.gpus, lease.vram_peak_mib, strict=False):
                    if mib > (lease.vram_mib or mib):
                        yield job, lease, uuid, mib

    def stop(self, key: str | None) -> None:
        for job in self.jobs.values():
            if key in (None, job.key):
                self._stop(job)

    def _stop(self, job: Adopted) -> None:
        """Have the keeper end it. Without a keeper, end it."""
        if job.pidfd is not None:
            with suppress(ProcessLookupError):  # it is ending by itself
                signal.pidfd_send_signal(job.pidfd, STOP)
        lease = job.lease
        if lease is None:
            return
        try:
            thaw_to_end(lease, self._ledger)
            if job.pidfd is None:
                if lease.cgroup:
                    cgroup.signal_all(lease.cgroup, signal.SIGTERM)  # systemd would tell the keeper alone
                is_own = lease.manager == manager_of(os.geteuid())
                backend = backend_of(self._wanted) if is_own else self._usual
                backend.request_end(lease.job, lease.unit)
        except SlicerError as error:
            self._events.warning(str(error))


class Adopted:
    """One of them. ``pidfd``: its keeper's, or None; ``lease``: as last seen, None if it had none."""

    def __init__(self, key: str, job_id: str, lease: Lease | None) -> None:
        self.key = key
        self.job_id = job_id
        self.lease = lease
        self.pidfd: int | None = None
        self.told_gpus: set[str] = set()  # on which it was reported to use too much

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.lease.gpus if self.lease is not None else ()

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        return self.lease.gpu_indices if self.lease is not None else ()

    @property
    def use(self) -> GpuUse | None:
        return GpuUse((), self.lease.vram_peak_mib, None, 0) if self.lease is not None else None

    @property
    def is_unbound(self) -> bool:
        return self.lease is not None and not self.lease.gpus and not self.lease.slots

    def close(self) -> None:
        """Close its descriptor. Safe to repeat."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
