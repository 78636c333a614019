"""This machine and a cluster as one engine: what fits here now runs here, the rest goes to the cluster.

A line may name its engine. What runs, or waits in the cluster, is with one of the two until its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from slicer.errors import GpuError, InfeasibleError, SlicerError
from slicer.job.plan import Plan
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.engine import Begin, Engine
from slicer.queue.model import LOCAL, Entry, JobState, Kind, Place
from slicer.queue.plans import Plans
from slicer.queue.state.register import Register


class AutoEngine(Engine):
    """Made of two. ``name``: the cluster's, as lines and the journal say it."""

    def __init__(self, here: Engine, there: Engine, name: str, most: int | None) -> None:
        """``most``: how many jobs may run or wait in the cluster at a time; None: as the engines allow."""
        self._here = here
        self._there = there
        self._name = name
        self.parts = here, there
        self.broker, self.is_here = here.broker, here.is_here
        self._most = most
        self._lacks_gpus = False
        self._full: set[Kind] = set()  # kinds that did not fit here in this round

    def set_up(self, plans: Plans, register: Register) -> None:
        self._states = register.states
        super().set_up(plans, register)

    def check(self, entries: tuple[Entry, ...]) -> None:
        self._there.check(tuple(each for each in entries if each.attributes.kind.engine == self._name))
        self._here.check(tuple(each for each in entries if each.attributes.kind.engine != self._name))

    @property
    def has_gpus(self) -> bool:
        return self._here.has_gpus or self._lacks_gpus

    def open_gpus(self) -> None:
        try:
            self._here.open_gpus()
        except GpuError:
            self._lacks_gpus = True  # the cluster has some

    # -- places ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self._full.clear()

    def may_add(self, plan: Plan) -> bool:
        if self._most is not None and len(self._states.running) >= self._most:
            return False
        return self._here.may_add(plan) or self._there.may_add(plan)

    def ask(self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place]) -> Begin | None:
        wanted = kind.engine
        if wanted != self._name and self._may_be_here(kind, plan):
            try:
                begin = self._here.ask(kind, entry, plan, places)
            except InfeasibleError:
                if wanted == LOCAL:
                    raise
                begin = None
            if begin is not None or self._here.is_deciding:
                return begin
            self._full.add(kind)
        if wanted == LOCAL or not self._there.may_add(plan):
            return None
        return self._there.ask(kind, entry, plan, places)

    def _may_be_here(self, kind: Kind, plan: Plan) -> bool:
        is_out_of_reach = self._lacks_gpus and plan.missing.gpus > 0 and kind.engine != LOCAL
        return not is_out_of_reach and kind not in self._full and self._here.may_add(plan)

    # -- attempts whose commands have not started ----------------------------------------------------------

    def start_commands(self, *, is_saved: bool) -> tuple[list[str], list[tuple[str, SlicerError]]]:
        here, there = (engine.start_commands(is_saved=is_saved) for engine in self.parts)
        return here[0] + there[0], here[1] + there[1]

    def why_unstarted(self, job_id: str) -> str:
        return self._of(job_id).why_unstarted(job_id)

    def give_up(self, job_id: str) -> bool:
        return self._of(job_id).give_up(job_id)

    # -- running attempts ----------------------------------------------------------------------------------

    def _of(self, job_id: str) -> Engine:
        state = self._states.by_job(job_id)
        return self._there if state is not None and state.engine == self._name else self._here

    def recover(self, state: JobState) -> EndedAttempt | None:
        return (self._there if state.engine == self._name else self._here).recover(state)
