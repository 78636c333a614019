"""Carries out a plan of ``slicer install``, or describes it, and reports the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from slicer.backend import install_units
from slicer.backend.install_units import InstallPlan, InstallReport, data_home
from slicer.backend.unit_files import SYSTEM_UNITS, State
from slicer.cli import output, say
from slicer.columns import Line
from slicer.errors import EX_OK, EX_SLICER
from slicer.kernel import on_host
from slicer.record import record, replace
from slicer.text import command_text, visible

_SETTINGS = "for config.toml and policy.toml"


@record
class Way:
    """For whom to install or remove, whether to include edited files, and whether only to describe it."""

    is_user: bool  # for the caller alone, and the caller's own manager
    removing: bool
    force: bool
    dry_run: bool

    @property
    def folder(self) -> str:
        """Where the units lie."""
        return f"{data_home(os.environ)}/systemd/user" if self.is_user else on_host(SYSTEM_UNITS)

    @property
    def reload(self) -> tuple[str, ...]:
        return ("systemctl", *(("--user",) if self.is_user else ()), "daemon-reload")


def together(one: InstallPlan, other: InstallPlan) -> InstallPlan:
    """Both plans as one, without running a command twice."""
    return replace(
        one,
        actions=(*one.actions, *other.actions),
        unwanted=(*one.unwanted, *other.unwanted),
        commands=(*one.commands, *(each for each in other.commands if each not in one.commands)),
        stops=(*one.stops, *other.stops),
    )


def carry_out(settled: InstallPlan, way: Way, after: Callable[[], Sequence[Line]]) -> int:
    """Carry out the plan, or describe it; returns the exit code. ``after``: what is next, if all is done."""
    if way.dry_run:
        output.show(_intended(settled, way), cuts=False)
        return EX_OK
    do = install_units.remove if way.removing else install_units.apply
    report = do(settled, force=way.force)
    has_failed = any(ran.exit_code for ran in report.commands)
    return _tell(report, () if has_failed else after(), way)


def _intended(settled: InstallPlan, way: Way) -> list[Line]:
    """The fate of each file, and the commands that would be run."""
    rows = []
    for action, state in install_units.states(settled):
        going = way.removing or action in settled.unwanted
        rows.append((_intention(state, going=going, force=way.force), action.destination, action.what))
    if not way.removing and (settings := install_units.unmade_settings(settled)):
        rows.append(("would create", settings, _SETTINGS))
    commands = (*(settled.stops if way.removing else ()), *settled.commands)
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
    """The rows, with manual pages of the same status joined into one."""
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


def _tell(report: InstallReport, after: Sequence[Line], way: Way) -> int:
    """Report what was done, what comes next, and what was skipped. Returns the exit code."""
    rows = [(done.status, done.action.destination, done.action.what) for done in report.files]
    rows += [("created", path, _SETTINGS) for path in report.made]
    shown = [*output.rows(_folded(rows)), *map(Line, _ran(report))]
    output.show([*shown, *([Line("")] if after else []), *after], cuts=False)
    edited = [done.action.destination for done in report.files if done.status == "edited"]
    if edited:
        verb = "removes" if way.removing else "overwrites"
        say.line(f"edited by somebody and left alone: {', '.join(edited)} (--force {verb})")
    if any(ran.exit_code for ran in report.commands):
        say.line("not all commands succeeded" + ("" if way.is_user else " (run it as root, or with --user)"))
        return EX_SLICER
    return EX_OK


def _ran(report: InstallReport) -> Iterator[str]:
    for ran in report.commands:
        word = "not run" if ran.exit_code is None else "failed" if ran.exit_code else "ran"
        said = visible(ran.output.replace("\n", "; "))
        yield f"{word}: {command_text(ran.command)}{f' ({said})' if said else ''}"
