"""The broker's units: the files, their program, and the commands for systemd."""

from __future__ import annotations

import os

from slicer.backend.unit_files import SYSTEM_UNITS, program_in
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
    return program_in(on_host(f"{SYSTEM_UNITS}/{SERVICE}"), PROGRAM)


def is_installed() -> bool:
    """Whether the broker was installed or enabled, by slicer or by a package."""
    return any(os.path.lexists(on_host(path)) for path in (BROKER_ENABLED, f"{SYSTEM_UNITS}/{SOCKET}"))
