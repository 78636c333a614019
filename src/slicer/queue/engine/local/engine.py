"""This machine as the queue's engine: leases of the ledger, and a keeper in a scope for each job."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping

from slicer import backend as backends
from slicer.broker.client.gpu_look import open_gpus
from slicer.errors import SlicerError, StateError
from slicer.gpu.observer import GpuObserver
from slicer.job.gpu_watch import Escaped, Exceeded, LeaseUse
from slicer.job.idle_watch import IdleNews
from slicer.job.outside import what_is_replaced
from slicer.job.plan import Plan
from slicer.kernel import proc
from slicer.kernel.sleep import soonest
from slicer.ledger.ledger import Ledger
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.engine import Begin, Engine
from slicer.queue.engine.local.gpu_use import QueueMonitor
from slicer.queue.engine.local.lease_requests import LeaseRequests
from slicer.queue.engine.local.running import RunningJobs
from slicer.queue.engine.local.starters import Backends, Starters
from slicer.queue.engine.local.starting import StartingJobs
from slicer.queue.events import Events
from slicer.queue.model import Entry, GpuRow, JobState, Kind, Place, QueueOptions
from slicer.queue.plans import Plans
from slicer.queue.show import rows
from slicer.queue.state.register import Register

_USAGE_STEP_MIB = 256  # the growth of a peak that is reported


class LocalEngine(Engine):
    """See :class:`Engine`."""

    def __init__(
        self, options: QueueOptions, environ: Mapping[str, str], ledger: Ledger, events: Events
    ) -> None:
        """Fork the starters, before the queue opens what keepers must not have. Raises BackendError."""
        self._options = options
        self._ledger = ledger
        self._events = events
        self.broker = backends.broker_socket(environ, options.backend)
        self._backends = Backends(options.backend, self.broker)
        mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        self._starters = Starters(self._backends, ledger, mask)
        self._replaced = "" if options.gpus else what_is_replaced(environ)
        self._told_mib: dict[str, int] = {}  # the last reported peak, by job id

    def set_up(self, plans: Plans, register: Register) -> None:
        options, ledger, events = self._options, self._ledger, self._events
        self._register = register
        self._gpu_observer = GpuObserver(plans.policy, reuses=True, otherwise=open_gpus)
        self._monitor = QueueMonitor(
            self._gpu_observer, ledger, options.poll_s, plans.policy.idle_threshold_mib, options.tolerance
        )
        self._running = RunningJobs(ledger, self._backends, register, self._monitor, events, self.broker)
        self._starting = StartingJobs(
            ledger, self._backends, self._starters, register, self._monitor, self._running, events,
            at_a_time=options.at_a_time, most_unbound=plans.cpus if options.at_a_time is None else None,
        )  # fmt: skip
        self._requests = LeaseRequests(
            ledger, self._backends, self._gpu_observer, options.gpus, exclusive=options.exclusive
        )
        self._requests.check()

    def notices(self) -> list[str]:
        found = [self._backends.usual.notice] if self._backends.usual.notice else []
        if self.broker and (self._options.idle_threshold_mib, self._options.spike_buffer) != (None, None):
            found.append("the broker uses the administrator's idle threshold and spike buffer")
        return [*found, self._replaced] if self._replaced else found

    @property
    def has_gpus(self) -> bool:
        return bool(self._gpu_observer.gpus)

    def open_gpus(self) -> None:
        self._gpu_observer.open()

    def close(self) -> None:
        for each in (self._running, self._gpu_observer, self._starters, self._backends):
            each.close()

    # -- places ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self._gpu_observer.expire()

    def may_add(self, plan: Plan) -> bool:
        return self._starting.may_add(plan)

    def ask(self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place]) -> Begin | None:
        granted = self._requests.ask(kind, entry, plan, places, self._starting.gpus())
        return None if granted is None else lambda state: self._starting.add(granted, state)

    def keep(self, kinds: Collection[Kind]) -> None:
        self._requests.keep(kinds)

    def forget(self, keys: Iterable[str]) -> None:
        self._requests.forget(keys)

    @property
    def is_waiting(self) -> bool:
        return self._requests.is_waiting

    def why(self, kind: Kind) -> str:
        return rows.why(self._requests.why(kind), self._monitor.indices(), proc.now_s())

    # -- attempts whose commands have not started ----------------------------------------------------------

    def start_commands(self) -> tuple[list[str], list[tuple[str, SlicerError]]]:
        return self._starting.start_commands()

    def unstarted(self, job_id: str) -> str | None:
        return self._starting.key_of(job_id)

    def give_up(self, job_id: str) -> bool:
        self._starting.give_up(job_id)
        return True

    # -- running attempts ----------------------------------------------------------------------------------

    @property
    def job_count(self) -> int:
        return len(self._starting) + len(self._running)

    @property
    def is_busy(self) -> bool:
        return len(self._starting) > 0 or not self._running.is_empty

    def recover(self, state: JobState) -> EndedAttempt | None:
        if state.engine:
            hint = f"start it again with --engine {state.engine}, or auto"
            raise StateError(f"job {state.no} of an earlier queue is with {state.engine}", hint=hint)
        return self._running.recover(state)

    def discard(self, job_id: str) -> None:
        self._register.forget(job_id)

    def watched(self) -> tuple[list[int], list[int], float | None]:
        waiting, ask_s = self._requests.watched()
        descriptors = [*self._starting.descriptors(), *self._running.descriptors(), *waiting]
        left_s = soonest(ask_s, self._running.left_s(), self._monitor.left_s())
        return descriptors, self._running.urgent(), left_s

    def take_ended(self, ready: Collection[int]) -> list[EndedAttempt]:
        self._requests.woken(ready)
        ended = [*self._starting.take_killed(ready), *self._running.take_ended(ready)]
        for attempt in ended:
            self._told_mib.pop(attempt.job_id, None)
        return ended

    def stop(self, key: str | None = None) -> None:
        self._running.stop(key)

    # -- the use of GPUs ---------------------------------------------------------------------------------

    def watch(self) -> None:
        left_s = self._monitor.left_s()
        if left_s is None or left_s > 0:
            return
        before = self._monitor.problem
        for found in self._monitor.look():
            self._tell_of_use(found)
        self._register.has_changed = True
        problem = self._monitor.problem
        if problem is not None and str(problem) != str(before):
            self._events.warning(f"the jobs' use of their GPUs cannot be measured: {problem}")
        for job_id, use in self._monitor.uses() if self._options.verbose else ():
            peak_mib = max(use.peak_mib, default=0)
            state = self._register.states.by_job(job_id)
            if state is not None and peak_mib >= self._told_mib.get(job_id, 0) + _USAGE_STEP_MIB:
                self._told_mib[job_id] = peak_mib
                self._events.add("usage", state)

    def _tell_of_use(self, found: Exceeded | Escaped | IdleNews) -> None:
        state = self._register.states.by_job(found.job)
        if state is None:
            return
        if isinstance(found, Escaped):
            self._events.warning(f"job {state.no} {found.how}")
            return
        if isinstance(found, IdleNews):
            figures = {"idle_s": found.idle_s, "left_s": found.left_s}
            self._events.add("idle", state, what=found.kind, text=found.words(), **figures)
            if found.kind == "ends":
                self._running.end_for(found.job, "idle")
            return
        self._events.add(
            "exceeds", state, gpu=self._monitor.index(found.gpu), used_mib=found.used_mib,
            declared_mib=found.declared_mib,
        )  # fmt: skip
        if found.ends:
            self._events.warning(f"job {state.no} got past its cap, and is ended")
            self._running.end_for(found.job, "cap")

    def use_of(self, job_id: str) -> LeaseUse | None:
        return self._monitor.use_of(job_id)

    def gpu_rows(self, numbers: dict[str, int]) -> tuple[GpuRow, ...]:
        return self._monitor.rows(numbers)

    def largest_mib(self) -> int:
        allowed = self._requests.allowed()
        sizes = [each.total_mib for each in self._gpu_observer.memory if each.gpu_uuid in allowed]
        return max(sizes, default=0)
