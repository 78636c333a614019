"""Who holds what and who waits on this machine, as the broker has it."""

from __future__ import annotations

from slicer.broker.client.calls import ask
from slicer.broker.protocol.messages import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.broker.protocol.messages import Standing


def standing(path: str) -> Standing:
    """All leases and tickets, of all users. Raises BrokerError."""
    found: Standing = ask(path, Status())
    return found
