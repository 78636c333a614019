"""A scope that stands, or is about to, before its job has its lease."""

from __future__ import annotations

from slicer.broker.server.watch import watch_scope
from slicer.model import unit_name
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.protocol.messages import StartedScope
    from slicer.broker.server.book import EarlyScope
    from slicer.broker.server.connections import Connection
    from slicer.broker.server.loop import Loop
    from slicer.broker.server.watch import ScopeWatch
    from slicer.model import Lease


class Early:
    """One such scope, from Start until its ticket or its lease has ended."""

    def __init__(self, record: EarlyScope, connection: Connection | None = None) -> None:
        self.record = record
        self.is_starting = connection is not None  # systemd is at it
        self.connection = connection  # who hears that it stands
        self.granted: Connection | None = None  # who hears that the job has its lease, once it has
        self.told: StartedScope | None = None  # what its owner is told of it; None: from before a restart
        self._watch: ScopeWatch | None = None

    @property
    def unit(self) -> str:
        return unit_name(self.record.job)

    def named_in(self, lease: Lease) -> Lease:
        """The lease with this scope in it."""
        found = self.record
        return replace(lease, keeper=found.keeper, unit=self.unit, cgroup=found.cgroup)

    def watch(self, on: Loop, emptied: Callable[[], None]) -> bool:
        """Have ``emptied`` called when nobody is in it any more; False: that is so already."""
        self.close()
        self._watch = watch_scope(on, self.record.cgroup, emptied)
        return self._watch is not None

    def is_populated(self) -> bool:
        """Whether it is watched, and somebody is in it."""
        return self._watch is not None and self._watch.is_populated()

    def close(self) -> None:
        """Watch it no more. Safe to repeat."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
