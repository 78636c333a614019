"""``slicer route``: GPU or CPU, decided by the input. Imports no click.

It is nearly as hot as ``slicer run``, because a binary may be wrapped with it. If another command of the
route starts such a binary, or if it is only asked for its help, it is executed at once. That path imports
next to nothing.
"""

from __future__ import annotations

import os

from slicer.cli import runoptions
from slicer.errors import SlicerError, UsageError
from slicer.kernel.signals import signal, unblock_interrupts
from slicer.route.inside import routes_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_ABOUT = (("--help",), ("-h",), ("--version",), ("-V",))  # not a job, because there is no input
_USAGE = "slicer route NAME [OPTIONS] -- COMMAND [ARGUMENTS]"


def perform(options: dict[str, Any], command: tuple[str, ...]) -> int:
    """Perform a parsed command line; ``command`` begins with the route. Returns the exit code."""
    route = command[:1]
    try:
        if route:
            options, command = runoptions.parse(list(command[1:]), "route", options)
        if options["help"]:
            from slicer.cli.app import main

            unblock_interrupts()
            return main(["route", options["help"]])
        if not route:
            raise UsageError("no route given", hint=_USAGE)
        if not command:
            raise UsageError("no command given", hint=_USAGE)
        is_inside = route[0] in routes_around(os.environ)
        if (is_inside or command[1:] in _ABOUT) and not options["dry_run"]:
            _become(options["program"] or command[0], command)
    except SlicerError as failure:
        from slicer.cli import say

        return say.error_json(failure) if options["json"] else say.error(failure)
    from slicer.cli import route_job

    return route_job.perform(options, route[0], command)


def _become(program: str, command: tuple[str, ...]) -> NoReturn:
    """Execute the command in place of slicer: the route around it has already decided."""
    from slicer.job.program import become, cannot_execute, find_program

    path = find_program(program, os.environ)
    unblock_interrupts()
    try:
        become(path, command, os.environ, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    except OSError as error:
        raise cannot_execute(path, error.errno or 0) from error
