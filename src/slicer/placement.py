"""Who gets what: a pure decision over one snapshot of the ledger.

Semantics: GPUs are exclusive here, CPU slots are counted. A request takes all that it asks for at once or
nothing. Tickets ahead of it go first: what they could take now is set aside for them, and one that is
blocked keeps whatever is free of the kinds it wants, so that smaller requests behind it cannot starve it.
"""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from slicer.model import Lease, Request, Ticket

    Kind = Literal["gpu", "cpu"]


@record
class Inventory:
    """What this machine has to give: GPUs by UUID in PCI order, and the number of CPU slots."""

    gpus: tuple[str, ...]
    cpu_slots: int


@record
class Granted:
    gpus: tuple[str, ...]
    cpu_slots: int


@record
class Busy:
    """``holders`` have what is missing; empty when only earlier tickets stand in the way."""

    kind: Kind
    holders: tuple[Lease, ...]
    ahead: int  # tickets that go first


@record
class Infeasible:
    """Not even an empty machine could serve the request."""

    kind: Kind
    wanted: int
    total: int


def free(inventory: Inventory, leases: Iterable[Lease]) -> tuple[tuple[str, ...], int]:
    """The GPUs and the number of CPU slots that no lease holds."""
    held = tuple(leases)
    taken = {gpu for lease in held for gpu in lease.gpus}
    slots = inventory.cpu_slots - sum(lease.cpu_slots for lease in held)
    return tuple(gpu for gpu in inventory.gpus if gpu not in taken), max(0, slots)


def decide(
    request: Request, inventory: Inventory, leases: tuple[Lease, ...], ahead: tuple[Ticket, ...]
) -> Granted | Busy | Infeasible:
    """Whether ``request`` may have its lease now, given the tickets ``ahead`` of it in their order."""
    if request.gpus > len(inventory.gpus):
        return Infeasible("gpu", request.gpus, len(inventory.gpus))
    if request.cpu_slots > inventory.cpu_slots:
        return Infeasible("cpu", request.cpu_slots, inventory.cpu_slots)
    gpus, slots = free(inventory, leases)
    for ticket in ahead:
        fits = ticket.gpus <= len(gpus) and ticket.cpu_slots <= slots
        # A blocked ticket keeps what is free of the kinds it wants; other kinds pass it by.
        gpus = gpus[ticket.gpus if fits else len(gpus) if ticket.gpus else 0 :]
        slots -= ticket.cpu_slots if fits else slots if ticket.cpu_slots else 0
    if request.gpus > len(gpus):
        return Busy("gpu", tuple(lease for lease in leases if lease.gpus), len(ahead))
    if request.cpu_slots > slots:
        return Busy("cpu", tuple(lease for lease in leases if lease.cpu_slots), len(ahead))
    return Granted(gpus[: request.gpus], request.cpu_slots)


def expected_remaining(lease: Lease, now_s: float) -> float | None:
    """Seconds that the holder is still expected to need (never negative); None when it gave no estimate."""
    return None if lease.expect_s is None else max(0.0, lease.since_s + lease.expect_s - now_s)


def first_to_finish(holders: tuple[Lease, ...], now_s: float) -> Lease | None:
    """The holder worth naming: the one expected to finish first, else the one that has held longest."""

    def rank(lease: Lease) -> tuple[bool, float, float]:
        left = expected_remaining(lease, now_s)
        return left is None, left or 0.0, lease.since_s

    return min(holders, key=rank, default=None)
