"""``slicer doctor`` for people: a line an area, then what is to be mended, the worst first."""

from __future__ import annotations

import shutil
import textwrap

from slicer.cli import output
from slicer.columns import BAD, FAINT, GOOD, HEADING, WARNING, Line, aligned
from slicer.doctor.model import SEVERITIES, Finding, Report, Verdict, worst
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.doctor.model import Severity

_WIDEST = 100  # columns of running text
_MARKS = {"problem": ("✗", "x"), "warning": ("!", "!"), "note": ("·", "-"), None: ("✓", "+")}
_STYLES = {"problem": BAD, "warning": WARNING, "note": "", None: GOOD}
_TITLES = {"gpus": "GPUs"}


def lines(report: Report, *, verbose: bool = False) -> list[Line]:
    """The whole report. ``verbose``: with all facts, and the reasons of notes."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    shown = _areas(report)
    if verbose:
        shown += [line for verdict in report.verdicts for line in _facts(verdict)]
    for found in report.findings:
        shown += [Line(""), *_finding(found, width, is_told_why=verbose or found.kind.severity != "note")]
    return [*shown, Line(""), Line(_sum(report), HEADING), *_more(verbose=verbose)]


def mark(severity: Severity | None) -> str:
    """The sign of a severity; None: all is well."""
    drawn, plain = _MARKS[severity]
    return drawn if output.may_draw() else plain


def style(severity: Severity | None) -> str:
    """And its colour."""
    return _STYLES[severity]


def headline(found: Finding) -> str:
    """A finding in one line, without its mark."""
    return f"{found.kind.title}: {found.what}"


def _areas(report: Report) -> list[Line]:
    severities = [worst(verdict.findings) for verdict in report.verdicts]
    rows = [
        (mark(severity), _TITLES.get(verdict.area, verdict.area), verdict.summary)
        for severity, verdict in zip(severities, report.verdicts, strict=True)
    ]
    texts = aligned(rows, "lll")
    return [Line(text, style(severity)) for text, severity in zip(texts, severities, strict=True)]


def _facts(verdict: Verdict) -> list[Line]:
    if not verdict.facts:
        return []
    rows = aligned([(f"  {name}", value) for name, value in verdict.facts], "ll")
    return [Line(""), Line(_TITLES.get(verdict.area, verdict.area), HEADING), *map(Line, rows)]


def _finding(found: Finding, width: int, *, is_told_why: bool) -> list[Line]:
    severity = found.kind.severity
    said = f"{headline(found)} [{found.kind.id}]"
    head = textwrap.wrap(
        said, width, initial_indent=f"{mark(severity)} ", subsequent_indent="  ", break_on_hyphens=False
    )
    shown = [Line(text, style(severity)) for text in head]
    if is_told_why:
        why = textwrap.wrap(found.kind.why, width, initial_indent="  ", subsequent_indent="  ")
        shown += [Line(text, FAINT) for text in why]
    return [*shown, *(Line(f"    {command}") for command in found.mend)]


def _sum(report: Report) -> str:
    found = [each.kind.severity for each in report.findings]
    parts = [counted(found.count(severity), severity) for severity in SEVERITIES if severity in found]
    return f"{', '.join(parts)}." if parts else "Nothing to mend."


def _more(*, verbose: bool) -> list[Line]:
    return [] if verbose else [Line("slicer doctor -v shows all that was looked at.", FAINT)]
