"""Follows how long a job has not used its GPUs. Imported only for jobs that have a limit for that."""

from __future__ import annotations

import time

from slicer.gpu import idle
from slicer.kernel.proc import now_s
from slicer.ledger.halted import halt_of
from slicer.quantity import format_duration
from slicer.record import record
from slicer.share import arena

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from slicer.ledger.held_lease import HeldLease
    from slicer.model import Lease


@record
class IdleNews:
    """What has come of a job's idle time. "unknown": nobody can tell whether it uses its GPUs."""

    kind: Literal["warned", "used", "ends", "unknown"]
    idle_s: float = 0.0
    left_s: float | None = None  # until it is ended; None: it is not

    def words(self) -> str:
        idle_for = f"has not used its GPU for {format_duration(self.idle_s)}"
        if self.kind == "warned":
            left = "" if self.left_s is None else f"; it is ended in {format_duration(self.left_s)}"
            return idle_for + (left and f"{left}, unless it does")
        if self.kind == "ends":
            return f"{idle_for}, and is ended"
        if self.kind == "used":
            return "uses its GPU again"
        return "has an idle_timeout that has no effect: the driver does not report whether it uses its GPU"


class IdleWatch:
    """Follows one job with ``idle_warn_s`` in its lease."""

    def __init__(self, held: HeldLease, *, shares: bool) -> None:
        self._held = held
        self._shares = shares
        self._time = idle.begun(now_s(), held.lease)
        self._memory_mib: tuple[int, ...] = ()
        self._is_blind = False  # that has been said

    def look(self, used: bool | None, memory_mib: tuple[int, ...]) -> IdleNews | None:
        """Note whether the job has used its GPUs (None: nobody can tell), and its memory there.

        Raises StateError.
        """
        lease, at_s = self._held.lease, now_s()
        warn_s, end_s = lease.idle_warn_s, lease.idle_end_s
        assert warn_s is not None
        is_used = used is not False or memory_mib != (self._memory_mib or memory_mib)
        self._memory_mib = memory_mib
        if used is None and not self._is_blind:
            self._is_blind = True
            return IdleNews("unknown")
        self._time, turn = idle.step(
            self._time, at_s, is_used=is_used, stands_still=not is_used and self._stands_still(lease),
            warn_s=warn_s, end_s=end_s,
        )  # fmt: skip
        if not turn:
            return None
        idle_s = round(at_s - self._time.since_s)
        if turn != "ends":
            self._held.update(idle_since_s=None if turn == "used" else round(self._time.since_s, 6))
        left_s = None if end_s is None else round(max(end_s - idle_s, min(idle.WARNING_S, warn_s)))
        return IdleNews(turn, idle_s, left_s)

    def _stands_still(self, lease: Lease) -> bool:
        """Whether the job is paused or stopped, or waits for its turn on the GPU."""
        directory = self._held.directory
        if halt_of(lease, directory) is not None:
            return True
        turn = arena.read(directory, time.monotonic_ns()).get(lease.job) if self._shares else None
        return turn is not None and turn.doing == "waiting"
