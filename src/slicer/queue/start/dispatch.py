"""Decides for each job whether to start it, let it wait, or refuse it."""

from __future__ import annotations

import time
from collections.abc import Callable

from slicer import moments
from slicer.errors import (
    BackendError,
    BrokerError,
    ConfigError,
    GpuError,
    InfeasibleError,
    RefusedError,
    RequestCancelled,
    SlicerError,
    StateError,
    TooManyError,
    UsageError,
)
from slicer.job.plan import Plan
from slicer.kernel.sleep import seconds_until, seconds_until_moment, soonest
from slicer.queue.engine.engine import Begin, Engine
from slicer.queue.events import Events
from slicer.queue.judge.streaks import group_of
from slicer.queue.model import Attributes, Entry, JobState, Kind, Status
from slicer.queue.plans import Plans
from slicer.queue.start.held_back import HeldBack
from slicer.queue.start.pending import Pending, to_ask
from slicer.queue.start.snapshots import Snapshots
from slicer.queue.state import folding
from slicer.queue.state.register import Register
from slicer.record import replace
from slicer.retry import PAUSE_MOST_S

_MOST_KINDS = 128  # of jobs with GPUs, requested at a time: each kind has a ticket
_REGROUP_S = 30.0  # how often the jobs are sorted by their lengths
_MOST_REGROUPED = 10_000  # jobs; more take too long
_PAUSE_S = 1.0  # before another try after a failure that may be temporary; doubled each time
_PAUSE_MOST_S = 30.0


