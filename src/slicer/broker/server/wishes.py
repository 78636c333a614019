"""What systemd is told of a job's scope: what its owner may ask for, and what the administrator adds."""

from __future__ import annotations

from slicer.config.properties import parse_property
from slicer.errors import RefusedError
from slicer.gpu import device_nodes, fence, has_nvidia
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.broker.protocol.messages import Set, Start
    from slicer.broker.server.deciding import Decider
    from slicer.broker.server.register import Holding
    from slicer.broker.server.rulebook import Rulebook
    from slicer.model import Fence, Host, Property


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
        """What the scope of a lease gets. Raises RefusedError."""
        limits = self._checked(asked.limits)
        fenced = self._fence(holding)
        found = (*limits, *fenced)
        return Wish(found, tuple(each.name for each in found), bool(fenced))

    def changes(self, asked: Set, holding: Holding) -> tuple[Property, ...]:
        """What may be changed of a scope that stands. Raises RefusedError."""
        return self._checked(asked.limits)

    def _checked(self, limits: tuple[tuple[str, str], ...]) -> tuple[Property, ...]:
        return tuple(
            parse_property(name, text, self._host, name, error=RefusedError) for name, text in limits
        )

    def _fence(self, holding: Holding) -> tuple[Property, ...]:
        word: Fence = self._rulebook.policy.fence  # type: ignore[assignment]
        if word == "off" or (word == "auto" and not has_nvidia()):
            return ()
        minors = self._minors(holding)
        return fence.properties(minors, device_nodes.caps_of(minors), self._rulebook.policy.devices)

    def _minors(self, holding: Holding) -> tuple[int, ...]:
        known = {gpu.uuid: gpu.minor for gpu in self._decider.observer.gpus}
        return tuple(known[uuid] for uuid in holding.lease.gpus if uuid in known)

    def driver_cap(self, holding: Holding) -> str:
        """Why the driver does not cap the scope; "" if it does."""
        return ""
