"""Which jobs are begun, and which will not be: between the file's pending jobs, the desk and the crew."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slicer.errors import (
    BackendError,
    ConfigError,
    GpuError,
    InfeasibleError,
    RefusedError,
    SlicerError,
    StateError,
    UsageError,
)
from slicer.queue.start import plans
from slicer.queue.start.pending import Pending
from slicer.queue.state import folding

if TYPE_CHECKING:
    from slicer.gpu.observer import GpuObserver
    from slicer.job.launch import Plan
    from slicer.queue.events import Events
    from slicer.queue.model import Attributes, Entry
    from slicer.queue.options import Options
    from slicer.queue.run.running import RunningJobs
    from slicer.queue.start.pending import Kind
    from slicer.queue.start.plans import Plans
    from slicer.queue.start.requests import Granted, LeaseRequests
    from slicer.queue.state.register import Register


_MOST_KINDS = 32  # of jobs that are asked for at a time: each has a ticket
_MOST_AHEAD = 8  # jobs that hold nothing, made ready before it is their turn
_AGAIN_S = 1.0  # how soon to try again what failed for a reason that may pass; each time twice as long
_AGAIN_MOST_S = 30.0
_PATIENCE = 3  # so often a job that cannot be started has its turn first; then others have theirs before it


class Dispatch:
    """``pending`` are the jobs still to be started; ``touched`` those that this run has had to do with.

    ``trouble``: why nothing could be asked for or started when it was last tried, or "".
    """

    def __init__(
        self, options: Options, register: Register, plans: Plans, desk: LeaseRequests, crew: RunningJobs,
        view: GpuObserver, news: Events,
    ) -> None:  # fmt: skip
        self._options = options
        self._register = register
        self._plans = plans
        self._desk = desk
        self._crew = crew
        self._view = view
        self._news = news
        self.pending = Pending((), register.states)
        self.touched: set[str] = set()
        self._tries: dict[str, int] = {}  # of starting, by key
        self._failures = 0  # to start anything, one after the other
        self._not_before: float | None = None  # monotonic: nothing is started until then
        self._later: dict[str, float] = {}  # monotonic: when jobs that were passed by have their turn again
        self._refused: dict[str, Attributes] = {}  # what was said of those that cannot be, by key
        self._in_vain: set[str] = set()  # those that wait for what will never be
        self._told_in_vain: dict[str, str] = {}  # and why, as it was told
        self.trouble = ""

    # -- what is to do -----------------------------------------------------------------------------------

    def load(self, entries: tuple[Entry, ...]) -> None:
        """The file says this, and no more."""
        self._register.see(entries)
        for entry in entries if self._refused else ():
            if entry.key in self._refused and self._refused[entry.key] != entry.attributes:  # possible now?
                del self._refused[entry.key]
                self._register.do(folding.reconsidered(entry.key))
        for key in self._in_vain:  # other lines may have changed
            self._register.do(folding.reconsidered(key), durable=False)
        self._in_vain.clear()
        self.pending = Pending(entries, self._register.states)
        self._later = {}
        self._cancel_marked(entries)

    def append(self, entries: tuple[Entry, ...]) -> None:
        """The file has these jobs, too."""
        self._register.see(entries)
        self.pending.append(entries)
        self._cancel_marked(entries)

    def entry(self, key: str) -> Entry | None:
        """The job's line, if it still has one."""
        return self.pending.entries.get(key)

    def put_back(self, key: str) -> None:
        """The job is to be started again, if its line is still there."""
        entry = self.entry(key)
        if entry is None:
            return
        if entry.attributes.cancel:
            self._cancel(entry)
        elif key not in self.pending:
            self.pending.put(entry)

    def _cancel_marked(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.attributes.cancel:
                self._cancel(entry)

    def _cancel(self, entry: Entry) -> None:
        state = self._register.states[entry.key]
        if state.status == "pending":
            self.touched.add(entry.key)
            self._register.do(folding.refused(entry.key, "cancelled", "its line says cancel", 0))
            self._news.tell("cancelled", state)
        elif state.status == "running" and not state.cancelling:
            self._register.do(folding.cancelling(entry.key, state.job))
            self._crew.stop(entry.key)
            self._news.tell("cancelling", state)

    # -- starting ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """See that there are GPUs, where jobs want some. Raises NoGpu, GpuError, and what a plan may."""
        for kind, entry in self.pending.heads(_MOST_KINDS):
            if not self._view.gpus and self._plan(kind, entry).need_gpus:
                self._view.open()

    def start(self) -> None:
        """Make ready what can be; see to it that the rest is waited for."""
        now = time.monotonic()
        if self._not_before is not None and now >= self._not_before:
            self._not_before = None
        for key in [key for key, at in self._later.items() if now >= at]:
            del self._later[key]
            self.pending.resume(key)
        if self._register.problem or self._not_before is not None:
            self._desk.keep(())
            return
        self._view.expire()
        kinds: list[Kind] | None = None
        while kinds is None and self._not_before is None:
            kinds = self._start_one()
        if self._not_before is None and not any(key in self.pending for key in self._tries):
            self.trouble, self._failures = "", 0
        self._desk.keep(kinds or ())

    def _start_one(self) -> list[Kind] | None:
        """Make the first job ready that can be (None), or tell which kinds are waited for."""
        kinds: list[Kind] = []
        for kind, entry in self.pending.heads(_MOST_KINDS):
            try:
                plan = self._plan(kind, entry)
            except (UsageError, ConfigError) as error:
                self._refuse(entry, error)
                return None
            if not self._may_begin(plan):
                continue
            try:
                granted = self._desk.ask(kind, entry, plan, self.pending.places, self._crew.gpus())
            except InfeasibleError as error:
                self._refuse(entry, error)
                return None
            except (UsageError, GpuError, StateError) as error:
                self._trouble(error)
                return kinds
            if granted is not None:
                self._begin(entry, granted)
                return None
            kinds.append(kind)
        return kinds

    def _plan(self, kind: Kind, entry: Entry) -> Plan:
        return self._plans.plan(entry, kind, self._register.states[entry.key].no)

    def _may_begin(self, plan: Plan) -> bool:
        """Whether the job may be made ready: in its turn, or a little ahead of it where it holds nothing."""
        if not plan.need_gpus and not plan.need_cpu_slots:
            return self._crew.ahead() < _MOST_AHEAD and self._crew.may_begin(None, None, is_unbound=True)
        return self._crew.may_begin(self._options.at_a_time, None, is_unbound=False)

    def _begin(self, entry: Entry, granted: Granted) -> None:
        self.pending.take(entry.key)
        self.touched.add(entry.key)
        try:
            if not self._crew.start(granted, self._register.states[entry.key]):
                self.put_back(entry.key)
                self.pause()
        except (BackendError, StateError) as error:
            self._could_not_start(entry.key, error)

    def let_go(self) -> None:
        """Let the commands begin that are ready. Only to be called when the register is saved."""
        for key in self._crew.let_go(self._options.at_a_time, self._most_unbound(), self._could_not_start):
            state = self._register.states[key]
            self._tries.pop(key, None)
            self._failures = 0
            self.trouble = ""
            self._news.tell("started", state, log=state.log)
            if state.cancelling:  # its line changed while it was being started
                self._crew.stop(key)

    def _most_unbound(self) -> int | None:
        """How many jobs that hold nothing may run at once, for nobody else limits them; None: as -j says."""
        return self._plans.cpus if self._options.at_a_time is None else None

    def call_off(self) -> None:
        """Nothing more is to begin."""
        self._desk.keep(())
        for key in self._crew.call_off():
            self.put_back(key)

    def _could_not_start(self, key: str, error: SlicerError) -> None:
        """Tried again for as long as it takes, unless it is the job itself that cannot be."""
        entry = self.entry(key)
        if isinstance(error, RefusedError) and entry is not None:
            self._refuse(entry, error, code=error.exit_code)
            return
        self.put_back(key)
        self._trouble(error)
        self._pass_by(key)

    def _pass_by(self, key: str) -> None:
        """One that could not be started: should it be alone with that, the others are not to wait for it."""
        self._tries[key] = self._tries.get(key, 0) + 1
        if self._tries[key] >= _PATIENCE and key in self.pending:
            self.pending.postpone(key)
            self._later[key] = time.monotonic() + 2 * _pause_s(self._tries[key])

    def could_not_begin(self, key: str) -> None:
        """The job was made ready, but its command never began: as if it could not be started."""
        self.pause()
        self._pass_by(key)

    def _refuse(self, entry: Entry, error: SlicerError, code: int = 1) -> None:
        reason = plans.reason_of(error)
        self.pending.take(entry.key)
        self.touched.add(entry.key)
        self._refused[entry.key] = entry.attributes
        self._register.do(folding.refused(entry.key, "infeasible", reason, code))
        self._news.tell("infeasible", self._register.states[entry.key], reason=reason)
        self.pending.release()

    def give_up(self) -> None:
        """Settle the jobs that wait for what will never be: nobody is to wait for them."""
        for key, why in self.pending.never.copy().items():
            self.pending.take(key)
            self.touched.add(key)
            self._in_vain.add(key)
            self._register.do(folding.refused(key, "infeasible", why, 1))
            if self._told_in_vain.get(key) != why:
                self._told_in_vain[key] = why
                self._news.tell("unrunnable", self._register.states[key], why=why)

    # -- when something is in the way --------------------------------------------------------------------

    def _trouble(self, error: SlicerError) -> None:
        """Said once, tried again for as long as it takes."""
        text = str(error)
        if text != self.trouble:
            self.trouble = text
            self._news.warning(text)
        self.pause()

    def pause(self) -> None:
        """Start nothing for a moment, and for longer each time until something can be started."""
        self._failures += 1
        self._not_before = time.monotonic() + _pause_s(self._failures)

    def left_s(self) -> float | None:
        """After how many seconds to :meth:`start` again though nothing happens; None: not at all."""
        due = [*self._later.values(), *([] if self._not_before is None else [self._not_before])]
        return max(0.0, min(due) - time.monotonic()) if due else None


def _pause_s(failures: int) -> float:
    return min(_AGAIN_MOST_S, _AGAIN_S * 2.0 ** min(failures - 1, 10))
