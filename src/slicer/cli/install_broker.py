"""``slicer install --broker``: which program the broker is, and whether root may run it."""

from __future__ import annotations

import os
import shutil
import sys

from slicer.backend.broker_left import leases_left
from slicer.backend.install_units import closed_plan
from slicer.columns import Line
from slicer.errors import SlicerError
from slicer.kernel import is_elsewhere
from slicer.text import counted
from slicer.wrap import look, planning
from slicer.wrap.model import WrapError, WrapRefused

_NAME = "slicer-broker"
_HOMES = ("/home/", "/root/", "/run/user/")  # which the broker's unit does not let it see
_WAY_OUT = "install slicer for all users, below /usr or /opt: docs/install.md"


def program(name: str = _NAME) -> str:
    """The broker that belongs to this slicer, by its path. Raises SlicerError.

    It runs as root. So nobody else may be able to exchange it, its interpreter or its modules, and none of
    them may lie in a home directory, which is hidden from it. ``name``: another program of slicer's that a
    unit of the system starts.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = _found(package, name)
    if is_elsewhere():
        return found  # which nobody starts there
    tool = look.tool(found)
    try:
        _, way = look.open_folder(os.path.realpath(package), lists=False)
        planning.check_way((*tool.way, *way), 0, found)
    except (WrapError, WrapRefused) as error:
        raise SlicerError(f"not a program for root: {error.message}", where=found, hint=error.hint) from error
    for path in (*(path for path, _ in tool.names), package, sys.prefix, sys.base_prefix):
        if os.path.realpath(path).startswith(_HOMES):
            message = f"a service of the system cannot run from a home directory ({path})"
            raise SlicerError(message, where=found, hint=_WAY_OUT)
    return found


def _found(package: str, name: str) -> str:
    beside = (os.path.dirname(os.path.abspath(sys.argv[0])), os.path.dirname(sys.executable))
    for folder in (*beside, os.path.dirname(package)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if found := shutil.which(name):
        return os.path.abspath(found)
    where = os.path.dirname(sys.executable)
    raise SlicerError(f"{name} is not beside this slicer", where=where, hint="install slicer again")


def next_lines() -> list[Line]:
    """The next steps of the administrator after the installation."""
    return [
        Line("broker: on; from now on all users' jobs go through it (slicer status shows them all)"),
        Line("jobs that run already are in their users' own ledgers, which it does not know"),
        Line("policy: /etc/slicer/policy.toml, see man slicer-policy.toml; try: slicer doctor"),
    ]


def gone_lines(*, only_broker: bool) -> list[Line]:
    """Warnings for the administrator after its removal. ``only_broker``: nothing else was removed."""
    lines = []
    count = len(leases_left())
    if count:
        left = f"still running: {counted(count, 'job')} of the broker"
        lines.append(Line(f"{left}. What wants GPUs or slots fails until they have ended"))
    if only_broker and closed_plan(only_there=True).actions:
        lines.append(Line("the closed shop stays: users get no GPU now; slicer install --closed-shop --undo"))
    return lines
