"""``slicer doctor``: which of slicer's promises do not hold on this machine, why, and how to fix that."""

from __future__ import annotations

import os
import shutil
import textwrap
from typing import Any

import click

from slicer.cli import output
from slicer.columns import BAD, FAINT, GOOD, HEADING, WARNING, Line, aligned
from slicer.doctor.findings import SEVERITIES, DoctorReport, Finding, Severity, worst
from slicer.errors import EX_OK, EX_PROBLEM
from slicer.text import counted

_WIDEST = 100  # columns of running text
_MARKS = {"problem": ("✗", "x"), "warning": ("!", "!"), "note": ("·", "-"), None: ("✓", "+")}
STYLES = {"problem": BAD, "warning": WARNING, "note": "", None: GOOD}
_TITLES = {"gpus": "GPUs"}


@click.command(
    "doctor",
    epilog="""\
\b
Examples:
  slicer doctor             what is wrong, why it matters, and how to fix it
  sudo slicer doctor        the same for root's jobs
  slicer doctor --verbose   what is fine, too
  slicer doctor --json | jq -r '.findings[].id'
                            for scripts: the findings' ids, which are stable

\b
It checks systemd, the kernel, limits, GPUs, slicer's own files, and programs
that may interfere. It changes nothing, and anybody may run it. Its findings
apply to the user who runs it. A problem breaks a promise: jobs do not start,
or a limit or a lease does not act. A warning will surprise somebody. A note
is good to know.

\b
Exit codes:
    0  no problem (there may be warnings)
    1  a problem
  125  the doctor itself failed

\b
Each finding has a stable id, in brackets. docs/doctor.md lists them all;
docs/json.md describes the output of --json.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-v", "--verbose", "verbose", is_flag=True, help="Show all facts, too.")
def command(as_json: bool, verbose: bool) -> int:
    """Report which of slicer's promises do not hold on this machine, and how to fix that."""
    from slicer.doctor.examine import examine

    report = examine(os.environ, os.geteuid())
    if as_json:
        output.show_json(_document(report))
    else:
        output.show(_lines(report, verbose=verbose), cuts=False)
    return EX_OK if report.is_well else EX_PROBLEM


def _lines(report: DoctorReport, *, verbose: bool = False) -> list[Line]:
    """The whole report. ``verbose``: with all facts, and with the reasons for notes."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    shown = _areas(report)
    for verdict in report.verdicts if verbose else ():
        if verdict.facts:
            rows = aligned([(f"  {name}", value) for name, value in verdict.facts], "ll")
            title = _TITLES.get(verdict.area, verdict.area)
            shown += [Line(""), Line(title, HEADING), *map(Line, rows)]
    for found in report.findings:
        shown += [Line(""), *_finding(found, width, is_told_why=verbose or found.kind.severity != "note")]
    more = [] if verbose else [Line("slicer doctor -v shows all facts.", FAINT)]
    severities = [each.kind.severity for each in report.findings]
    parts = [counted(severities.count(each), each) for each in SEVERITIES if each in severities]
    told = f"{', '.join(parts)}." if parts else "Nothing to fix."
    return [*shown, Line(""), Line(told, HEADING), *more]


def mark(severity: Severity | None) -> str:
    """The mark for a severity; None: all is well."""
    drawn, plain = _MARKS[severity]
    return drawn if output.may_draw() else plain


def headline(found: Finding) -> str:
    """A finding in one line, without its mark."""
    return f"{found.kind.title}: {found.what}"


def _areas(report: DoctorReport) -> list[Line]:
    severities = [worst(verdict.findings) for verdict in report.verdicts]
    rows = [
        (mark(severity), _TITLES.get(verdict.area, verdict.area), verdict.summary)
        for severity, verdict in zip(severities, report.verdicts, strict=True)
    ]
    texts = aligned(rows, "lll")
    return [Line(text, STYLES[severity]) for text, severity in zip(texts, severities, strict=True)]


def _finding(found: Finding, width: int, *, is_told_why: bool) -> list[Line]:
    severity = found.kind.severity
    said = f"{headline(found)} [{found.kind.id}]"
    head = textwrap.wrap(
        said, width, initial_indent=f"{mark(severity)} ", subsequent_indent="  ", break_on_hyphens=False
    )
    shown = [Line(text, STYLES[severity]) for text in head]
    if is_told_why:
        why = textwrap.wrap(found.kind.why, width, initial_indent="  ", subsequent_indent="  ")
        shown += [Line(text, FAINT) for text in why]
    return [*shown, *(Line(f"    {command}") for command in found.mend)]


def _document(report: DoctorReport) -> dict[str, Any]:
    return {
        "well": report.is_well,
        **output.picked(report.who, "user uid manager"),
        "findings": [
            {
                **output.picked(found.kind, "id severity title why"), "area": verdict.area,
                **output.picked(found, "what mend"),
            }
            for verdict in report.verdicts for found in verdict.findings
        ],
        "areas": [
            {
                **output.picked(verdict, "area summary"), "state": worst(verdict.findings) or "ok",
                "facts": [{"name": name, "value": value} for name, value in verdict.facts],
            }
            for verdict in report.verdicts
        ],
        "profiles": [
            {
                "profile": acts.profile, "enforced": acts.acting,
                "not_enforced": [{"property": name, "why": why} for name, why in acts.idle],
            }
            for acts in report.profiles
        ],
    }  # fmt: skip
