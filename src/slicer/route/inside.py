"""The routes around a process. It imports nothing, because ``slicer route`` uses it before anything else."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.config.routes import Route

VARIABLE = "SLICER_ROUTE"  # in a job's environment: the routes that it runs inside


def routes_around(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The routes that this process runs inside."""
    return tuple(filter(None, environ.get(VARIABLE, "").split(",")))


def environment(environ: Mapping[str, str], route: Route) -> dict[str, str]:
    """The environment of a route's job: what it starts through the same route runs at once."""
    return {**environ, VARIABLE: ",".join((*routes_around(environ), route.name))}
