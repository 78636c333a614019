"""Leases without a scope that last longer than the policy allows (``max_hold``). systemd ends the scopes.

What a process holds by itself may be in use to its end. So the process is ended, as systemd would end a
job: SIGTERM, and after a while SIGKILL. Until it has gone nobody else gets what it holds.
"""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.server.loop import Loop
    from slicer.broker.server.register import Holding, Register
    from slicer.broker.server.rulebook import Rulebook

GRACE_S = 90.0  # systemd's DefaultTimeoutStopSec


class Overtime:
    """Ends who holds something for too long."""

    def __init__(
        self, register: Register, rulebook: Rulebook, on: Loop, log: Callable[[str], None]
    ) -> None:
        self._register = register
        self._rulebook = rulebook
        self._loop = on
        self._log = log
        for holding in register.holdings.values():
            self.expect(holding)

    def expect(self, holding: Holding) -> None:
        """See to the end of a lease that was given."""
        end_s = self._rulebook.hold_until_s(holding)
        if end_s is not None and not holding.claim.held:
            holding.limit = self._loop.when(end_s, lambda: self._end(holding))

    def is_expected(self) -> bool:
        """Whether a process is to be ended, now or later."""
        holdings = self._register.holdings.values()
        return any(each.limit is not None and each.claim.binding == "process" for each in holdings)

    def _end(self, holding: Holding) -> None:
        if holding.claim.held or holding.is_starting:
            return  # systemd ends its scope
        told = f"uid {holding.lease.uid}: {holding.lease.job} has held what it has for too long"
        if holding.claim.binding == "scope":  # slicer's own process, whose command was never started
            self._log(f"<5>{told}")
            self._register.release(holding)
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
            pass  # it ends just now
        except PermissionError:
            self._log(f"<4>{holding.lease.job}: no permission to end it: see CapabilityBoundingSet=")
