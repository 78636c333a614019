"""The jobs of the queue that are on their way: those being started, those that run, and those just ended."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from slicer import faults
from slicer.errors import BackendError, SlicerError
from slicer.kernel import proc
from slicer.outcome import history
from slicer.queue.run import ended_attempt
from slicer.queue.run.adopted import Adopted
from slicer.queue.run.ended_attempt import EndedAttempt
from slicer.queue.run.outer_half import QueueOuterHalf
from slicer.queue.state import folding

if TYPE_CHECKING:
    from slicer.backend import BatchBackend
    from slicer.job.job import Observer
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease, Outcome
    from slicer.queue.model import JobState
    from slicer.queue.run.gpu_use import Monitor
    from slicer.queue.run.starters import Starters
    from slicer.queue.start.plans import Plans
    from slicer.queue.start.requests import Granted
    from slicer.queue.state.register import Register

_MOST_STARTING = 64  # at a time: what is handed on to the processes that start keepers has to fit the kernel
_SPARE_FDS = 40  # for what is open for a moment, and for waiting
_MOURN_AGAIN_S = 1.0
_ORPHANS_S = 0.25  # how often to look for jobs without a keeper, whose end sends us no event


class RunningJobs:
    """All jobs in flight, by their ids."""

    def __init__(
        self, book: Ledger, backend: BatchBackend, starters: Starters, plans: Plans, register: Register,
        monitor: Monitor, observer: Observer,
    ) -> None:  # fmt: skip
        self._book = book
        self._backend = backend
        self._starters = starters
        self._plans = plans
        self._register = register
        self._monitor = monitor
        self._observer = observer
        self._starting: dict[str, tuple[QueueOuterHalf, Granted]] = {}
        self._flying: dict[str, QueueOuterHalf] = {}
        self._landing: dict[str, QueueOuterHalf] = {}  # their commands have ended
        self._adopted: dict[str, Adopted] = {}
        self._orphans_at = 0.0
        self._told_of_limit = False
        self._mourn_at: dict[str, float] = {}  # monotonic: when to try again to see to killed keepers' duties

    # -- who is there ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many jobs run, or are about to."""
        return len(self._starting) + len(self._flying) + len(self._adopted)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to wait for."""
        return not (self._starting or self._flying or self._landing or self._adopted)

    def leases(self) -> Iterator[Lease]:
        """Of the jobs that run or are about to."""
        for flight in (*self._flying.values(), *(flight for flight, _ in self._starting.values())):
            yield flight.lease
        for adopted in self._adopted.values():
            if adopted.lease is not None:
                yield adopted.lease

    def gpus(self) -> frozenset[str]:
        """The GPUs that they are on."""
        return frozenset(uuid for lease in self.leases() for uuid in lease.gpus)

    def ahead(self) -> int:
        """How many are made ready ahead of their turn: they hold nothing, and so are in nobody's way."""
        return sum(_is_unbound(flight.lease) for flight, _ in self._starting.values())

    def may_begin(self, most: int | None, most_unbound: int | None, *, is_unbound: bool) -> bool:
        """Whether one more may be made ready. ``most`` at a time (None: as many as the ledger says), and of
        those that need nothing ``most_unbound`` (None: as many as there may be of all).
        """
        if len(self._starting) >= _MOST_STARTING or self._lacks_descriptors():
            return False
        return self._has_turn(most, most_unbound, is_unbound=is_unbound)

    def _has_turn(self, most: int | None, most_unbound: int | None, *, is_unbound: bool) -> bool:
        if most is not None and len(self) - self.ahead() >= most:
            return False
        if most_unbound is None or not is_unbound:
            return True
        flying = [flight.lease for flight in self._flying.values()]
        flying += [adopted.lease for adopted in self._adopted.values() if adopted.lease is not None]
        return sum(map(_is_unbound, flying)) < most_unbound

    def _lacks_descriptors(self) -> bool:
        """Whether one more job could not be looked after for want of descriptors. One alone always can."""
        fd = os.dup(self._register.log_dir.directory.fd)  # the lowest that is free
        os.close(fd)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_short = not self.is_empty and fd >= limit - _SPARE_FDS
        if is_short and not self._told_of_limit:
            self._told_of_limit = True
            self._observer.warning(
                f"no more than {len(self)} jobs at a time: of {limit} descriptors few are left (ulimit -Hn)"
            )
        return is_short

    # -- starting ----------------------------------------------------------------------------------------

    def start(self, granted: Granted, state: JobState) -> bool:
        """Have the job made ready; False where the log directory has no room for it.

        Raises BackendError, StateError. In both cases the lease is given back.
        """
        if not self._register.reserve(granted.job_id):
            granted.held.release()
            return False
        number = state.attempts + 1
        log_dir = self._register.log_dir
        log = log_dir.log_name(state.no, number)
        job = self._plans.job(granted, log)
        lease = granted.held.lease
        self._register.do(
            folding.begun(
                state.key, granted.job_id, boot_id=proc.boot_id(), attempt=number, log=log, gpus=lease.gpus,
                gpu_indices=[self._monitor.index(uuid) for uuid in lease.gpus], vram_mib=lease.vram_mib,
                at=time.time(),
            )
        )  # fmt: skip
        flight = QueueOuterHalf(
            state.key, job, self._backend, self._starters, log_dir, self._book, self._observer
        )
        try:
            flight.take_off(granted.held)
        except BaseException:
            self._register.do(folding.unbegun(state.key, granted.job_id))
            self._register.forget(granted.job_id)
            raise
        self._starting[granted.job_id] = flight, granted
        return True

    def let_go(
        self, most: int | None, most_unbound: int | None, failed: Callable[[str, SlicerError], None]
    ) -> list[str]:
        """Let the commands begin whose scopes stand and whose turn it is; the keys of their jobs.

        Only to be called when the register is saved: what is about to begin is on the disk then.
        """
        begun = []
        for job_id, (flight, granted) in list(self._starting.items()):
            try:
                if not flight.is_ready():
                    continue
                if _is_unbound(flight.lease) and not self._has_turn(most, most_unbound, is_unbound=True):
                    continue
                faults.point("queue-letting-go")
                flight.let_go(granted.waited_s)
                faults.point("queue-let-go")
            except SlicerError as error:
                del self._starting[job_id]
                self._register.do(folding.unbegun(flight.key, job_id))
                self._register.forget(job_id)
                failed(flight.key, error)
                continue
            del self._starting[job_id]
            self._flying[job_id] = flight
            self._monitor.follow(flight)
            begun.append(flight.key)
        return begun

    def call_off(self) -> list[str]:
        """Nothing more is to begin: give up what is being started; the keys of those jobs."""
        keys = []
        for job_id, (flight, _) in list(self._starting.items()):
            del self._starting[job_id]
            flight.call_off()
            self._register.do(folding.unbegun(flight.key, job_id))
            self._register.forget(job_id)
            keys.append(flight.key)
        return keys

    # -- in flight ---------------------------------------------------------------------------------------

    def descriptors(self) -> list[int]:
        """What becomes readable when there is news of any of them."""
        # Their answers are asked for when commands may begin, which waits for the register: watched all the
        # while, they would wake us again and again.
        hears_starters = self._starting and self._register.is_saved
        found = self._starters.descriptors() if hears_starters else []
        for job_id, flight in self._flying.items():
            if job_id in self._mourn_at:
                continue  # its end is known
            found += [flight.pidfd] if flight.was_bereaved else [flight.pidfd, flight.reports]
        found += [flight.pidfd for flight in self._landing.values()]
        found += [flight.pidfd for flight, _ in self._starting.values() if flight.pidfd >= 0]
        return found + [adopted.pidfd for adopted in self._adopted.values() if adopted.pidfd >= 0]

    def left_s(self) -> float | None:
        """After how many seconds to :meth:`service` though there is no news; None: not at all."""
        due = [*self._mourn_at.values()]
        if any(adopted.pidfd < 0 for adopted in self._adopted.values()):
            due.append(self._orphans_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def service(self, ready: Collection[int], say: Callable[[str], None]) -> list[EndedAttempt]:
        """Take the news; the attempts that are over."""
        found = list(self._killed_early(ready))
        for job_id, flight in list(self._flying.items()):
            is_due = time.monotonic() >= self._mourn_at.get(job_id, math.inf)
            if is_due or flight.pidfd in ready or flight.reports in ready:
                landing = self._hear(job_id, flight)
                if landing is not None:
                    found.append(landing)
        free = self._monitor.settled(say)
        for job_id, flight in list(self._landing.items()):
            if job_id in free:
                flight.gpus_are_free()
            if flight.is_gone():
                del self._landing[job_id]
                self._monitor.forget(job_id)
                flight.land()
        return found + list(self._service_adopted(ready))

    def _killed_early(self, ready: Collection[int]) -> Iterator[EndedAttempt]:
        """Those whose keepers were killed before it was their turn."""
        for job_id, (flight, _) in list(self._starting.items()):
            if flight.pidfd in ready:
                del self._starting[job_id]
                yield _unbegun(flight, job_id)

    def _hear(self, job_id: str, flight: QueueOuterHalf) -> EndedAttempt | None:
        if not flight.was_bereaved:
            flight.listen()
        if flight.said is None:
            if not flight.is_gone():
                return None
            if not flight.was_bereaved and self._register.attempt(job_id) is None:
                del self._flying[job_id]
                self._monitor.forget(job_id)
                return _unbegun(flight, job_id)
            if not flight.was_bereaved:
                self._mourn(job_id, flight)
                return None
            del self._flying[job_id]
            flight.land()
            return self._recovered(flight.key, job_id)
        del self._flying[job_id]
        self._landing[job_id] = flight
        self._monitor.has_ended(job_id)
        return ended_attempt.reported(flight.key, job_id, *flight.said, self._monitor.use_of(job_id))

    def _mourn(self, job_id: str, flight: QueueOuterHalf) -> None:
        """Have the duties of its killed keeper seen to; later, where no process can be forked now."""
        if flight.mourn():
            self._mourn_at.pop(job_id, None)
        else:
            self._mourn_at[job_id] = time.monotonic() + _MOURN_AGAIN_S

    def stop(self, key: str) -> None:
        """Ask the job to end, if it runs."""
        for flight in self._flying.values():
            if flight.key == key:
                flight.stop()
        for adopted in self._adopted.values():
            if adopted.key == key and not adopted.stop() and adopted.lease is not None:
                self._end_orphan(adopted.lease)

    def stop_all(self) -> None:
        """Ask all that run to end."""
        for key in [flight.key for flight in self._flying.values()]:
            self.stop(key)
        for key in [adopted.key for adopted in self._adopted.values()]:
            self.stop(key)

    def _end_orphan(self, lease: Lease) -> None:
        """Its keeper was killed: systemd, or we, have to see to it."""
        try:
            self._backend.request_end(lease.job, lease.unit)
        except BackendError as error:
            self._observer.warning(str(error))

    # -- after a queue that died -------------------------------------------------------------------------

    def recover(self, state: JobState) -> EndedAttempt | None:
        """Find out what became of an attempt that a queue before us had begun; None: it still runs."""
        found = self._register.attempt(state.job)
        with self._book.locked():
            lease = next((each for each in self._book.leases() if each.job == state.job), None)
        is_over = found is not None and found.is_final
        if (lease is not None or (found is not None and found.is_alive)) and not is_over:
            adopted = Adopted(state.key, state.job, self._register.attempt, lease, self._book)
            self._adopted[state.job] = adopted
            if adopted.lease is not None:
                self._monitor.follow(_Followed(adopted, adopted.lease))
            return None
        return self._recovered(state.key, state.job, state.boot_id)

    def _service_adopted(self, ready: Collection[int]) -> Iterator[EndedAttempt]:
        looks = time.monotonic() >= self._orphans_at
        for job_id, adopted in list(self._adopted.items()):
            if adopted.pidfd < 0 and not looks:
                continue
            if adopted.pidfd >= 0 and adopted.pidfd not in ready:
                continue
            had_keeper = adopted.pidfd >= 0
            if not adopted.is_gone():
                if had_keeper and adopted.pidfd < 0 and adopted.lease is not None:
                    self._end_orphan(adopted.lease)  # as what a keeper of our own leaves behind
                continue
            del self._adopted[job_id]
            adopted.close()
            yield self._recovered(adopted.key, job_id)
        if looks:
            self._orphans_at = time.monotonic() + _ORPHANS_S

    def _recovered(self, key: str, job_id: str, boot_id: str = "") -> EndedAttempt:
        """What the files say of an attempt that nobody looks after any more."""
        found = self._register.attempt(job_id)
        outcome = found.outcome if found is not None else None
        use = self._monitor.forget(job_id)
        if outcome is not None:
            self._add_to_history(outcome)
        else:
            outcome = self._from_history(job_id)
        if outcome is not None:
            return ended_attempt.recorded(key, job_id, outcome, use)
        if boot_id and boot_id != proc.boot_id():
            return EndedAttempt(key, job_id, "interrupted", why="the machine was restarted")
        if found is None:
            return EndedAttempt(key, job_id, "unbegun", why="the queue ended before it could begin")
        why = "it was killed together with its keeper: how it ended is not known"
        return EndedAttempt(key, job_id, "lost", why=why)

    def _add_to_history(self, outcome: Outcome) -> None:
        """Where its keeper was killed before it could."""
        path = history.default_path()
        try:
            if not history.read(path, limit=1, job=outcome.job):
                history.append(outcome, path)
        except SlicerError as error:
            self._observer.warning(str(error))

    def _from_history(self, job_id: str) -> Outcome | None:
        try:
            found = history.read(history.default_path(), limit=1, job=job_id)
        except SlicerError as error:
            self._observer.warning(str(error))
            return None
        return found[0] if found else None


def _is_unbound(lease: Lease) -> bool:
    """Whether the ledger does not limit jobs of its kind, for they need nothing."""
    return not lease.gpus and not lease.cpu_slots


def _unbegun(flight: QueueOuterHalf, job_id: str) -> EndedAttempt:
    flight.call_off()
    return EndedAttempt(flight.key, job_id, "unbegun", why="its keeper was ended before it could begin")


class _Followed:
    """An adopted job that has a lease, as the monitor sees it."""

    def __init__(self, adopted: Adopted, lease: Lease) -> None:
        self._adopted = adopted
        self._lease = lease

    @property
    def lease(self) -> Lease:
        return self._adopted.lease or self._lease

    def note_peaks(self, peaks_mib: tuple[int, ...]) -> None:
        self._adopted.note_peaks(peaks_mib)
