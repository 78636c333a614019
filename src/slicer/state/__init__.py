"""The places of slicer's own files, and how they are read back."""

from __future__ import annotations

BROKER_DIRECTORY = "/run/slicer-broker"  # root's, readable by all; not /run/slicer, root's private ledger
BROKER = f"{BROKER_DIRECTORY}/socket"  # here, so that nothing of the broker is imported if there is none
# systemd's own mark that the broker is switched on. Only root can create it, and it survives restarts.
BROKER_ENABLED = "/etc/systemd/system/sockets.target.wants/slicer-broker.socket"
