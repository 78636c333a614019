"""Has preemptible jobs give way to other users' requests, and to their own user's.

What is decided is noted in the lease. The job's supervisor reads that, tells the user, and ends the job. If
it was killed or stopped, the broker ends the job at once; if it does not act, a moment after the job should
have ended.
"""

from __future__ import annotations

from collections.abc import Callable

from slicer.broker.server.cleanup import Overtime
from slicer.broker.server.deciding import Decider
from slicer.broker.server.leases import Holding, Leases
from slicer.broker.server.loop import Due, Loop
from slicer.errors import SlicerError
from slicer.kernel import proc
from slicer.ledger.halted import is_attended
from slicer.model import Ticket
from slicer.placement.giving_way import asked
from slicer.record import replace

LOOK_S = 1.0  # supervisors look as often
LATER_S = 15.0  # than a supervisor; then again after each such time


class Preemption:
    """Looks whom to ask while somebody waits, and follows those that were asked until they have ended."""

    def __init__(
        self, leases: Leases, decider: Decider, overtime: Overtime, on: Loop, log: Callable[[str], None]
    ) -> None:
        self._leases = leases
        self._decider = decider
        self._overtime = overtime
        self._loop = on
        self._log = log
        self._next: Due | None = None
        self._again_s: dict[str, float] = {}  # by job: not ended once more before

    def expect(self) -> bool:
        """See to it that the next look comes. Returns whether a job gives way."""
        able = [lease for lease in self._leases.listed if lease.min_run_s is not None]
        is_any = any(lease.gives_way_by_s is not None for lease in able)
        if self._next is None and (is_any or (able and self._leases.waiters)):
            self._next = self._loop.after(LOOK_S, self._look)
        return is_any

    def _look(self) -> None:
        self._next = None
        self._again_s = {job: at_s for job, at_s in self._again_s.items() if job in self._leases.holdings}
        if self._leases.waiters:
            for job, ticket in asked(self._decider.decide().book).items():
                self._note(self._leases.holdings[job], ticket)
        for holding in list(self._leases.holdings.values()):
            if holding.lease.gives_way_by_s is not None:
                self._follow(holding, holding.lease.gives_way_by_s)

    def _note(self, holding: Holding, ticket: Ticket) -> None:
        lease, whom = holding.lease, ticket.name or ticket.job
        by_s = round(proc.now_s() + LOOK_S + (lease.stop_s or 0.0), 6)
        try:
            self._leases.rewrite(holding, replace(lease, gives_way_to=whom, gives_way_by_s=by_s))
        except SlicerError as error:
            self._log(f"<4>{lease.job}: {error}")
        else:
            self._log(f"<5>uid {lease.uid}: {lease.job} gives way to {ticket.job} of uid {ticket.uid}")

    def _follow(self, holding: Holding, by_s: float) -> None:
        """End it if its supervisor does not."""
        lease, now_s = holding.lease, proc.now_s()
        if is_attended(lease) and now_s < by_s + LATER_S:
            return
        if now_s >= self._again_s.get(lease.job, 0.0):
            self._again_s[lease.job] = now_s + LATER_S
            self._overtime.end(holding, f"uid {lease.uid}: {lease.job} has to give way")
