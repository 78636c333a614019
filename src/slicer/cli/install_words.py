"""What ``slicer install`` says: what a dry run would do, and what was done."""

from __future__ import annotations

import os
from collections.abc import Sequence

from slicer.backend.install_units import Plan, Ran, Report, states, unmade_settings
from slicer.cli import output, say
from slicer.columns import Line
from slicer.errors import EX_OK, EX_SLICER
from slicer.text import command_text, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend.unit_files import State

_SETTINGS = "for config.toml and policy.toml"


def intended(settled: Plan, *, removing: bool, force: bool) -> list[Line]:
    """What would become of each file, and the commands that would be run."""
    rows = []
    for action, state in states(settled):
        going = removing or action in settled.unwanted
        rows.append((_intention(state, going=going, force=force), action.destination, action.what))
    if not removing and (settings := unmade_settings(settled)):
        rows.append(("would create", settings, _SETTINGS))
    commands = (*(settled.stops if removing else ()), *settled.commands)
    return [*output.rows(_folded(rows)), *(Line(f"would run  {command_text(each)}") for each in commands)]


def _intention(state: State, *, going: bool, force: bool) -> str:
    if state == "edited" and not force:
        return "edited, stays"
    if going:
        return "absent" if state == "missing" else "would remove"
    if state == "current":
        return "unchanged"
    verbs: dict[State, str] = {"missing": "install", "outdated": "update", "edited": "overwrite"}
    return f"would {verbs[state]}"


def _folded(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The rows, in which all manual pages that fare alike are one."""
    found: dict[tuple[str, str], tuple[str, str, str]] = {}
    pages: dict[tuple[str, str], int] = {}
    for status, path, what in rows:
        folder = os.path.dirname(os.path.dirname(path))
        key = (status, folder if what.startswith("manual page ") else path)
        pages[key] = pages.get(key, 0) + 1
        if pages[key] > 1:
            path, what = folder, f"{pages[key]} manual pages"
        found[key] = (status, path, what)
    return list(found.values())


def tell(report: Report, after: Sequence[Line], *, removing: bool, user: bool) -> int:
    """Say what was done, what comes next, and what was not done; returns the exit code."""
    rows = [(done.status, done.action.destination, done.action.what) for done in report.files]
    rows += [("created", path, _SETTINGS) for path in report.made]
    shown = [*output.rows(_folded(rows)), *(Line(_ran(ran)) for ran in report.commands)]
    output.show([*shown, *([Line("")] if after else []), *after], cuts=False)
    edited = [done.action.destination for done in report.files if done.status == "edited"]
    if edited:
        verb = "removes" if removing else "overwrites"
        say.line(f"edited by somebody and left alone: {', '.join(edited)} (--force {verb})")
    if any(ran.exit_code for ran in report.commands):
        say.line("not all commands succeeded" + ("" if user else " (run it as root, or with --user)"))
        return EX_SLICER
    return EX_OK


def _ran(ran: Ran) -> str:
    said = visible(ran.output.replace("\n", "; "))
    why = f" ({said})" if said else ""
    if ran.exit_code is None:
        return f"not run: {command_text(ran.command)}{why}"
    return f"{'failed' if ran.exit_code else 'ran'}: {command_text(ran.command)}{why}"
