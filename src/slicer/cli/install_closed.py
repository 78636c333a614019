"""``slicer install --closed-shop``: who it locks out, said before it is done."""

from __future__ import annotations

import os
import sys

import click

from slicer.backend import broker_units, closed_shop
from slicer.backend.install_units import Plan, closed_plan, refuse_nixos
from slicer.cli import output, say
from slicer.cli.install_words import Way, done, tell, together
from slicer.columns import Line
from slicer.errors import EX_OK, EX_SLICER, UsageError
from slicer.text import counted, visible

_MOST = 20  # sessions or programs to name


def close(way: Way, *, yes: bool) -> int:
    """Make a closed shop. Says first whom it locks out, and asks. Raises SlicerError."""
    refuse_nixos("broker.closedShop = true")
    settled = closed_plan()
    output.show([*_consequences(settled), *([Line("")] if way.dry_run else [])], cuts=False)
    if not yes and not way.dry_run:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to be asked", where="--closed-shop", hint="add --yes")
        if not click.confirm("Close it?", err=True):
            say.line("nothing was changed")
            return EX_SLICER
    return _carried_out(settled, way, "undo: slicer install --closed-shop --undo")


def open_again(way: Way) -> int:
    """Take the closed shop back. Raises SlicerError."""
    settled = closed_plan(only_there=True)
    if not settled.actions:
        output.show([Line("there is no closed shop here")])
        return EX_OK
    return _carried_out(settled, way, "open: whoever may read and write /dev/nvidia* can use the GPUs")


def _carried_out(settled: Plan, way: Way, last: str) -> int:
    """Do it, and say what was done, and ``last`` if nothing was left undone; returns the exit code."""
    report = done(settled, way)
    if report is None:
        return EX_OK
    is_whole = all(each.status != "edited" for each in report.files)
    code = tell(report, [Line(last)] if is_whole else [], way, user=False)
    if is_whole:
        return code
    say.line(f"the shop may still be {'closed' if way.removing else 'open'}")
    return EX_SLICER


def with_closed(settled: Plan) -> Plan:
    """A plan that brings a closed shop up to date too, or takes it away with the rest, if it is there."""
    return together(settled, closed_plan(only_there=True))


def _consequences(settled: Plan) -> list[Line]:
    """The consequences of a closed shop on this machine."""
    units = [os.path.basename(os.path.dirname(action.destination))[:-2] for action in settled.actions]
    rest = [unit for unit in units if unit != closed_shop.SLICE]
    what = f"login sessions and users' own services ({closed_shop.SLICE})"
    what += f", and {', '.join(rest)}" if rest else ""
    lines = [Line(f"closed shop: no NVIDIA GPU for {what}; jobs with a lease have theirs"), Line("")]
    rows = _locked_out()
    lines += output.rows([("" if place else "locked out:", *row) for place, row in enumerate(rows)])
    lines.append(Line("not closed: other services, containers among them; who starts those is root's choice"))
    if not broker_units.is_installed():
        missing = "no broker here: only root's jobs will get GPUs; first run: slicer install --broker"
        lines.append(Line(missing))
    return lines


def _locked_out() -> list[tuple[str, str]]:
    rows = []
    manager = closed_shop.display_manager()
    if manager:
        rows.append((manager, "graphical logins get no GPU: no screen where that is the only graphics card"))
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
    rows.append(("your own shells", "nvidia-smi, say; root can: systemd-run --pipe --wait nvidia-smi"))
    return [(visible(who), visible(why)) for who, why in rows]
