"""Enforces the policy's ``idle_timeout``, whatever the jobs' supervisors do.

A supervisor has the same limits from its lease. It tells the user, and ends the job before the broker would.
"""

from __future__ import annotations

from collections.abc import Callable

from slicer.broker.server.cleanup import Overtime
from slicer.broker.server.deciding import Decider
from slicer.broker.server.leases import Holding, Leases
from slicer.broker.server.loop import Due, Loop
from slicer.errors import GpuError, SlicerError
from slicer.gpu.idle import IdleTime, begun, step
from slicer.kernel import proc
from slicer.ledger.halted import halt_of
from slicer.record import replace

LOOK_S = 5.0
LATER_S = 15.0  # than a supervisor


class Idleness:
    """Looks at the GPUs of all leases with a limit, as long as there are any."""

    def __init__(
        self, leases: Leases, decider: Decider, overtime: Overtime, on: Loop, log: Callable[[str], None]
    ) -> None:
        self._leases = leases
        self._decider = decider
        self._overtime = overtime
        self._loop = on
        self._log = log
        self._times: dict[str, IdleTime] = {}
        self._next: Due | None = None
        self._trouble = ""

    def expect(self) -> bool:
        """See to it that the next look comes. Returns whether there is anything to look at."""
        has_some = any(lease.idle_warn_s is not None for lease in self._leases.listed)
        if has_some and self._next is None:
            self._next = self._loop.after(LOOK_S, self._look)
        return has_some

    def _look(self) -> None:
        self._next = None
        self._times = {job: time for job, time in self._times.items() if job in self._leases.holdings}
        used: dict[str, bool | None] = {}  # nobody is idle while the driver fails
        try:
            self._decider.observer.observe()
            used = self._decider.observer.in_use(self._leases.listed)
        except GpuError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._log(f"<4>whether GPUs are used cannot be determined: {error}")
        for holding in list(self._leases.holdings.values()):
            if holding.lease.idle_warn_s is not None:
                self._follow(holding, holding.lease.idle_warn_s, used.get(holding.lease.job) is not False)

    def _follow(self, holding: Holding, warn_s: float, is_used: bool) -> None:
        lease, at_s = holding.lease, proc.now_s()
        time, turn = step(
            self._times.get(lease.job) or begun(at_s, lease), at_s, is_used=is_used, warn_s=warn_s,
            stands_still=not is_used and halt_of(lease, None) is not None,
            end_s=None if lease.idle_end_s is None else lease.idle_end_s + LATER_S,
        )  # fmt: skip
        self._times[lease.job] = time
        told = f"uid {lease.uid}: {lease.job} {'uses' if turn == 'used' else 'does not use'} its GPU"
        if turn == "ends":
            del self._times[lease.job]  # if it stays, it is ended once more
            self._overtime.end(holding, told)
        elif turn:
            self._log(f"<5>{told}")
            since_s = None if turn == "used" else round(time.since_s, 6)
            try:
                self._leases.rewrite(holding, replace(lease, idle_since_s=since_s))
            except SlicerError as error:
                self._log(f"<4>{lease.job}: {error}")
