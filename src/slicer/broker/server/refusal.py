"""Why a call is not served: an error of io.slicer.Broker on its way to the caller."""

from __future__ import annotations

from slicer.errors import (
    BackendError,
    DeadlockError,
    GpuError,
    InfeasibleError,
    NoGpu,
    NotAllowedError,
    RefusedError,
    SlicerError,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Refusal(Exception):
    """``name`` is one of :data:`slicer.broker.protocol.messages.ERRORS`, ``more`` its own parameters."""

    def __init__(self, name: str, message: str, *, where: str = "", hint: str = "", **more: Any) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.where = where
        self.hint = hint
        self.more = more


_NAMES: tuple[tuple[type[SlicerError], str], ...] = (
    (NotAllowedError, "NotAllowed"),
    (InfeasibleError, "Infeasible"),
    (UsageError, "Infeasible"),  # a GPU that is not there
    (DeadlockError, "Deadlock"),
    (NoGpu, "NoGpu"),
    (GpuError, "Broken"),
    (RefusedError, "RefusedLimit"),
    (BackendError, "Broken"),
)


def refusal_of(error: SlicerError) -> Refusal:
    """What a caller is told of an error in slicer."""
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), "Broken")
    more = {"reason": _reason(error)} if name == "NoGpu" else {}
    return Refusal(name, error.message, where=error.where, hint=error.hint, **more)


def _reason(error: SlicerError) -> str:
    return str(getattr(error, "reason", ""))
