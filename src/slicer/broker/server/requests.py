"""From a call to a ticket, with everything filled in that the caller may not set. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slicer.broker.protocol import wire
from slicer.broker.protocol.messages import ERRORS, Acquire, Preview
from slicer.broker.rules import views
from slicer.errors import BackendError, BusyError, NoGpu, NotAllowedError, SlicerError, UsageError
from slicer.model import Lease, Ticket, ticket_from
from slicer.record import as_dict, record
from slicer.state.statefile import are_slots


@record
class Caller:
    """The process at the other end of a connection, according to the kernel."""

    pid: int
    start: int
    uid: int
    gids: tuple[int, ...]
    boot_id: str


def ticket_of(
    asked: Acquire, caller: Caller, choice: tuple[str, ...], inside: tuple[Lease, ...],
    counted: Mapping[str, int], priority: int, arrived_s: float,
) -> Ticket:  # fmt: skip
    """The ticket of a request. ``choice``: the GPUs that it names; ``counted``: the administrator's slots;
    ``inside``: the leases of its outer jobs; ``priority``: among all users' requests. Raises NotAllowedError.
    """
    return ticket_from(
        asked, inside, arrived_s, pid=caller.pid, pid_start=caller.start, boot_id=caller.boot_id,
        uid=caller.uid, priority=priority, gpu_choice=choice, **_slots(asked, caller.uid, counted),
    )  # fmt: skip


def as_acquire(asked: Preview) -> Acquire:
    """The request for which a preview is wanted."""
    return Acquire(
        **as_dict(asked), job="0" * 12, name="", command="", profile="", binding="scope", expect_s=None,
        ahead_of="", wait=False, max_wait_s=None, runs_anyway=False,
    )  # fmt: skip


def _slots(asked: Acquire, uid: int, counted: Mapping[str, int]) -> dict[str, dict[str, int]]:
    slots = views.kept(asked.slots, uid, counted)
    limits = views.kept_limits(asked.slots, asked.slot_limits, uid, counted)
    if not are_slots(slots) or not are_slots(limits):
        raise NotAllowedError("the name of a slot is too long", hint="shorten it by a dozen letters")
    return {"slots": slots, "slot_limits": limits}


class Refusal(SlicerError):
    """An error with a name of its own: one of :data:`slicer.broker.protocol.messages.ERRORS`."""

    def __init__(self, name: str, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.name = name


_NAMES = {kind: name for name, kind in ERRORS.items()}
# Such as a GPU that does not exist; and systemd's errors, which are not the keeper's.
_NAMES |= {UsageError: "Infeasible", BackendError: "Broken"}


def error_frame(error: SlicerError) -> bytes:
    kinds = (kind for kind in type(error).__mro__ if kind in _NAMES)
    name = error.name if isinstance(error, Refusal) else next(map(_NAMES.__getitem__, kinds), "Broken")
    if isinstance(error, BusyError):  # its hint is for who is told by this process
        return wire.encode_error(name, error.message, busy=error.busy)
    reason = error.reason if isinstance(error, NoGpu) else None
    return wire.encode_error(name, error.message, error.where, error.hint, reason=reason)
