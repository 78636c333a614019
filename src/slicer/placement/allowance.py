"""The interface to a policy's caps, as a decision uses it. Pure.

:mod:`slicer.broker.rules.allowance` implements it. A ledger of one user has no caps and does not use it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol, TypeVar

    from slicer.model import Busy, Lease, Request
    from slicer.placement.devices import Device

    _Request = TypeVar("_Request", bound=Request)

    class Balance(Protocol):
        """The rest of all caps while a decision goes through the queue. It only shrinks."""

        def within(self, request: _Request) -> _Request | None:
            """The request within the caps of its user and groups; None: it is over them.

            The result may have a narrower choice of GPUs.
            """

        def take(self, request: Request, gpus: tuple[str, ...]) -> None:
            """Count these GPUs, and the other needs of the request, as granted."""

        def keep(self, request: Request) -> None:
            """Keep what the request needs from later ones under the same caps. Others lose nothing."""

        def busy(self, request: Request, leases: Iterable[Lease]) -> Busy | None:
            """Why a request over a cap waits, with the leases that count; None: it is within all caps."""

    class Allowance(Protocol):
        def balance(self, leases: Iterable[Lease], devices: tuple[Device, ...] | None) -> Balance:
            """The rest of the caps beside these leases."""
