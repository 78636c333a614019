"""``slicer install --broker``: which program is the broker, and whether root may run it."""

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
from slicer.wrap.terms import WrapError, WrapRefused

_NAME = "slicer-broker"
_HOMES = ("/home/", "/root/", "/run/user/")  # the broker's unit hides these from it
_WAY_OUT = "install slicer for all users, below /usr or /opt: docs/install.md"


def program(name: str = _NAME) -> str:
    """The path of the broker that belongs to this slicer. Raises SlicerError.

    It runs as root. So nobody else may be able to replace it, its interpreter or its modules, and none of
    these may be in a home directory, which its unit hides. ``name``: another of slicer's programs that a
    system unit starts.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = _found(package, name)
    if is_elsewhere():
        return found  # nothing starts it there
    tool = look.tool(found)
    try:
        _, way = look.open_folder(os.path.realpath(package), lists=False)
        planning.check_way((*tool.way, *way), 0, found)
    except (WrapError, WrapRefused) as error:
        raise SlicerError(f"root must not run it: {error.message}", where=found, hint=error.hint) from error
    for path in (*(path for path, _ in tool.names), package, sys.prefix, sys.base_prefix):
        if os.path.realpath(path).startswith(_HOMES):
            message = f"a system service cannot run from a home directory ({path})"
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
    raise SlicerError(f"{name} is missing next to this slicer", where=where, hint="install slicer again")


def next_lines() -> list[Line]:
    return [
        Line("broker: on; all users' jobs go through it from now on (slicer status shows them)"),
        Line("running jobs stay in their users' own ledgers, which the broker does not know"),
        Line("policy: /etc/slicer/policy.toml, see man slicer-policy.toml; try: slicer doctor"),
    ]


def gone_lines(*, only_broker: bool) -> list[Line]:
    """Warnings after the broker's removal. ``only_broker``: nothing else was removed."""
    lines = []
    count = len(leases_left())
    if count:
        left = f"still running: {counted(count, 'job')} of the broker"
        lines.append(Line(f"{left}. Until they end, every job that requests GPUs or slots fails"))
    if only_broker and closed_plan(only_there=True).actions:
        lines.append(Line("the closed shop stays, no GPU for users: slicer install --closed-shop --remove"))
    return lines
