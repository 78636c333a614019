"""A preemptible job decides about itself whether it gives way to a request that waits.

Its supervisor looks at the ledger, once the job has run for its ``min_run``. Every supervisor decides by the
same function over the same files, and notes what it does under the same lock. So no two jobs give way where
one is enough, and no process signals another's job. With a broker, that decides by the same function for all
users, and the supervisors read what it has noted.
"""

from __future__ import annotations

import os
import time

from slicer.errors import GpuError
from slicer.gpu.observer import GpuObserver
from slicer.kernel import proc
from slicer.kernel.sleep import seconds_until
from slicer.ledger.halted import is_attended
from slicer.model import Lease
from slicer.placement.giving_way import asked
from slicer.state import statefile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.job.job import Job
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger

_LOOK_S = 1.0


class GivingWay:
    """Follows one job with ``min_run_s`` in its lease."""

    def __init__(self, job: Job, held: HeldLease, ledger: Ledger) -> None:
        self._held = held
        self._ledger = ledger
        self._broker = job.broker
        self._observer = GpuObserver(job.policy)
        self._due: float | None = None
        self._wait()

    def left_s(self) -> float | None:
        """The seconds until the next look; None: there will be none."""
        return seconds_until(self._due)

    def look(self) -> str:
        """The name of the job to which this one gives way from now on; "" for none. Raises StateError."""
        self._wait()
        if self._broker:
            if noted := noted_by(self._broker, self._held.lease.job):
                self._due = None
                self._held.update(**noted)
            return self._held.lease.gives_way_to
        if not self._ledger.directory.tickets.names():
            self._observer.close()
            return ""
        try:
            self._observer.observe()  # before the lock, because the driver is slow
        except GpuError:
            self._observer.close()  # then nobody can be granted a GPU
        self._held.update_by(self._decided)
        if self._held.lease.gives_way_by_s is not None:
            self._due = None
            self._observer.close()
        return self._held.lease.gives_way_to

    def _wait(self) -> None:
        lease, now_s = self._held.lease, proc.now_s()
        assert lease.min_run_s is not None
        self._due = time.monotonic() + max(_LOOK_S, lease.since_s + lease.min_run_s - now_s)

    def _decided(self) -> dict[str, Any]:
        book = self._ledger.decided(self._observer)
        able = [lease for lease in book.leases if lease.min_run_s is not None]
        unaware = {lease.job for lease in able if not is_attended(lease)}
        ticket = asked(book, unaware).get(self._held.lease.job)
        if ticket is None:
            return {}
        by_s = round(book.now_s + (self._held.lease.stop_s or 0.0), 6)
        return {"gives_way_to": ticket.name or ticket.job, "gives_way_by_s": by_s}


def noted_by(broker: str, job: str) -> dict[str, Any]:
    """What the broker at that socket has noted in its own file of the lease; nothing: it goes on."""
    try:
        with open(f"{os.path.dirname(broker)}/leases/{job}", "rb") as file:
            lease = statefile.decode(Lease, file.read())
    except (FileNotFoundError, statefile.TornFile):  # it is over; or that broker is of another version
        return {}
    if lease.gives_way_by_s is None:
        return {}
    return {"gives_way_to": lease.gives_way_to, "gives_way_by_s": lease.gives_way_by_s}
