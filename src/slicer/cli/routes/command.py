"""``slicer routes``: lists the routes, and what they may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import click

from slicer.cli import common, output
from slicer.cli.commands import LazyGroup
from slicer.cli.routes import loading
from slicer.columns import Line
from slicer.config import metric_units
from slicer.config.routes import Destination, Route
from slicer.quantity import format_mib, format_size
from slicer.record import as_dict
from slicer.route.deciding import destination_text


@click.group(
    "routes",
    cls=LazyGroup,
    modules={name: f"routes.{name}" for name in ("check", "stats", "suggest")},
    invoke_without_command=True,
    epilog="""\
\b
Examples:
  slicer routes                      all routes
  slicer routes check                do their jobs fit into this machine?
  slicer routes stats --since 1d     the decisions of the last 24 hours
  slicer routes suggest whisper      a threshold, from what past jobs used

\b
A job goes to the first destination that takes it. AT ONCE is how many of its
jobs may run (max_jobs), RUN how many do. VRAM and MEMORY are per job; "-": as
in its profile. Routes are part of the configuration, see slicer.toml(5).
docs/json.md describes the output of --json.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the routes for `slicer route`, and where each sends its jobs."""
    if ctx.invoked_subcommand is not None:
        ctx.default_map = {ctx.invoked_subcommand: {"as_json": as_json}}  # slicer routes --json stats
        return
    routes = tuple(loading.routes(common.config()).values())
    running = loading.running_jobs(os.environ)
    if as_json:
        output.show_json({"routes": [route_json(route, running) for route in routes]})
    else:
        output.show(table(routes, running) if routes else [loading.NO_ROUTES])


def table(routes: Iterable[Route], running: dict[str, int] | None) -> list[Line]:
    """One line a destination. ``running`` counts jobs by slot; None: the ledger cannot be read."""
    first, last = "ROUTE<24 | MEASURES<24 | TO<20 | TAKES", "VRAM> | MEMORY> | PROFILE<20 | IF BUSY"
    rows = []
    for route in routes:
        measures = ", ".join(probe.kind for probe in route.probes) or "nothing"
        for number, part in enumerate(route.destinations):
            count = "-" if running is None or not part.slot else str(running.get(part.slot, 0))
            rows.append((
                "" if number else route.name, "" if number else measures, destination_text(part),
                takes(route, part), count, "-" if part.max_jobs is None else str(part.max_jobs),
                format_mib(part.vram_mib), format_size(part.memory_bytes), part.profile,
                f"fail, exit {part.exit_code}" if part.on_busy == "fail" else part.on_busy,
            ))  # fmt: skip
    return output.table(f"{first} | RUN> | AT ONCE> | {last}", rows)


def takes(route: Route, part: Destination) -> str:
    """The inputs that a destination takes: ``up to 1h``, ``up to 1h, 8.3MP``, ``any``."""
    bounds = [
        "any" if bound is None else metric_units.text(probe.kind, bound)
        for probe, bound in zip(route.probes, part.up_to, strict=True)
    ]
    return f"up to {', '.join(bounds)}" if any(bound != "any" for bound in bounds) else "any"


def route_json(route: Route, running: dict[str, int] | None) -> dict[str, Any]:
    """A route in JSON's types: the records' own fields, and how many jobs of a slot run."""
    data = as_dict(route)
    data["destinations"] = [
        {
            **as_dict(part),
            "replace": dict(part.replace),
            "slot": part.slot or None,
            "running": running.get(part.slot, 0) if running is not None and part.slot else None,
        }
        for part in route.destinations
    ]
    return data
