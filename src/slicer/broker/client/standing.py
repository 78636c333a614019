"""The leases and tickets of this machine, from the broker."""

from __future__ import annotations

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


def jobs(environ: Mapping[str, str], own: Snapshot, warn: Callable[[str], None]) -> Snapshot:
    """The jobs of all users if there is a broker, else the user's ``own``, which are in the user's ledger.

    Warns of a broker that does not answer.
    """
    path = broker_socket(environ)
    if not path:
        return own
    try:
        found = everybody(path)
    except BrokerError as error:
        warn(str(error))
        return own
    return joined(own, Snapshot(found.leases, found.tickets))
