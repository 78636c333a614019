"""The leases and tickets of this machine, from the broker."""

from __future__ import annotations

import os

from slicer.backend import broker_socket
from slicer.errors import BrokerError
from slicer.ledger.ledger import Snapshot
from slicer.ledger.status import StatusReader, joined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.ledger import status
    from slicer.model import Standing


def everybody(path: str) -> Standing:
    """The leases and tickets of all users. Raises BrokerError."""
    # Imported only if there is a broker: this takes as long as the rest of this file.
    from slicer.broker.client.calls import ask
    from slicer.broker.protocol.messages import Status

    found: Standing = ask(path, Status())
    return found


def status_reader(environ: Mapping[str, str]) -> StatusReader:
    """A reader of the status: of all users if there is a broker."""
    path = broker_socket(environ)
    if not path:
        return StatusReader(environ)
    from slicer.broker.client.gpu_look import open_gpus

    return StatusReader(environ, lambda: everybody(path), open_gpus)


def read(environ: Mapping[str, str], warn: Callable[[str], None]) -> status.LedgerStatus:
    """The status now: of all users if there is a broker."""
    reader = status_reader(environ)
    try:
        return reader.read(warn)
    finally:
        reader.close()


def jobs(
    environ: Mapping[str, str], own: Snapshot, warn: Callable[[str], None]
) -> tuple[Snapshot, Snapshot]:
    """The jobs that this user may act on (root: all), and those of others.

    ``own``: those of the user's own ledger. Warns of a broker that does not answer.
    """
    path = broker_socket(environ)
    if not path:
        return own, Snapshot((), ())
    try:
        found = everybody(path)
    except BrokerError as error:
        warn(str(error))
        return own, Snapshot((), ())
    return of_user(joined(own, Snapshot(found.leases, found.tickets)), os.geteuid())


def of_user(seen: Snapshot, uid: int) -> tuple[Snapshot, Snapshot]:
    """The entries that the user may act on, and the others. Pure."""

    def part(is_mine: bool) -> Snapshot:
        leases = tuple(lease for lease in seen.leases if (uid in (0, lease.uid)) is is_mine)
        return Snapshot(leases, tuple(each for each in seen.tickets if (uid in (0, each.uid)) is is_mine))

    return part(True), part(False)
