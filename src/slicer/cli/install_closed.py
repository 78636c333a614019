"""``slicer install --closed-shop``: who it locks out, said before it is done."""

from __future__ import annotations

import os
import sys

import click

from slicer.backend import broker_units, closed_shop, closed_shop_look
from slicer.backend.install_units import Plan, Ran, Report, apply, closed_plan, remove
from slicer.cli import output, say
from slicer.columns import Line
from slicer.errors import EX_OK, EX_SLICER, SlicerError, UsageError
from slicer.record import replace
from slicer.text import command_text, counted, visible

_NIXOS = "etc/NIXOS"
_MOST = 20  # sessions or programs to name


def close(root: str, prefix: str, *, yes: bool, force: bool, dry_run: bool) -> int:
    """Make a closed shop. Says first whom it locks out, and asks. Raises SlicerError."""
    if os.path.exists(os.path.join(root, _NIXOS)):
        hint = "set programs.slicer.broker.closedShop = true in the configuration: docs/nixos.md"
        raise SlicerError("NixOS looks for units only where its modules put them", hint=hint)
    settled = closed_plan(root, prefix=prefix)
    output.show(consequences(settled, root), cuts=False)
    if dry_run:
        output.show([Line(""), *_intended(settled, "install")], cuts=False)
        return EX_OK
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to be asked", where="--closed-shop", hint="add --yes")
        if not click.confirm("Close it?", err=True):
            say.line("nothing was changed")
            return EX_SLICER
    return _told(apply(settled, force=force), "closed", "undo: slicer install --closed-shop --undo")


def open_again(root: str, prefix: str, *, force: bool, dry_run: bool) -> int:
    """Take the closed shop back. Raises SlicerError."""
    settled = closed_plan(root, prefix=prefix, only_there=True)
    if not settled.actions:
        output.show([Line("there is no closed shop here")])
        return EX_OK
    if dry_run:
        output.show(_intended(settled, "remove"), cuts=False)
        return EX_OK
    report = remove(settled, force=force)
    return _told(report, "opened", "open: whoever may read and write /dev/nvidia* can use the GPUs")


def with_closed(settled: Plan, root: str, prefix: str) -> Plan:
    """A plan that brings a closed shop up to date too, or takes it away with the rest, if it is there."""
    closed = closed_plan(root, prefix=prefix, only_there=True)
    commands = (*settled.commands, *(each for each in closed.commands if each not in settled.commands))
    return replace(settled, actions=(*settled.actions, *closed.actions), commands=commands)


def consequences(settled: Plan, root: str) -> list[Line]:
    """What a closed shop means for this machine."""
    units = [os.path.basename(os.path.dirname(action.destination))[:-2] for action in settled.actions]
    rest = [unit for unit in units if unit != closed_shop.SLICE]
    what = f"login sessions and users' own services ({closed_shop.SLICE})"
    what += f", and {', '.join(rest)}" if rest else ""
    lines = [Line(f"closed shop: no NVIDIA GPU for {what}; jobs with a lease have theirs"), Line("")]
    rows = _locked_out(settled, root)
    lines += output.rows([("" if place else "locked out:", *row) for place, row in enumerate(rows)])
    lines.append(Line("not closed: other services, containers among them; who starts those is root's choice"))
    if not broker_units.is_installed(root):
        missing = "no broker here: only root's jobs will get GPUs; first run: slicer install --broker"
        lines.append(Line(missing))
    return lines


def _locked_out(settled: Plan, root: str) -> list[tuple[str, str]]:
    rows = []
    manager = closed_shop_look.display_manager(root)
    if manager:
        rows.append((manager, "graphical logins get no GPU: no screen where that is the only graphics card"))
    rows += [
        (f"session {found.id}", f"{found.user}, {found.kind}{' (login screen)' if found.is_greeter else ''}")
        for found in (closed_shop_look.sessions(root) if settled.live else ())
    ]
    openers = closed_shop_look.openers() if settled.live else ()
    rows += [
        (f"{found.name} (pid {found.pid})", f"{found.user}; keeps the GPU that it has open until it ends")
        for found in openers[:_MOST]
    ]
    if len(openers) > _MOST:
        rows.append((counted(len(openers) - _MOST, "more program"), "that have a GPU open"))
    rows.append(("your own shells", "nvidia-smi, say; root can: systemd-run --pipe --wait nvidia-smi"))
    return [(visible(who), visible(why)) for who, why in rows]


def _intended(settled: Plan, verb: str) -> list[Line]:
    rows = [(f"would {verb}", action.destination, action.what) for action in settled.actions]
    when = "would run" if settled.live else "to be run on the target:"
    return [*output.rows(rows), *(Line(f"{when}  {command_text(each)}") for each in settled.commands)]


def _told(report: Report, verb: str, last: str) -> int:
    """Show what was done, and ``last`` if all of it was; the exit code. ``verb``: what was to be done."""
    rows = [(done.status, done.action.destination, done.action.what) for done in report.files]
    shown = [*output.rows(rows), *(Line(ran_line(ran)) for ran in report.commands)]
    edited = [visible(done.action.destination) for done in report.files if done.status == "edited"]
    output.show(shown if edited else [*shown, Line(""), Line(last)])
    if edited:
        say.line(f"not {verb}: edited by somebody and left alone: {', '.join(edited)} (add --force)")
    return EX_SLICER if edited or any(ran.exit_code for ran in report.commands) else EX_OK


def ran_line(ran: Ran) -> str:
    """What became of a command."""
    said = visible(ran.output.replace("\n", "; "))
    why = f" ({said})" if said else ""
    if ran.exit_code is None:
        return f"not run: {command_text(ran.command)}{why}"
    return f"{'failed' if ran.exit_code else 'ran'}: {command_text(ran.command)}{why}"
