"""Why a job waits, as text for ``slicer status``."""

from __future__ import annotations

from slicer.job.words import describe_holders, left
from slicer.placement.refusal import refusal
from slicer.quantity import short_mib
from slicer.text import a_slot, counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicer.ledger.status import GpuState, LedgerStatus
    from slicer.model import Busy, Lease, Ticket


def reason(ticket: Ticket, status: LedgerStatus) -> str:
    """The reason, such as "held by train (about 3m left) and 1 other, behind 2 others"."""
    wait = status.waits[ticket.job]
    if wait.never is not None:
        return f"can never be served: {refusal(wait.never, ticket).message}"
    busy = wait.busy
    if wait.held_back:
        return wait.held_back
    if busy is None:
        return "about to start"
    parts = ["next, with a reservation"] if wait.is_reserving else []
    blocked = _blocked(ticket, busy, status)
    parts += blocked
    if not blocked and busy.reserved_for:
        names = (other.name for other in status.tickets if other.job == busy.reserved_for)
        name = next(names, "") or busy.reserved_for
        parts.append(f"what is free is kept for {name}, which waits longest")
    elif busy.ahead:
        parts.append(f"behind {counted(busy.ahead, 'other')}")
    return ", ".join(parts)


def _blocked(ticket: Ticket, busy: Busy, status: LedgerStatus) -> list[str]:
    """What would still be in the way if nobody else waited."""
    if busy.kind == "gpu" and ticket.gpus and not any(state.device for state in _pool(ticket, status)):
        return ["the GPUs cannot be examined"]
    parts = []
    if busy.holders and busy.slot and len(ticket.slots) > 1:
        parts.append(f"lacks {a_slot(busy.slot)}")
    if busy.holders:
        parts.append(f"held by {_holders(busy.holders, status)}")
    if busy.why:
        parts.append(busy.why)
    if busy.foreign:
        gpus = f"GPU{'s' if len(busy.foreign) > 1 else ''} {indices(busy.foreign, status)}"
        parts.append(f"processes outside slicer use {gpus}")
    if busy.kind == "gpu" and ticket.need_mib is not None and (busy.holders or busy.foreign):
        parts.insert(0, _short_of(ticket, ticket.need_mib, status))
    return parts


def _pool(ticket: Ticket, status: LedgerStatus) -> list[GpuState]:
    return [state for state in status.gpus if not ticket.gpu_choice or state.gpu.uuid in ticket.gpu_choice]


def _short_of(ticket: Ticket, need_mib: int, status: LedgerStatus) -> str:
    """Text such as "needs 40.5G free, GPU 1 has most: 23.1G"."""
    rooms = [
        (state.free_mib, state.gpu.index) for state in _pool(ticket, status) if state.free_mib is not None
    ]
    if ticket.gpus > 1 or not rooms:
        enough = sum(free_mib >= need_mib for free_mib, _ in rooms)
        have = f"only {enough} {'has' if enough == 1 else 'have'} that" if enough else "none has that"
        return f"needs {short_mib(need_mib)} free on {ticket.gpus} GPUs, {have}"
    most_mib, index = max(rooms, key=lambda room: (room[0], -room[1]))
    return f"needs {short_mib(need_mib)} free, GPU {index} has most: {short_mib(most_mib)}"


def _holders(holders: tuple[Lease, ...], status: LedgerStatus) -> str:
    def facts(lease: Lease) -> Iterable[str]:
        halt = status.halt(lease.job)
        return (halt.how if halt is not None else left(lease, status.now_s),)

    return describe_holders(holders, status.now_s, facts) or "nobody"


def indices(uuids: Iterable[str], status: LedgerStatus) -> str:
    """Text such as "0,2"; a question mark for a GPU that the driver does not list."""
    known = [status.gpu(uuid) for uuid in uuids]
    return ",".join(str(state.gpu.index) if state else "?" for state in known)
