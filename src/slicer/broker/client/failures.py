"""The broker's errors as slicer's own."""

from __future__ import annotations

from slicer.errors import (
    BackendError,
    BrokerError,
    BusyError,
    DeadlockError,
    InfeasibleError,
    NoGpu,
    NotAllowedError,
    RefusedError,
    SlicerError,
    TooManyError,
)
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.broker.protocol.wire import ErrorReply

HINT = "see systemctl status slicer-broker.socket slicer-broker.service"


class GoneError(BackendError):
    """The broker knows no such job of ours, or not any more."""


_KINDS: dict[str, type[SlicerError]] = {
    "Infeasible": InfeasibleError,
    "NotAllowed": NotAllowedError,
    "RefusedLimit": RefusedError,
    "BadProcess": BackendError,
    "NoSuchJob": GoneError,
    "JobExists": BackendError,
    "Deadlock": DeadlockError,
    "TooMany": TooManyError,
}
_NO_GPU_REASONS = (
    "no-pynvml", "no-library", "no-driver", "driver-mismatch", "no-devices", "permission", "fenced",
)  # fmt: skip


def failure_of(reply: ErrorReply, waited_s: float | None = None) -> SlicerError:
    """What to raise for an error of the broker. ``waited_s``: how long the request waited; None: not at all.

    An error that this slicer does not know is one of a broker that does not work for it.
    """
    if reply.name == "Busy" and reply.busy is not None:
        busy = replace(reply.busy, why=reply.busy.why or reply.hint)  # what the policy has to do with it
        return BusyError(busy, waited_s=waited_s)
    if reply.name == "NoGpu":
        reason = reply.reason if reply.reason in _NO_GPU_REASONS else "no-driver"
        return NoGpu(reason, reply.message, hint=reply.hint)  # type: ignore[arg-type]
    kind = _KINDS.get(reply.name)
    if kind is not None:
        return kind(reply.message, where=reply.where, hint=reply.hint)
    message = reply.message or reply.name
    return BrokerError(f"the broker says: {message}", where=reply.where, hint=reply.hint or HINT)
