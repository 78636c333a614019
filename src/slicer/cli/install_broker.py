"""``slicer install --broker``: whether root may run it; ``--closed-shop``: whom it locks out."""

from __future__ import annotations

import os
import shutil
import sys

import click

from slicer.backend import closed_shop, feature_units
from slicer.backend.broker_left import leases_left
from slicer.backend.install_units import InstallPlan, closed_plan, refuse_nixos, states
from slicer.cli import output, say
from slicer.cli.install_words import Way, carry_out
from slicer.columns import Line
from slicer.errors import EX_OK, EX_SLICER, SlicerError, UsageError
from slicer.kernel import is_elsewhere
from slicer.text import counted, visible
from slicer.wrap import look, planning
from slicer.wrap.terms import WrapError, WrapRefused

_NAME = "slicer-broker"
_HOMES = ("/home/", "/root/", "/run/user/")  # the broker's unit hides these from it
_MOST = 20  # sessions or programs to name
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


# -- the closed shop ----------------------------------------------------------------------------------------


def close(way: Way, *, yes: bool) -> int:
    """Close the GPUs. First says whom this locks out, and asks. Raises SlicerError."""
    refuse_nixos("broker.closedShop = true")
    settled = closed_plan()
    output.show([*_consequences(settled), *([Line("")] if way.dry_run else [])], cuts=False)
    if not yes and not way.dry_run:
        if not sys.stdin.isatty():
            raise UsageError("cannot ask: stdin is not a terminal", where="--closed-shop", hint="add --yes")
        if not click.confirm("Close it?", err=True):
            say.line("nothing was changed")
            return EX_SLICER
    return _carried_out(settled, way, "undo: slicer install --closed-shop --remove")


def open_again(way: Way) -> int:
    """Undo the closed shop. Raises SlicerError."""
    settled = closed_plan(only_there=True)
    if not settled.actions:
        output.show([Line("there is no closed shop")])
        return EX_OK
    return _carried_out(settled, way, "open: every user who may read and write /dev/nvidia* can use the GPUs")


def _carried_out(settled: InstallPlan, way: Way, last: str) -> int:
    """Carry out the plan and report it, with ``last`` if nothing was skipped. Returns the exit code."""
    is_whole = way.force or way.dry_run or all(state != "edited" for _, state in states(settled))
    code = carry_out(settled, way, lambda: [Line(last)] if is_whole else [])
    if is_whole:
        return code
    say.line(f"the shop may still be {'closed' if way.removing else 'open'}")
    return EX_SLICER


def _consequences(settled: InstallPlan) -> list[Line]:
    units = [os.path.basename(os.path.dirname(action.destination))[:-2] for action in settled.actions]
    rest = [unit for unit in units if unit != closed_shop.SLICE]
    what = f"login sessions and users' own services ({closed_shop.SLICE})"
    what += f", and {', '.join(rest)}" if rest else ""
    lines = [Line(f"closed shop: no NVIDIA GPU for {what}; jobs keep the GPUs of their leases"), Line("")]
    rows = _locked_out()
    lines += output.rows([("" if place else "locked out:", *row) for place, row in enumerate(rows)])
    lines.append(Line("not closed: other services, such as containers; root decides who may start those"))
    if not feature_units.is_there("broker"):
        missing = "there is no broker, so only root's jobs will get GPUs; first run: slicer install --broker"
        lines.append(Line(missing))
    return lines


def _locked_out() -> list[tuple[str, str]]:
    rows = []
    manager = closed_shop.display_manager()
    if manager:
        rows.append((manager, "graphical logins get no GPU: no picture if it is the only graphics card"))
    rows += [
        (f"session {found.id}", f"{found.user}, {found.kind}{' (login screen)' if found.is_greeter else ''}")
        for found in closed_shop.sessions()
    ]
    openers = closed_shop.openers()
    rows += [
        (f"{found.name} (pid {found.pid})", f"{found.user}; keeps the GPU that it has open until it ends")
        for found in openers[:_MOST]
    ]
    if len(openers) > _MOST:
        rows.append((counted(len(openers) - _MOST, "more program"), "that have a GPU open"))
    rows.append(("your own shells", "so nvidia-smi fails; root can use systemd-run --pipe --wait nvidia-smi"))
    return [(visible(who), visible(why)) for who, why in rows]
