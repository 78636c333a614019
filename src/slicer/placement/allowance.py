"""What the caps of a policy let each user have: how a decision asks. Pure.

:mod:`slicer.broker.rules.allowance` answers. A ledger of one user has no caps and asks nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol, TypeVar

    from slicer.model import Lease, Request
    from slicer.placement.capacity import Device

    _Request = TypeVar("_Request", bound=Request)

    class Balance(Protocol):
        """What is left of everybody's caps while a decision goes through the queue. It only shrinks."""

        def within(self, request: _Request) -> _Request | None:
            """The request as far as the caps of its user and groups allow it; None: it is over them.

            What comes back may have a narrower choice of GPUs.
            """

        def take(self, request: Request, gpus: tuple[str, ...]) -> None:
            """The request was granted these GPUs, and what else it wants."""

        def keep(self, request: Request) -> None:
            """Keep what the request needs from later ones that the same caps bind. No others lose by it."""

    class Allowance(Protocol):
        """The caps of all users."""

        def balance(self, leases: Iterable[Lease], devices: tuple[Device, ...] | None) -> Balance:
            """What is left of them beside these leases."""
