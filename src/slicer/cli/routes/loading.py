"""Reads routes, the ledger, the history and the GPUs for the commands about routes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from slicer.cli import say
from slicer.columns import Line
from slicer.config import routes as config_routes
from slicer.config.profiles import Config
from slicer.config.routes import Route
from slicer.errors import GpuError, NoGpu, SlicerError
from slicer.gpu import open_gpus, ours
from slicer.ledger.status import existing_ledger
from slicer.model import Gpu
from slicer.outcome import decisions
from slicer.outcome.decisions import PastDecision
from slicer.outcome.history import default_path
from slicer.placement.capacity import held_slots
from slicer.route.past import PastJob, table

NO_ROUTES = Line("No routes. Describe one as [routes.NAME] in a configuration file; see slicer.toml(5).")


def routes(found: Config, name: str | None = None) -> dict[str, Route]:
    """All routes by name, or only the given one. Raises UsageError, ConfigError."""
    return config_routes.load(found) if name is None else {name: config_routes.find(found, name)}


def past(route: str | None, after: float | None) -> dict[str, list[PastJob]]:
    """What each route decided, or only that one, by name. Raises StateError."""
    found: dict[str, list[PastDecision]] = {}
    for each in decisions.read(default_path(), route=route, since=after):
        found.setdefault(each.row.route, []).append(each)
    return {name: table(found[name]) for name in sorted(found)}


def gpus() -> tuple[Gpu, ...] | None:
    """The GPUs of this machine; () without a driver; None, with a message, if the driver fails."""
    try:
        with closing(open_gpus()) as found:
            return ours(found.list())
    except NoGpu:
        return ()
    except GpuError as error:
        say.line(f"GPUs: {error}")
        return None


def running_jobs(environ: Mapping[str, str]) -> dict[str, int] | None:
    """The number of held slots by name; None, with a message, if the ledger cannot be read."""
    try:
        ledger = existing_ledger(environ, say.line)
        leases = ledger.snapshot().leases if ledger else ()
    except SlicerError as error:
        say.line(str(error))
        return None
    return held_slots(leases)
