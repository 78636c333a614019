"""``slicer install --closed-shop``: first says whom it locks out."""

from __future__ import annotations

import os
import sys

import click

from slicer.backend import closed_shop, feature_units
from slicer.backend.install_units import InstallPlan, closed_plan, refuse_nixos, states
from slicer.cli import output, say
from slicer.cli.install_words import Way, carry_out, together
from slicer.columns import Line
from slicer.errors import EX_OK, EX_SLICER, UsageError
from slicer.text import counted, visible

_MOST = 20  # sessions or programs to name


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
    code = carry_out(settled, way, lambda: [Line(last)] if is_whole else [], user=False)
    if is_whole:
        return code
    say.line(f"the shop may still be {'closed' if way.removing else 'open'}")
    return EX_SLICER


def with_closed(settled: InstallPlan) -> InstallPlan:
    """The plan, extended to update or remove a closed shop if there is one."""
    return together(settled, closed_plan(only_there=True))


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
