"""What systemd is told of a job's scope: what its owner may ask for, and what the administrator adds."""

from __future__ import annotations

from slicer.broker.rules import limits
from slicer.gpu import device_nodes, driver_cap, fence, has_nvidia
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
    has_cap: bool  # the driver is to keep the share of its GPUs


class Wishes:
    """Checks what callers ask for, by the administrator's word."""

    def __init__(self, rulebook: Rulebook, decider: Decider, host: Host) -> None:
        self._rulebook = rulebook
        self._decider = decider
        self._host = host

    def of(self, asked: Start, holding: Holding) -> Wish:
        """What the scope of a lease gets. Raises RefusedError."""
        lease, gids = holding.lease, holding.claim.gids
        found = limits.checked(asked.limits, self._host)
        if lease.gpus or lease.slots:
            found = limits.held_at_most(found, self._rulebook.caps(lease.uid, gids).max_hold_s)
        fenced = self._fence(holding)
        found = (*found, *fenced)
        return Wish(found, tuple(each.name for each in found), bool(fenced), asked.share_cap)

    def changes(self, asked: Set) -> tuple[Property, ...]:
        """What may be changed of a scope that stands. Raises RefusedError."""
        return limits.changes(asked.limits, self._host)

    def _fence(self, holding: Holding) -> tuple[Property, ...]:
        word: Fence = self._rulebook.policy.fence  # type: ignore[assignment]
        if word == "off" or (word == "auto" and not has_nvidia()):
            return ()
        minors = self._minors(holding)
        return fence.properties(minors, device_nodes.caps_of(minors), self._rulebook.policy.devices)

    def _minors(self, holding: Holding) -> tuple[int, ...]:
        known = {gpu.uuid: gpu.minor for gpu in self._decider.observer.gpus}
        return tuple(known[uuid] for uuid in holding.lease.gpus if uuid in known)

    def driver_cap(self, holding: Holding, wish: Wish) -> str:
        """Have the driver hold the scope to its share of its GPUs. Returns why it does not; "": it does."""
        lease = holding.lease
        if not wish.has_cap:
            return "it was not asked to"
        if not lease.gpus or lease.vram_mib is None:
            return "the job has no share of a GPU"
        return driver_cap.keep(lease.cgroup, lease.unit, lease.gpus, lease.vram_mib << 20)
