"""The broker's units: the files, their program, and the commands for systemd."""

from __future__ import annotations

import os

from slicer.backend.unit_files import SYSTEM_UNITS, is_plain, read
from slicer.kernel import on_host
from slicer.state import BROKER_ENABLED

SOCKET = "slicer-broker.socket"
SERVICE = "slicer-broker.service"
_FOLDER = "lib/systemd/system"
_UNITS = (
    (SOCKET, "the broker's socket"),
    (SERVICE, "the broker"),
    ("slicer-broker-devices.service", "NVIDIA's device nodes, for the broker"),
    ("slicer-job-ended.target", "what wakes the broker at the end of a job"),
)
# As in the package's file: the path of the program in Debian's package.
PROGRAM = "/usr/lib/slicer-systemd/slicer-broker"

ENABLE = (
    ("systemctl", "enable", "--now", SOCKET),
    # A running one is of the older version. Its leases and its queue outlive it.
    ("systemctl", "try-restart", SERVICE),
)
DISABLE = (("systemctl", "disable", "--now", SOCKET),)  # the service requires the socket, so it stops with it


def table() -> tuple[tuple[str, str, str], ...]:
    """Source below src/slicer/, destination below the prefix, description."""
    return tuple((f"_units/system/{name}", f"{_FOLDER}/{name}", what) for name, what in _UNITS)


def program_of() -> str:
    """The program in the unit of `slicer install`; "" without such a unit."""
    text = read(on_host(f"{SYSTEM_UNITS}/{SERVICE}"))
    if text is None:
        return ""
    lines = text.decode("utf-8", "replace").splitlines()
    found = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    return found[0] if len(found) == 1 and found[0].startswith("/") and is_plain(found[0]) else PROGRAM


def is_installed() -> bool:
    """Whether the broker was installed or enabled, by slicer or by a package."""
    return any(os.path.lexists(on_host(path)) for path in (BROKER_ENABLED, f"{SYSTEM_UNITS}/{SOCKET}"))
