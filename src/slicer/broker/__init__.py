"""One ledger for all users of a machine: a root helper decides, records, and asks systemd for scopes.

``protocol`` is common to both ends, ``rules`` decides (both pure); ``server`` is the helper, ``client`` the
part for ``slicer run`` and the like. ``client`` and ``server`` do not need each other.
"""

from __future__ import annotations

from slicer.backend import BROKER as SOCKET
from slicer.backend import BROKER_VARIABLE as SOCKET_VARIABLE

__all__ = ["DIRECTORY", "SOCKET", "SOCKET_VARIABLE"]

DIRECTORY = SOCKET.rpartition("/")[0]  # root's, readable by all; not /run/slicer, root's private ledger
