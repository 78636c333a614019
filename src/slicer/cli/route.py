"""``slicer route``: GPU or CPU, decided by the input. Imports neither click nor rich.

It is nearly as hot as ``slicer run``: a binary may be wrapped with it.
"""

from __future__ import annotations

import os

from slicer.cli import run, runoptions, say
from slicer.config import profiles, routes
from slicer.errors import BusyError, SlicerError, UsageError
from slicer.job.plan import Invocation, find_program
from slicer.kernel.signals import signal, unblock_interrupts
from slicer.route import planning
from slicer.route.running import BlockedError, Order
from slicer.route.running import run as run_routed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_USAGE = "slicer route NAME [OPTIONS] -- COMMAND [ARGUMENTS]"


def main(arguments: list[str]) -> int:
    """Run the command line after ``slicer route``; returns slicer's exit code."""
    return run.main_of("route", arguments, perform)


def perform(options: dict[str, Any], words: tuple[str, ...]) -> int:
    """Do what a parsed command line asks for; ``words`` begin with the route. Returns the exit code."""
    try:
        if words:
            options, command = runoptions.parse(list(words[1:]), "route", options)
    except SlicerError as failure:
        return say.error(failure)
    if options["help"] or not words:
        return run.reported("route", options, _no_name)
    return run.reported("route", options, lambda: _told(options, words[0], command))


def _no_name() -> int:
    raise UsageError("no route given", hint=_USAGE)


def _told(options: dict[str, Any], name: str, command: tuple[str, ...]) -> int:
    """Do it, and say as JSON what went wrong if that is wanted. Returns the exit code."""
    try:
        return _route(options, name, command)
    except BlockedError as failure:
        if failure.waited_s is not None:
            say.Messages(options["verbosity"]).gave_up(failure.busy, failure.waited_s)
        say.json_line(_blocked(failure))
        return failure.exit_code
    except BusyError:
        raise
    except SlicerError as failure:
        if options["json"]:
            return say.error_json(failure)
        raise


def _route(options: dict[str, Any], name: str, command: tuple[str, ...]) -> int:
    if not command:
        raise UsageError("no command given", hint=_USAGE)
    if name in planning.routes_around(os.environ) and not options["explain"]:
        _become(options["program"] or command[0], command)
    asked = Invocation(**run.fields(options, command), program=options["program"], route=name)
    route = routes.find(profiles.load(os.environ, profiles.host()), name)
    order = Order(route, asked, options["on_busy"], os.environ)
    if options["explain"]:
        from slicer.cli.app import guarded
        from slicer.cli.route_explain import show

        unblock_interrupts()
        return guarded(lambda: show(order, as_json=options["json"]), as_json=options["json"])
    messages = say.Messages(options["verbosity"])
    return run.to_its_end(messages, lambda: run_routed(order, messages))


def _become(program: str, command: tuple[str, ...]) -> NoReturn:
    """Execute the command in place of slicer: the route around it has decided already."""
    from slicer.job.execution import become, cannot_execute

    path = find_program(program, os.environ)
    unblock_interrupts()
    try:
        become(path, command, os.environ, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    except OSError as error:
        raise cannot_execute(path, error.errno or 0) from error


def _blocked(failure: BlockedError) -> dict[str, Any]:
    """The one line of JSON about a job that is blocked (docs/json.md)."""
    decision, to = failure.decision, failure.tried[0].destination
    busy = say.busy_dict(failure.busy)
    return {
        "version": 1,
        "error": failure.kind,
        "route": decision.route.name,
        "input": decision.input or None,
        "metrics": planning.metric_data(decision.metrics, to),
        "destination": to.name,
        "mode": to.mode,
        "tried": [attempt.destination.name for attempt in failure.tried],
        "exit_code": failure.exit_code,
        "busy": busy.pop("error"),
        **busy,
    }
