"""This machine as the queue's engine: each attempt is an ordinary ``slicer run``, forked from the queue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from slicer import backend as backends
from slicer.broker.client.backend import BrokerBackend
from slicer.errors import (
    GpuError,
    InfeasibleError,
    KeeperEnded,
    RequestCancelled,
    SlicerError,
    StateError,
    UsageError,
)
from slicer.job import granting
from slicer.job.gpu_use import GpuUse
from slicer.job.outside import what_is_replaced
from slicer.job.plan import Plan, backend_of
from slicer.kernel import proc
from slicer.kernel.sleep import seconds_until, soonest, until_readable
from slicer.ledger.ledger import Ledger
from slicer.queue.engine import ended_attempt
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.engine import Begin, Engine
from slicer.queue.engine.local.adopted import Adopted, AdoptedJobs
from slicer.queue.engine.local.arrivals import Arrivals
from slicer.queue.engine.local.gpus import Gpus
from slicer.queue.engine.local.limits import Limits
from slicer.queue.engine.local.run import RunOrder, preload, preload_gpus
from slicer.queue.engine.local.runs import Forks, Run
from slicer.queue.events import Events
from slicer.queue.model import Entry, GpuRow, JobState, Kind, Place, QueueOptions
from slicer.queue.plans import Plans
from slicer.queue.state import folding
from slicer.queue.state.register import Register
from slicer.record import replace

_ANSWERS = (UsageError, RequestCancelled, GpuError, StateError)  # to a request
_USAGE_STEP_MIB = 256  # the growth of a peak that is reported
_LEAVING_S = 5.0  # for withdrawn runs, at the queue's end


class LocalEngine(Engine):
    """See :class:`Engine`. Runs are asked for, then begun, then running."""

    def __init__(
        self, options: QueueOptions, environ: Mapping[str, str], ledger: Ledger, events: Events
    ) -> None:
        """Raises BackendError."""
        self._options = options
        self._ledger = ledger
        self._events = events
        self.broker = backends.broker_socket(environ, options.backend)
        self._backend = BrokerBackend(self.broker) if self.broker else backend_of(options.backend)
        self._backend.preload()
        preload()
        self._forks = Forks(ledger, frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        self._replaced = "" if options.gpus else what_is_replaced(environ)
        self._arrivals = Arrivals()
        self._asked: dict[Kind, Run] = {}
        self._begun: dict[str, Run] = {}  # by job id, as the next two
        self._running: dict[str, Run] = {}
        self._leaving: list[Run] = []  # withdrawn, and not ended yet
        self._told = {self._backend.notice}  # by runs, and passed on to people

    def set_up(self, plans: Plans, register: Register) -> None:
        options = self._options
        self._register = register
        self._adopted = AdoptedJobs(register, self._ledger, self._backend, options.backend, self._events)
        self._gpus = Gpus(plans.policy, options)
        self._gpus.check()
        self._limits = Limits(
            register, self._events, options.at_a_time, plans.cpus if options.at_a_time is None else None
        )

    def notices(self) -> list[str]:
        found = [self._backend.notice] if self._backend.notice else []
        if self.broker and (self._options.idle_threshold_mib, self._options.spike_buffer) != (None, None):
            found.append("the broker uses the administrator's idle threshold and spike buffer")
        return [*found, self._replaced] if self._replaced else found

    @property
    def has_gpus(self) -> bool:
        return bool(self._gpus.observer.gpus)

    def open_gpus(self) -> None:
        self._gpus.observer.open()
        preload_gpus()

    def close(self) -> None:
        self.keep(())
        for run in (*self._begun.values(), *self._running.values()):
            run.hang_up()
        until = time.monotonic() + _LEAVING_S
        for run in self._leaving:
            until_readable([run.pidfd], seconds_until(until), None)
        self._gpus.observer.close()
        self._backend.close()

    # -- places ------------------------------------------------------------------------------------------

    def may_add(self, plan: Plan) -> bool:
        return self._limits.may_add(plan, list(self._begun.values()), self._living())

    def ask(self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place]) -> Begin | None:
        own = (*self._begun.values(), *self._living())
        used = {uuid for run in own for uuid in run.gpus}
        if self._gpus.is_narrowed(plan) and not self._gpus.has_enough(plan, used):
            self._check(plan)
            return None
        plan = self._gpus.chosen(plan, used)
        run = self._asked.get(kind)
        if run is not None and (run.key, run.plan.missing.gpu_choice) != (entry.key, plan.missing.gpu_choice):
            self._withdraw(self._asked.pop(kind))
            run = None
        if run is None:
            place = places[entry.key]
            before = (each for each in self._asked.values() if places.get(each.key, place) < place)
            if not plan.missing.is_nothing and not all(each.is_decided for each in before):
                return None  # the next job of its kind may be ahead of this one
            if self._limits.lacks_descriptors(len(self._asked) + len(own)):
                return None
            run = self._asked[kind] = self._fork(kind, entry, plan, places)
        if run.is_gone:
            del self._asked[kind]
            self._withdraw(run)
            self._refuse(run)
            return None
        if not run.is_granted:
            return None
        del self._asked[kind]
        self._arrivals.forget([run.key])
        return lambda state: self._begin(run, state)

    def _check(self, plan: Plan) -> None:
        """Raise InfeasibleError if even all GPUs of this queue would not be enough."""
        on_any = self._gpus.chosen(plan, ())
        _, wanted = granting.prepare_job(os.urandom(6).hex(), on_any, self._backend, self._gpus.observer)
        granting.preview(plan.broker, wanted, self._ledger)

    def _refuse(self, run: Run) -> None:
        error = run.why_not()
        if isinstance(error, InfeasibleError) and self._gpus.is_narrowed(run.plan):
            return  # impossible on the GPUs without our own jobs, but possible on all of them
        raise error if isinstance(error, _ANSWERS) else StateError(str(error))

    def _fork(self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place]) -> Run:
        """Raises BackendError."""
        others = [run for of, run in self._asked.items() if of != kind]
        arrived_s, ahead_of = self._arrivals.place(entry, places, others)
        state = self._register.states[entry.key]
        log = self._register.log_dir.log_name(state.no, state.attempts + 1)
        invocation = replace(
            plan.invocation, log=f"{self._register.log_dir.path}/{log}", look_s=self._options.poll_s,
            directory=plan.invocation.directory or os.path.join(os.getcwd(), entry.attributes.cwd),
            gave_way=state.gave_way,
        )  # fmt: skip
        order = RunOrder(
            os.urandom(6).hex(), replace(plan, invocation=invocation), arrived_s, ahead_of,
            starts_late=plan.missing.is_nothing and plan.profile.timeout_s is not None,
        )  # fmt: skip
        return self._forks.begin(order, entry.key, self._register)

    def _withdraw(self, run: Run) -> None:
        run.hang_up()
        self._leaving.append(run)

    def keep(self, kinds: Collection[Kind]) -> None:
        for kind in [kind for kind in self._asked if kind not in kinds]:
            self._withdraw(self._asked.pop(kind))

    def forget(self, keys: Collection[str]) -> None:
        self._arrivals.forget(keys)

    @property
    def is_deciding(self) -> bool:
        return not all(run.is_decided for run in self._asked.values())

    def why(self, kind: Kind) -> str:
        run = self._asked.get(kind)
        return (run.why or "") if run is not None else ""

    # -- attempts whose commands have not started ----------------------------------------------------------

    def _begin(self, run: Run, state: JobState) -> bool:
        """Note the attempt; False: no room for its file."""
        if not self._register.reserve(run.job_id):
            self._withdraw(run)
            return False
        self._register.do(
            folding.begun(
                state.key, run.job_id, boot_id=proc.boot_id(), attempt=state.attempts + 1,
                log=os.path.basename(run.plan.invocation.log), gpus=run.gpus,
                gpu_indices=list(run.gpu_indices), vram_mib=run.vram_mib, at=time.time(),
            )
        )  # fmt: skip
        self._begun[run.job_id] = run
        problem = run.plan.sharing.problem if run.plan.sharing is not None else ""
        if problem:
            self._pass_on("warning", f"no turns are taken (share): {problem}")
        return True

    def start_commands(self, *, is_saved: bool) -> tuple[list[str], list[tuple[str, SlicerError]]]:
        started: list[str] = []
        failed: list[tuple[str, SlicerError]] = []
        earlier = 0  # early jobs that are not ready yet: later ones must not take their places
        for job_id, run in list(self._begun.items()):
            if run.is_running or (run.is_gone and self._has_begun(run)):
                self._running[job_id] = self._begun.pop(job_id)
                started.append(run.key)
            elif run.is_gone:
                self.give_up(job_id)
                failed.append((run.key, run.why_not()))
            elif not run.is_ready:
                earlier += run.may_be_early
            elif is_saved and not run.has_word and (not run.may_be_early or self._has_place(run, earlier)):
                run.go()
        return started, failed

    def _has_place(self, run: Run, earlier: int) -> bool:
        others = [each for each in self._begun.values() if each is not run]
        return self._limits.has_place(others, self._living(), earlier)

    def unstarted(self, job_id: str) -> str | None:
        run = self._begun.get(job_id)
        return run.key if run is not None and not run.has_word else None

    def give_up(self, job_id: str) -> bool:
        run = self._begun.pop(job_id)
        self._withdraw(run)
        self._register.do(folding.unbegun(run.key, job_id))
        self._register.forget(job_id)
        return True

    # -- running attempts ----------------------------------------------------------------------------------

    def _living(self) -> list[Run | Adopted]:
        return [*self._running.values(), *self._adopted.jobs.values()]

    @property
    def job_count(self) -> int:
        return len(self._begun) + len(self._living())

    @property
    def is_busy(self) -> bool:
        return self.job_count > 0

    def recover(self, state: JobState) -> EndedAttempt | None:
        if state.engine:
            hint = f"start it again with --engine {state.engine}, or auto"
            raise StateError(f"job {state.no} of an earlier queue is with {state.engine}", hint=hint)
        return self._adopted.adopt(state.key, state.job, state.boot_id)

    def discard(self, job_id: str) -> None:
        self._register.forget(job_id)

    def watched(self) -> tuple[list[int], float | None]:
        runs = (*self._asked.values(), *self._begun.values(), *self._running.values())
        descriptors = [run.fd for run in runs if not run.is_gone] + [run.pidfd for run in self._leaving]
        descriptors += self._adopted.descriptors()
        look_s = self._gpus.left_s() if any(job.gpus for job in self._living()) else None
        ended_s = 0.0 if any(run.is_gone for run in self._running.values()) else None  # heard with its start
        return descriptors, soonest(self._adopted.left_s(), look_s, ended_s)

    def take_ended(self, ready: Collection[int]) -> list[EndedAttempt]:
        for run in [each for each in self._leaving if each.pidfd in ready or proc.has_ended(each.pidfd)]:
            self._leaving.remove(run)
            run.reap()
        for run in (*self._asked.values(), *self._begun.values(), *self._running.values()):
            if run.fd in ready:
                for news in run.hear():
                    self._tell(run, news)
        return [*self._take_gone(), *self._take_adopted(ready)]

    def _take_gone(self) -> Iterator[EndedAttempt]:
        """The ends of the runs that say no more, and of those whose keepers were killed before they began."""
        for job_id, run in [*self._begun.items(), *self._running.items()]:
            ran = job_id in self._running
            if not run.is_gone or not (ran or self._was_killed(run)):
                continue
            del (self._running if ran else self._begun)[job_id]
            run.reap()
            ended: EndedAttempt | None
            if ran or (run.has_word and run.error is None):  # its keeper may have the order
                ended = self._ending(run)
            else:
                why = "its keeper was ended before it could begin"
                ended = EndedAttempt(run.key, job_id, "unbegun", why=why)
            if ended is not None:
                yield ended

    def _was_killed(self, run: Run) -> bool:
        return isinstance(run.why_not(), KeeperEnded) and not self._has_begun(run)

    def _has_begun(self, run: Run) -> bool:
        return run.is_running or self._register.attempt(run.job_id) is not None

    def _take_adopted(self, ready: Collection[int]) -> Iterator[EndedAttempt]:
        for job, ended in self._adopted.take_ended(ready):
            declared_mib = self._register.states[job.key].vram_mib
            for uuid, mib in zip(job.gpus, ended.vram_peak_mib, strict=False):
                self._tell_of_excess(job, uuid, mib, declared_mib or mib)
            yield ended

    def _ending(self, run: Run) -> EndedAttempt | None:
        found = self._register.attempt(run.job_id)
        if found is not None and found.outcome is not None:
            return ended_attempt.from_outcome(run.key, run.job_id, found.outcome, run.use)
        if run.error is not None:
            # Its program could not be executed.
            return EndedAttempt(run.key, run.job_id, "ended", "exited", run.error.exit_code)
        return self._adopted.adopt(run.key, run.job_id, use=run.use)

    def stop(self, key: str | None = None) -> None:
        for run in (*self._begun.values(), *self._running.values()):
            if run.has_word and key in (None, run.key):
                run.stop()
        self._adopted.stop(key)

    # -- the use of GPUs ---------------------------------------------------------------------------------

    def watch(self) -> None:
        if any(job.gpus for job in self._living()) and not self._gpus.left_s():
            self._gpus.look()
            self._register.has_changed = True
            for job, lease, uuid, mib in self._adopted.look():
                self._tell_of_excess(job, uuid, mib, lease.vram_mib or 0)

    def _tell(self, run: Run, news: dict[str, Any]) -> None:
        state, event = self._register.states[run.key], news.pop("event")
        self._register.has_changed = True
        if event in ("notice", "warning"):
            self._pass_on(event, news["text"], f"job {state.no}: ")
        elif event == "escaped":
            self._events.warning(f"job {state.no} {news['how']}")
        elif event == "idle":
            self._events.add("idle", state, **news)
        elif event == "exceeds":
            ends, is_cap = news.pop("ends"), news.pop("is_cap")
            self._tell_of_excess(run, **news, always=is_cap)
            if ends:
                self._events.warning(f"job {state.no} got past its cap, and is ended")
        elif event == "used" and self._options.verbose and run.use is not None:
            peak_mib = max(run.use.peak_mib, default=0)
            if peak_mib >= run.told_mib + _USAGE_STEP_MIB:
                run.told_mib = peak_mib
                self._events.add("usage", state)

    def _pass_on(self, event: str, text: str, whose: str = "") -> None:
        """Tell people once: what one run says, others may say, too."""
        if text not in self._told:
            self._told.add(text)
            (self._events.notice if event == "notice" else self._events.warning)(whose + text)

    def _tell_of_excess(
        self, job: Run | Adopted, gpu: str, used_mib: int, declared_mib: int, *, always: bool = False
    ) -> None:
        """Once for a GPU, and beyond the tolerance, unless it is to be said ``always``."""
        is_little = used_mib <= declared_mib * (1 + self._options.tolerance)
        if not always and (gpu in job.told_gpus or is_little):
            return
        job.told_gpus.add(gpu)
        state, index = self._register.states[job.key], job.gpu_indices[job.gpus.index(gpu)]
        self._events.add("exceeds", state, gpu=index, used_mib=used_mib, declared_mib=declared_mib)

    def use_of(self, job_id: str) -> GpuUse | None:
        job = self._running.get(job_id) or self._adopted.jobs.get(job_id)
        return job.use if job is not None else None

    def gpu_rows(self, numbers: dict[str, int]) -> tuple[GpuRow, ...]:
        return self._gpus.rows((numbers[job.job_id], job.gpus) for job in self._living())

    def largest_mib(self) -> int:
        return self._gpus.largest_mib()