class Dispatch:
    """``pending`` has the jobs still to be started, and ``touched`` the keys of all jobs of this run.

    ``trouble``: why nothing could be requested or started at the last try; "" if it could. ``is_over``:
    nothing more is started, because a broker was switched on or off since the queue began. ``is_paused``:
    nothing is started for now.
    """

    def __init__(
        self, register: Register, plans: Plans, engine: Engine, events: Events,
        broker_now: Callable[[], str], held_back: HeldBack,
    ) -> None:  # fmt: skip
        self._register = register
        self._plans = plans
        self._engine = engine
        self._events = events
        self._broker_now = broker_now
        self.held_back = held_back
        self.snapshots = Snapshots(register)
        self.pending = Pending((), register.states)
        self.touched: set[str] = set()
        self._tries: dict[str, int] = {}  # failed starts, by key
        self._failures = 0  # consecutive failed starts of any jobs
        self._not_before: float | None = None  # monotonic: nothing is started until then
        self._no_broker_before: float | None = None  # monotonic: nothing is requested from it until then
        self._begins_at: dict[str, float] = {}  # seconds since 1970: of jobs whose time has not come
        self._postponed: dict[str, float] = {}  # monotonic: when a postponed job has its turn again
        self._refused: dict[str, Attributes] = {}  # the lines of jobs that can never start, by key
        self._in_vain: set[str] = set()  # jobs that wait for a condition that can never be met
        self._told_in_vain: dict[str, str] = {}  # the reported reason of each
        self._regrouped_s = 0.0  # monotonic: when the pending jobs were sorted by their lengths
        self.trouble = ""
        self.is_over = False
        self.is_paused = register.log_dir.is_paused()

    # -- pending jobs ------------------------------------------------------------------------------------

    def load(self, entries: tuple[Entry, ...]) -> None:
        """Take over the file's jobs."""
        self._register.see(entries)
        for entry in entries if self._refused else ():
            if entry.key in self._refused and self._refused[entry.key] != entry.attributes:  # possible now?
                del self._refused[entry.key]
                self._register.do(folding.reconsidered(entry.key))
        for key in self._in_vain:  # other lines may have changed
            self._register.do(folding.reconsidered(key), durable=False)
        self._in_vain.clear()
        self._begins_at = {}
        early = {entry.key: told for entry in entries if (told := self._early(entry))}
        groups = self.held_back.groups()
        for state in list(self._register.states.running.values()) if groups else ():
            if group_of(state.command) in groups:
                self._take_back(state.job)
        held = self.held_back.settle(entries)
        self.pending = Pending(entries, self._register.states, self._plans.octaves(), early, held)
        self._regrouped_s = time.monotonic()
        self._postponed = {}
        for job_id in self._engine.outdated(self.pending.entries):
            self._take_back(job_id)
        for entry in entries:
            if entry.attributes.cancel:
                self._cancel(entry)
        for entry, error in self.snapshots.take(entries):
            self._refuse(entry, error)

    def _early(self, entry: Entry) -> str:
        """When the job begins, or runs again, in words; "" if its time has come."""
        begins_at, again_at = self._begin_of(entry), self._register.states[entry.key].again_at
        if not (begins_at or again_at):
            return ""
        now = time.time()
        at = max(begins_at, min(again_at, now + PAUSE_MOST_S))  # somebody may have set the clock
        if at <= now:
            return ""
        self._begins_at[entry.key] = at
        return f"{'begins' if at == begins_at else 'again'} {moments.words(at, now)}"

    def _begin_of(self, entry: Entry) -> float:
        """When the line lets its job begin, in seconds since 1970; 0 if it does not say."""
        said = entry.attributes.begin
        state = self._register.states[entry.key]
        if said != state.begin:
            try:
                at = moments.coming(said, time.time()) if said else 0.0
            except ValueError:
                at = 0.0  # it has passed
            self._register.do(folding.begins(entry.key, said, at))
        return state.begins_at

    def learn(self) -> None:
        """Some jobs have ended, so more is known of how long the others should run."""
        now_s = time.monotonic()
        if len(self.pending) <= _MOST_REGROUPED and now_s - self._regrouped_s >= _REGROUP_S:
            self._regrouped_s = now_s
            self.pending.regroup(self._plans.octaves())

    def entry(self, key: str) -> Entry | None:
        return self.pending.entries.get(key)

    def has_begun(self, state: JobState) -> bool:
        """Whether its command runs: its scope may stand before its turn."""
        return state.status == "running" and self._engine.unstarted(state.job) is None

    def put_back(self, key: str) -> None:
        """Make the job pending again, if its line still exists."""
        entry = self.entry(key)
        if entry is None:
            return
        if entry.attributes.cancel:
            self._cancel(entry)
        elif key not in self.pending:
            self.pending.put(entry, self._early(entry))

    def _cancel(self, entry: Entry) -> None:
        state = self._register.states[entry.key]
        if state.status == "pending":
            self._cancel_unstarted(entry, "its line says cancel")
        elif state.status == "running" and not state.cancelling:
            self._register.do(folding.cancelling(entry.key, state.job))
            self._engine.stop(entry.key)
            self._events.add("cancelling", state)

    def stop(self, key: str, *, unbegun: bool = False) -> bool:
        """Cancel a job, unless its command has begun; whether it was cancelled.

        On another machine only the engine can end it, so there even a running job is ended, unless only an
        ``unbegun`` one is meant.
        """
        state = self._register.states.get(key)
        if state is not None and self._engine.unstarted(state.job) == key:
            self._take_back(state.job)
        if state is not None and state.engine and state.status == "running" and not unbegun:
            self._engine.stop(key)
            return True
        if key not in self.pending:
            return False
        self._cancel_unstarted(self.pending.entries[key], "slicer stop")
        self.pending.release()
        return True

    def _take_back(self, job_id: str) -> None:
        """Make the job of an unstarted attempt pending again, unless the attempt has begun just now."""
        key = self._engine.unstarted(job_id)
        if key is not None and self._engine.give_up(job_id):
            self.put_back(key)

    def _cancel_unstarted(self, entry: Entry, reason: str) -> None:
        self._end_unstarted(entry.key, "cancelled", reason, 0)
        self._events.add("cancelled", self._register.states[entry.key])

    # -- starting ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Make sure that there are GPUs if jobs need some. Raises NoGpu, GpuError, and a plan's errors."""
        for kind, entry in self._heads():
            if not self._engine.has_gpus and self._plan(kind, entry).missing.gpus:
                self._engine.open_gpus()

    def _heads(self) -> list[tuple[Kind, Entry]]:
        return to_ask(self.pending.heads(), self._plans.gpu_needs, _MOST_KINDS)

    def start(self) -> None:
        """Start the scopes of all jobs that can be started; request leases for the others."""
        if self.is_over or self.is_paused or self._is_broker_new():
            return
        now = time.monotonic()
        if now >= (self._not_before or now):
            self._not_before = None
        if now >= (self._no_broker_before or now):
            self._no_broker_before = None
        for due, clock in ((self._postponed, now), (self._begins_at, time.time())):
            for key in [key for key, at in due.items() if clock >= at]:
                del due[key]
                self.pending.resume(key)
        if self._register.problem or self._not_before is not None:
            self._engine.keep(())
            return
        self._engine.refresh()
        kinds: list[Kind] | None = None
        while kinds is None and self._not_before is None and not self.is_over:
            kinds = self._start_one()
        is_trying = self._not_before is None and self._no_broker_before is None
        if is_trying and not any(key in self.pending for key in self._tries):
            self.trouble, self._failures = "", 0
        self._engine.keep(kinds or ())

    def _is_broker_new(self) -> bool:
        """Whether a broker was switched on since the queue began; then nothing more is started."""
        if self._plans.broker or not self._engine.is_here or not self._broker_now():
            return False
        self._end("a broker was switched on")
        return True

    def _end(self, why: str) -> None:
        self.is_over = True
        self._tell(f"{why}: start the queue again")

    def _start_one(self) -> list[Kind] | None:
        """Start the first possible job and return None; if there is none, return the waiting kinds."""
        kinds: list[Kind] = []
        is_full = False  # jobs without a demand keep the file's order: if one has to wait, all do
        for kind, entry in self._heads():
            try:
                plan = self.snapshots.within(self._plan(kind, entry), entry)
            except (UsageError, ConfigError) as error:
                self._refuse(entry, error)
                return None
            if self._no_broker_before is not None and plan.broker:
                if not plan.missing.is_nothing:
                    continue
                plan = replace(plan, broker="")  # it needs no grant
            if (plan.missing.is_nothing and is_full) or not self._engine.may_add(plan):
                is_full = is_full or plan.missing.is_nothing
                continue
            try:
                begin = self._engine.ask(kind, entry, plan, self.pending.places)
            except InfeasibleError as error:
                self._refuse(entry, error)
                return None
            except RequestCancelled as error:
                self._cancel_unstarted(entry, error.message)
                self.pending.release()
                return None
            except BrokerError as error:
                self._wait_for_better(error)
                return None  # other jobs may not need the broker
            except TooManyError as error:  # existing requests may keep waiting
                if not kinds:
                    self._wait_for_better(error)
                return kinds
            except (UsageError, GpuError, BackendError, StateError) as error:
                self._wait_for_better(error)
                return kinds
            if begin is not None:
                self._start(entry.key, begin)
                return None
            kinds.append(kind)
        return kinds

    def _plan(self, kind: Kind, entry: Entry) -> Plan:
        return self._plans.plan(entry, kind, self._register.states[entry.key].no)

    def _start(self, key: str, begin: Begin) -> None:
        self.pending.take(key)
        self.touched.add(key)
        try:
            if not begin(self._register.states[key]):
                self.put_back(key)
                self.pause()
        except (BackendError, StateError) as error:
            self._could_not_start(key, error)

    def start_commands(self, *, is_saved: bool) -> None:
        """See :meth:`Engine.start_commands`."""
        started, failed = self._engine.start_commands(is_saved=is_saved)
        for key, error in failed:
            self._could_not_start(key, error)
        for key in started:
            state = self._register.states[key]
            self._tries.pop(key, None)
            if self._no_broker_before is None:
                self._failures, self.trouble = 0, ""
            self._events.add("started", state, log=state.log)
            if state.cancelling:  # its line changed while it was being started
                self._engine.stop(key)

    def abandon(self) -> None:
        """Start nothing more: withdraw all requests, and abandon the jobs whose commands have not started."""
        self._engine.keep(())
        for state in list(self._register.states.running.values()):
            self._take_back(state.job)

    # -- failed starts -----------------------------------------------------------------------------------

    def _could_not_start(self, key: str, error: SlicerError) -> None:
        """Try again until it succeeds, unless the job itself is impossible."""
        entry = self.entry(key)
        if isinstance(error, RefusedError) and entry is not None:
            self._refuse(entry, error, code=error.exit_code)
            return
        self.put_back(key)
        if isinstance(error, BrokerError):
            self._wait_for_better(error)
        else:
            self._tell(str(error))
        self.command_never_started(key)

    def command_never_started(self, key: str) -> None:
        """Try the job again after a pause. Others go first, unless they cannot be started either."""
        self._tries[key] = self._tries.get(key, 0) + 1
        if key in self.pending:
            self.pending.postpone(key)
            self._postponed[key] = time.monotonic() + _pause_s(self._tries[key])
        if any(other != key and other in self.pending for other in self._tries):
            self.pause()

    def _refuse(self, entry: Entry, error: SlicerError, code: int = 1) -> None:
        # In one line, without its place, which is not in the jobs file.
        reason = f"{error.message} ({error.hint})" if error.hint else error.message
        self._refused[entry.key] = entry.attributes
        self._end_unstarted(entry.key, "infeasible", reason, code)
        self._events.add("infeasible", self._register.states[entry.key], reason=reason)
        self.pending.release()

    def give_up(self) -> None:
        """Skip the jobs that follow one in vain, so that no other job waits for them."""
        for key, why in self.pending.never.copy().items():
            self._in_vain.add(key)
            self._end_unstarted(key, "skipped", why, 1)
            if self._told_in_vain.get(key) != why:
                self._told_in_vain[key] = why
                self._events.add("unrunnable", self._register.states[key], why=why)

    def _end_unstarted(self, key: str, status: Status, reason: str, code: int) -> None:
        self.pending.take(key)
        self.touched.add(key)
        self._register.do(folding.refused(key, status, reason, code))

    def _wait_for_better(self, error: SlicerError) -> None:
        """Report the error once, and try again after a pause."""
        is_broker = isinstance(error, BrokerError)
        if is_broker and self._is_broker_new():
            return
        if is_broker and self._plans.broker and not self._broker_now():
            self._end("the broker was switched off")  # not just stopped, and none of its jobs runs
            return
        rest = "; until then only jobs that need neither GPU nor slot are started" if is_broker else ""
        self._tell(f"{error}{rest}")
        if is_broker:
            self._engine.keep(())
            self._no_broker_before = self._later()
        else:
            self.pause()

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._events.warning(trouble)

    def pause(self) -> None:
        """Start nothing for a while. The pause grows with each failure; simultaneous ones count once."""
        if self._not_before is None or time.monotonic() >= self._not_before:
            self._not_before = self._later()

    def _later(self) -> float:
        self._failures += 1
        return time.monotonic() + _pause_s(self._failures)

    def left_s(self) -> float | None:
        """The seconds until :meth:`start` is due without an event; None: never."""
        due_s = seconds_until(self._not_before, self._no_broker_before, *self._postponed.values())
        return soonest(due_s, seconds_until_moment(min(self._begins_at.values(), default=None)))


def _pause_s(failures: int) -> float:
    return min(_PAUSE_MOST_S, _PAUSE_S * 2.0 ** min(failures - 1, 10))
