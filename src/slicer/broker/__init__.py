"""One ledger for all users of a machine: a root helper decides, writes down, and asks systemd for scopes.

``protocol`` is what both ends know, ``rules`` decides (both pure); ``server`` is the helper, ``client`` what
``slicer run`` and its kin use. Nothing in ``client`` is needed by ``server``, nor the other way round.
"""

from __future__ import annotations

DIRECTORY = "/run/slicer-broker"  # root's, open to be read; not /run/slicer, which is root's private ledger
SOCKET = f"{DIRECTORY}/socket"
SOCKET_VARIABLE = "SLICER_BROKER"  # "off", or the path of another socket
