"""The units of ``slicer install --web`` and ``--metrics``: the files, their program, commands for systemd."""

from __future__ import annotations

import os

from slicer.backend.unit_files import SYSTEM_UNITS
from slicer.kernel import on_host

FEATURES = ("web", "metrics")
_FOLDER = "lib/systemd/system"
_ENABLED = "/etc/systemd/system"
# The unit that is enabled, and what wants it. It starts the service of the same name.
_STARTERS = {
    "web": ("slicer-web.socket", "sockets.target"),
    "metrics": ("slicer-metrics.timer", "timers.target"),
}
TEXTFILES = "/var/lib/prometheus/node-exporter"  # Debian's, as in the unit
_WHAT = {"web": "the live board", "metrics": "figures for Prometheus"}
# As in the package's files: the path of the program in Debian's package.
PROGRAM = "/usr/bin/slicer"


def table(feature: str) -> tuple[tuple[str, str, str], ...]:
    """Source below src/slicer/, destination below the prefix, description."""
    names = (_STARTERS[feature][0], f"slicer-{feature}.service")
    what = _WHAT[feature]
    return tuple((f"_units/system/{name}", f"{_FOLDER}/{name}", f"{what}: {name}") for name in names)


def is_there(feature: str) -> bool:
    """Whether it was installed or enabled."""
    unit, target = _STARTERS[feature]
    paths = (f"{SYSTEM_UNITS}/{unit}", f"{_ENABLED}/{target}.wants/{unit}")
    return any(os.path.lexists(on_host(path)) for path in paths)


def enable(feature: str) -> tuple[tuple[str, ...], ...]:
    """The commands once the files exist. A running service is of the older version."""
    service = ("systemctl", "stop", f"slicer-{feature}.service")
    return service, ("systemctl", "enable", "--now", _STARTERS[feature][0])


def disable(feature: str) -> tuple[tuple[str, ...], ...]:
    """The commands before the files are removed. Old figures would look like new ones."""
    return (
        ("systemctl", "disable", "--now", _STARTERS[feature][0]),
        ("systemctl", "stop", f"slicer-{feature}.service"),
        *([("rm", "-f", f"{TEXTFILES}/slicer.prom")] if feature == "metrics" else []),
    )
