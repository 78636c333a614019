"""Who holds what on this machine, who waits, and what is free: the data behind ``slicer status``."""

from __future__ import annotations

import os

from slicer import placement, profiles, statedir
from slicer.errors import SlicerError
from slicer.ledger import Ledger, Snapshot, now_s
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.model import Gpu, Lease, Ticket


@record
class Status:
    """One look at the ledger and the machine."""

    directory: str  # the ledger's; "" while nothing has run yet
    shared: bool  # whether all users' jobs meet in it
    leases: tuple[Lease, ...]  # the oldest first
    tickets: tuple[Ticket, ...]  # in their order
    gpus: tuple[Gpu, ...]
    free_gpus: tuple[str, ...]  # UUIDs
    no_gpus: str  # why there are none to list; "" where there are
    cpu_slots: int | None  # None: the configuration cannot be read
    free_cpu_slots: int | None
    now_s: float  # the ledger's clock

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of that UUID, if the driver lists it."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def look(environ: Mapping[str, str], warn: Callable[[str], None]) -> Status:
    """The state of things now. What cannot be found out is said through ``warn`` and left out.

    Raises StateError where there is a ledger that cannot be used.
    """
    book = existing_ledger(environ, warn)
    seen = book.snapshot() if book else Snapshot((), ())
    gpus, no_gpus = _gpus(warn)
    slots = _cpu_slots(environ, warn)
    inventory = placement.Inventory(tuple(gpu.uuid for gpu in gpus), slots or 0)
    free_gpus, free_slots = placement.free(inventory, seen.leases)
    return Status(
        directory=book.directory.path if book else "",
        shared=book.directory.shared if book else False,
        leases=tuple(sorted(seen.leases, key=lambda lease: (lease.since_s, lease.job))),
        tickets=seen.tickets,
        gpus=gpus,
        free_gpus=free_gpus,
        no_gpus=no_gpus,
        cpu_slots=slots,
        free_cpu_slots=None if slots is None else free_slots,
        now_s=now_s(),
    )


def existing_ledger(environ: Mapping[str, str], warn: Callable[[str], None]) -> Ledger | None:
    """The caller's ledger, None while there is none: looking must not make one. Raises StateError."""
    path = statedir.where(environ, os.geteuid())
    if not os.path.lexists(path):
        return None
    return Ledger(statedir.locate(environ, os.geteuid()), warn)


def _cpu_slots(environ: Mapping[str, str], warn: Callable[[str], None]) -> int | None:
    try:
        return profiles.load(environ, profiles.host()).slots_cpu
    except SlicerError as error:
        warn(str(error))  # a broken configuration stops no job, so it must not hide them either
        return None


def _gpus(warn: Callable[[str], None]) -> tuple[tuple[Gpu, ...], str]:
    from slicer.gpu import GpuError, open_gpus

    try:
        gpus = open_gpus()
        try:
            found = gpus.list()
            for note in gpus.notes():
                warn(note)
        finally:
            gpus.close()
    except GpuError as error:
        return (), error.message
    return found, "" if found else "the driver lists none"
