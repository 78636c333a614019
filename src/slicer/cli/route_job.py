"""``slicer route`` from its decision on. Imported only if there is one to make."""

from __future__ import annotations

import os

from slicer.cli import run, say
from slicer.config import profiles, routes
from slicer.errors import UsageError
from slicer.job.plan import Invocation
from slicer.kernel.signals import unblock_interrupts
from slicer.route import deciding
from slicer.route.running import BlockedError, Order
from slicer.route.running import run as run_routed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def perform(options: dict[str, Any], name: str, command: tuple[str, ...]) -> int:
    """Perform a parsed command line. Returns the exit code."""
    return run.reported("route", options, lambda: _told(options, name, command))


def _told(options: dict[str, Any], name: str, command: tuple[str, ...]) -> int:
    """Perform it, and say what it was blocked by. Returns the exit code."""
    try:
        return _route(options, name, command)
    except BlockedError as failure:
        messages = say.Messages(options["verbosity"])
        messages.blocked(failure.busy, failure.waited_s, _blocked(failure), as_json=options["json"])
        return failure.exit_code


def _route(options: dict[str, Any], name: str, command: tuple[str, ...]) -> int:
    asked = Invocation(**run.fields(options, command), route=name)
    config = profiles.load(os.environ, profiles.host())
    route = routes.find(config, name)
    if any(each.memory_bytes is not None for each in route.destinations):
        from slicer.route import budget

        budget.check(config, route)
    words = {options["on_busy"] or each.on_busy for each in route.destinations}
    if options["max_wait"] is not None and "wait" not in words:
        raise UsageError("the route never waits", where="--max-wait", hint="add --on-busy wait")
    order = Order(config, route, asked, options["on_busy"], os.environ)
    if options["dry_run"]:
        from slicer.cli.app import guarded
        from slicer.cli.route_dry_run import show

        unblock_interrupts()
        return guarded(lambda: show(order, as_json=options["json"]), as_json=options["json"])
    messages = say.Messages(options["verbosity"])
    return run.to_its_end(messages, lambda: run_routed(order, messages))


def _blocked(failure: BlockedError) -> dict[str, Any]:
    """The one line of JSON about a blocked job (docs/json.md)."""
    decision, to = failure.decision, failure.tried[0].destination
    busy = say.busy_dict(failure.busy)
    return {
        "version": 1,
        "error": failure.kind,
        "route": decision.route.name,
        "input": decision.input or None,
        "metrics": deciding.metric_data(decision.metrics, to),
        "destination": to.name,
        "mode": to.mode,
        "tried": [attempt.destination.name for attempt in failure.tried],
        "exit_code": failure.exit_code,
        "busy": busy.pop("error"),
        **busy,
    }
