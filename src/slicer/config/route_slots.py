"""The slots that routes create: one for each destination with ``max_jobs``.

Separate from :mod:`slicer.config.routes`, because ``slicer run`` needs these whenever a file describes a
route, and nothing else of routes.
"""

from __future__ import annotations

from slicer.config import values
from slicer.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from slicer.config.files import Layer

    Mode = Literal["gpu", "cpu"]

MODES: tuple[Mode, ...] = ("gpu", "cpu")


def slot_limits(layers: Iterable[Layer]) -> dict[str, int]:
    """The slots that ``max_jobs`` of destinations creates, and their numbers. Raises ConfigError."""
    found: dict[str, int] = {}
    for layer in layers:
        for name, table in layer.data.get("routes", {}).items():
            for path, below in tables(table):
                if "max_jobs" in below:
                    where = layer.where("routes", name, *path, "max_jobs")
                    entry = (below["max_jobs"], where, ConfigError)
                    found[slot_name(name, path[-1])] = values.count(entry, "max_jobs", lowest=1)
    return found


def slot_name(route: str, destination: str) -> str:
    """The ledger's name for the jobs of a destination that has ``max_jobs``."""
    return f"{route}-{destination}"


def tables(table: dict[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """The tables of destinations in a route's table, each with its path: ("gpu",) or ("to", "small")."""
    found: list[tuple[tuple[str, ...], dict[str, Any]]]
    found = [((mode,), below) for mode in MODES if isinstance(below := table.get(mode), dict)]
    to = table.get("to", {})
    if isinstance(to, dict):
        found += [(("to", name), below) for name, below in to.items() if isinstance(below, dict)]
    return found
