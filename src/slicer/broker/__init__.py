"""One ledger for all users of a machine: a root helper decides, writes down, and asks systemd for scopes.

``protocol`` is what both ends know, ``rules`` decides (both pure); ``server`` is the helper, ``client`` what
``slicer run`` and its kin use. Nothing in ``client`` is needed by ``server``, nor the other way round.
"""

from __future__ import annotations

from slicer.backend import BROKER as SOCKET
from slicer.backend import BROKER_VARIABLE as SOCKET_VARIABLE

__all__ = ["DIRECTORY", "SOCKET", "SOCKET_VARIABLE"]

DIRECTORY = SOCKET.rpartition("/")[0]  # root's, open to be read; not /run/slicer, root's private ledger
