"""The queue's requests for leases: one ticket for each waiting kind of job.

In the ledger the queue is one requester among others. It requests only the first job of each kind. The next
job of that kind arrives when the first has its lease. So a thousand jobs do not take a thousand places ahead
of others. Among the queue's own jobs the file's order counts. A job that is requested later than a job behind
it in the file takes the place just ahead of that job.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from slicer.errors import InfeasibleError, RequestCancelled, UsageError
from slicer.gpu.observer import GpuObserver
from slicer.job import granting
from slicer.job.job import Job, tell_wait
from slicer.job.plan import Plan
from slicer.kernel import proc
from slicer.ledger import leasing
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.ledger.waiting import WaitingTicket
from slicer.model import Busy
from slicer.queue.engine.local.starters import Backends
from slicer.queue.model import Entry, Kind, Place
from slicer.record import record, replace

if TYPE_CHECKING:
    from slicer.backend import Backend
    from slicer.broker.client.asking import Asking  # not imported by every queue

_INSTANT_S = 1e-6  # the smallest difference that the ledger's clock shows
_PLAIN_LOCK_S = 1.0  # the pause before another try for the scripts' lock, which causes no event


class _Request:
    """A request for one job's lease."""

    waiting: WaitingTicket | Asking  # once the job has a ticket

    def __init__(
        self, entry: Entry, plan: Plan, choice: tuple[str, ...], backend: Backend, gpu_observer: GpuObserver
    ) -> None:
        """``choice``: words for the acceptable GPUs, as in --gpu; () any. Raises as prepare_job."""
        self.entry = entry
        self.plan = plan
        self.choice = choice
        self.job, self.prepared = granting.prepare_job(
            os.urandom(6).hex(), _among(plan, choice), backend, gpu_observer
        )
        self.is_due = True  # an event may affect it
        self.watched: list[int] = []
        self.due_at: float | None = None  # by the ledger's clock: when to ask again without an event


@record
class GrantedJob:
    """A job that has its lease. ``waited_s``: the time since its first request."""

    entry: Entry
    job: Job
    held: HeldLease
    waited_s: float


