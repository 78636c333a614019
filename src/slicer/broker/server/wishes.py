"""What systemd is told of a job's scope: what its owner may ask for, and what the administrator adds."""

from __future__ import annotations

from slicer.broker.rules import limits
from slicer.broker.server.refusal import Refusal
from slicer.gpu import device_nodes, fence
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.broker.protocol.messages import Set, Start
    from slicer.broker.server.deciding import Decider
    from slicer.broker.server.register import Holding
    from slicer.broker.server.rulebook import Rulebook
    from slicer.model import Host, Property


@record
class Wish:
    """The properties of a scope, and what is told of them."""

    properties: tuple[Property, ...]
    words: tuple[str, ...]  # their directives
    is_fenced: bool


class Wishes:
    """Checks what callers ask for, by the administrator's word."""

    def __init__(self, rulebook: Rulebook, decider: Decider, host: Host) -> None:
        self._rulebook = rulebook
        self._decider = decider
        self._host = host

    def of(self, asked: Start, holding: Holding) -> Wish:
        """What the scope of a lease gets. Raises RefusedError, Refusal."""
        found = list(limits.checked(asked.limits, self._host))
        return Wish(tuple(found), tuple(each.name for each in found), False)

    def changes(self, asked: Set, holding: Holding) -> tuple[Property, ...]:
        """What may be changed of a scope that stands. Raises RefusedError."""
        return limits.checked(asked.limits, self._host)

    def driver_cap(self, holding: Holding) -> str:
        """Why the driver does not cap the scope; "" if it does."""
        return ""
