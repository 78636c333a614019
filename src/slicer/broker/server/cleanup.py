"""Ends leases without a scope that last too long, and empty scopes without a lease."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from slicer.broker.rules.units import scope_places
from slicer.broker.server.leases import Holding, Leases
from slicer.broker.server.loop import Due, Loop
from slicer.broker.server.policy_state import PolicyState
from slicer.broker.server.scopes import Scopes
from slicer.kernel import cgroup
from slicer.model import job_of_unit
from slicer.state.statefile import is_job_id

GRACE_S = 90.0  # systemd's DefaultTimeoutStopSec


class Overtime:
    """Ends leases without a scope that last longer than the policy allows. systemd ends scopes.

    A process may use its resources until its end. So the process is ended, as systemd would end a job:
    SIGTERM, and after a while SIGKILL. Until then nobody else gets the resources.
    """

    def __init__(
        self, leases: Leases, policy: PolicyState, scopes: Scopes, on: Loop, log: Callable[[str], None]
    ) -> None:
        self._leases = leases
        self._policy_state = policy
        self._scopes = scopes
        self._loop = on
        self._log = log
        for holding in leases.holdings.values():
            self.expect(holding)

    def expect(self, holding: Holding) -> None:
        """Schedule the end of a lease that was granted."""
        end_s = self._policy_state.first_end_s(self._leases.with_outer(holding))
        if end_s is not None and not holding.claim.held:
            holding.limit = self._loop.when(end_s, lambda: self._end(holding))

    def is_expected(self) -> bool:
        holdings = self._leases.holdings.values()
        return any(each.limit is not None and each.claim.binding == "process" for each in holdings)

    def _end(self, holding: Holding) -> None:
        if holding.claim.held or holding.is_starting:
            return  # systemd ends its scope
        told = f"uid {holding.lease.uid}: {holding.lease.job} has held its resources for too long"
        self._end_process(holding, told)

    def end(self, holding: Holding, told: str) -> None:
        """End any lease, and those inside it, which keep it. ``told``: why."""
        if holding.claim.held:
            self._log(f"<5>{told}: {holding.lease.unit} is stopped")
            self._scopes.stop(holding.lease.unit, lambda _: None)
        elif not holding.is_starting:
            self._end_process(holding, told)
        for each in self._leases.nested_in(holding):
            self.end(each, told)

    def _end_process(self, holding: Holding, told: str) -> None:
        if holding.claim.binding == "scope":  # slicer's own process, whose command was never started
            self._log(f"<5>{told}")
            self._leases.release(holding)
        else:
            self._signal(holding, signal.SIGTERM, told)
            holding.limit = self._loop.after(GRACE_S, lambda: self._kill(holding))

    def _kill(self, holding: Holding) -> None:
        holding.limit = None
        self._signal(holding, signal.SIGKILL, f"uid {holding.lease.uid}: {holding.lease.job} goes on")

    def _signal(self, holding: Holding, signo: signal.Signals, told: str) -> None:
        if holding.process is None:
            return
        self._log(f"<5>{told}: {signo.name} to its process {holding.lease.pid}")
        try:
            signal.pidfd_send_signal(holding.process.pidfd, signo)
        except ProcessLookupError:
            pass  # it is ending already
        except PermissionError:
            self._log(f"<4>{holding.lease.job}: no permission to end it: check CapabilityBoundingSet=")


_LOOKS_S = 1.0  # systemd itself takes milliseconds


class Leftovers:
    """Stops empty scopes without a lease that systemd still calls active, once two looks have found them.

    A process that is moved into another scope leaves its own one empty, and the kernel's event of that may
    come before systemd looks for it. Nothing else would end such a unit.
    """

    def __init__(self, leases: Leases, scopes: Scopes, on: Loop, log: Callable[[str], None]) -> None:
        self._leases = leases
        self._scopes = scopes
        self._loop = on
        self._log = log
        self._seen: frozenset[str] = frozenset()
        self._look: Due | None = None
        self.expect()  # left over by an earlier broker

    def expect(self) -> None:
        """Check again, because a lease has ended."""
        if self._look is None:
            self._look = self._loop.after(_LOOKS_S, self._stop_all)

    def _stop_all(self) -> None:
        self._look = None
        found = frozenset(filter(self._is_left, _units(self._scopes.above)))
        for place in found & self._seen:
            unit = os.path.basename(place)
            self._log(f"<6>{unit} is stopped: it is empty, and systemd has not noticed")
            self._scopes.stop(unit, lambda _: None)
        has_new = bool(found - self._seen)
        self._seen = found
        if has_new:
            self.expect()

    def _is_left(self, place: str) -> bool:
        job = job_of_unit(os.path.basename(place))
        if not is_job_id(job) or job in self._leases.holdings:
            return False
        try:
            return os.path.exists(cgroup.path_of(place)) and not cgroup.lives(place)
        except OSError:
            return False  # its state cannot be read now


def _units(above: str) -> list[str]:
    """The cgroups of all units in users' slices of jobs."""
    slices = [f"{place}/{name}" for place in scope_places(above) for name in _names(place)]
    return [f"{place}/{name}" for place in slices for name in _names(place)]


def _names(place: str) -> list[str]:
    try:
        return [name for name in os.listdir(cgroup.path_of(place)) if name.endswith((".slice", ".scope"))]
    except (FileNotFoundError, NotADirectoryError):
        return []