class LeaseRequests:
    """The requests of one queue. Errors of the ledger (StateError, GpuError) go to the caller."""

    def __init__(
        self, ledger: Ledger, backends: Backends, gpu_observer: GpuObserver, gpu_words: tuple[str, ...],
        *, exclusive: bool,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._backends = backends
        self._gpu_observer = gpu_observer
        self._gpu_words = gpu_words
        self._exclusive = exclusive
        self._requests: dict[Kind, _Request] = {}
        self._arrived: dict[str, float] = {}  # the time of a job's first request, by its key
        self._not_before: dict[Kind, float] = {}  # while a script has the lock, by the ledger's clock

    # -- asking ------------------------------------------------------------------------------------------

    def ask(
        self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place], in_use: Collection[str]
    ) -> GrantedJob | None:
        """The lease, if it is available now; otherwise the job gets a ticket.

        ``in_use``: the GPUs of this queue's own jobs. Raises InfeasibleError if it can never be granted,
        UsageError for unknown GPUs, and RequestCancelled if somebody withdrew the request.
        """
        choice = self._choice(plan, in_use)
        request = self._requests.get(kind)
        if request is not None and (request.entry.key, request.choice) != (entry.key, choice):
            self._withdraw(kind)
            request = None
        if self._not_before.get(kind, 0.0) > proc.now_s():
            return None
        if request is None:
            backend = self._backends.of(plan.broker)
            request = _Request(entry, plan, choice, backend, self._gpu_observer)
            return self._ask_first(kind, request, backend, places)
        if not (request.is_due or request.waiting.is_unsettled):
            return None
        request.is_due = False
        try:
            held = request.waiting.look()
        except RequestCancelled:
            self._withdraw(kind)
            raise
        if held is None:
            return None
        del self._requests[kind]
        return self._granted(kind, request, held)

    def _ask_first(
        self, kind: Kind, request: _Request, backend: Backend, places: Mapping[str, Place]
    ) -> GrantedJob | None:
        plan, wanted = request.plan, request.prepared
        ticket = replace(wanted.ticket, arrived_s=self._arrival(request.entry, places))
        is_narrowed = self._exclusive and plan.missing.gpus > 0
        if is_narrowed:
            # This raises InfeasibleError if even all GPUs of this queue would not be enough.
            on_any = _among(plan, self._gpu_words)
            _, on_all = granting.prepare_job(request.job.id, on_any, backend, self._gpu_observer)
            granting.preview(plan.broker, on_all, self._ledger)
            if len(request.choice) < plan.missing.gpus:
                return None
        try:
            found = granting.queue_up(
                plan.broker, replace(wanted, ticket=ticket), self._ledger,
                lambda: self._ahead_of(request.entry, places),
            )  # fmt: skip
        except InfeasibleError:
            if not is_narrowed:
                raise
            return None  # impossible on the GPUs without our own jobs, but possible on all of them
        if isinstance(found, HeldLease):
            return self._granted(kind, request, found)
        request.waiting = found
        self._requests[kind] = request
        tell_wait(request.job, wanted, found.why())
        return None

    def _ahead_of(self, entry: Entry, places: Mapping[str, Place]) -> str:
        """The job whose place this one takes in the broker's queue; "": it gets the last place."""
        behind = self._behind(entry, places)
        first = min(behind, key=lambda each: self._arrived[each.entry.key], default=None)
        return first.job.id if first is not None else ""

    def _behind(self, entry: Entry, places: Mapping[str, Place]) -> list[_Request]:
        """The waiting requests of jobs behind this one, of the same priority."""
        place = places[entry.key]
        return [
            request
            for request in self._requests.values()
            if places.get(request.entry.key, place) > place and places[request.entry.key][0] == place[0]
        ]

    def _arrival(self, entry: Entry, places: Mapping[str, Place]) -> float:
        """The job's arrival: the time of its first request, or just before a job behind it."""
        known = self._arrived.get(entry.key)
        if known is not None:
            return known
        later = [self._arrived[request.entry.key] for request in self._behind(entry, places)]
        arrived_s = round(min(later) - _INSTANT_S if later else proc.now_s(), 6)
        self._arrived[entry.key] = arrived_s
        return arrived_s

    def _choice(self, plan: Plan, in_use: Collection[str]) -> tuple[str, ...]:
        """Words for the acceptable GPUs; () any. With --exclusive, only GPUs without a job of ours."""
        if not self._exclusive or not plan.missing.gpus:
            return self._gpu_words if plan.missing.gpus else ()
        self._gpu_observer.open()
        return tuple(uuid for uuid in self.allowed() if uuid not in in_use)

    def allowed(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that this queue may use. Raises UsageError for an unknown GPU."""
        try:
            chosen = leasing.gpus_named(self._gpu_words, self._gpu_observer.gpus)
        except UsageError as error:
            raise UsageError(error.message, where="--gpu", hint=error.hint) from error
        return chosen or tuple(gpu.uuid for gpu in self._gpu_observer.gpus)

    def check(self) -> None:
        """Make sure that the GPUs of --gpu exist. Raises UsageError, GpuError."""
        if self._gpu_words:
            self._gpu_observer.open()
            self.allowed()

    def _granted(self, kind: Kind, request: _Request, held: HeldLease) -> GrantedJob | None:
        plain_lock = request.plan.config.compat_gpu_lock
        if held.lease.gpus and plain_lock and not _take_plain_lock(plain_lock, held):
            self._not_before[kind] = proc.now_s() + _PLAIN_LOCK_S
            held.release()
            return None
        waited_s = max(0.0, proc.now_s() - self._arrived.pop(request.entry.key))
        return GrantedJob(request.entry, request.job, held, waited_s)

    # -- waiting -----------------------------------------------------------------------------------------

    def keep(self, kinds: Collection[Kind]) -> None:
        for kind in [kind for kind in self._requests if kind not in kinds]:
            self._withdraw(kind)

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._arrived.pop(key, None)

    def _withdraw(self, kind: Kind) -> None:
        self._requests.pop(kind).waiting.leave()

    def watched(self) -> tuple[list[int], float | None]:
        """Descriptors that become readable when to ask again, and the seconds until then without an event."""
        descriptors: list[int] = []
        now_s = proc.now_s()
        limits = [max(0.0, at - now_s) for at in self._not_before.values()]
        for request in self._requests.values():
            if request.is_due or request.waiting.is_unsettled:
                limits.append(0.0)
                continue
            request.watched, limit_s = request.waiting.watched()
            descriptors += request.watched
            if limit_s is not None:  # from now; but other events may wake us earlier, again and again
                request.due_at = min(now_s + limit_s, request.due_at or now_s + limit_s)
            if request.due_at is not None:
                limits.append(max(0.0, request.due_at - now_s))
        return descriptors, min(limits) if limits else None

    def woken(self, ready: Collection[int]) -> None:
        """Mark the requests to ask again. ``ready``: the readable descriptors."""
        now_s = proc.now_s()
        self._not_before = {kind: at for kind, at in self._not_before.items() if at > now_s}
        for request in self._requests.values():
            if request.is_due or request.waiting.is_unsettled:
                continue
            is_late = request.due_at is not None and now_s >= request.due_at
            if is_late or any(fd in ready for fd in request.watched):
                request.waiting.woken(ready)
                request.is_due = True
                request.due_at = None

    def why(self, kind: Kind) -> Busy | None:
        """Why the jobs of a kind wait, as of the last decision."""
        request = self._requests.get(kind)
        return None if request is None else request.waiting.why()

    @property
    def is_waiting(self) -> bool:
        return bool(self._requests)


def _among(plan: Plan, choice: tuple[str, ...]) -> Plan:
    """The plan with these words for the acceptable GPUs."""
    return replace(plan, missing=replace(plan.missing, gpu_choice=choice))


def _take_plain_lock(path: str, held: HeldLease) -> bool:
    """Take the scripts' lock together with the lease, if it is free now."""
    from slicer.ledger.plain_lock import PlainLock

    lock = PlainLock(path)
    if lock.take(0.0, None):
        held.plain_lock = lock
        return True
    lock.release()
    return False
