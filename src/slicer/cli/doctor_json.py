"""``slicer doctor --json``, as docs/json.md describes it."""

from __future__ import annotations

from typing import Any

from slicer.doctor.model import Acting, Finding, Report, Verdict, worst


def document(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "well": report.is_well,
        "user": report.who.user,
        "uid": report.who.uid,
        "manager": report.who.manager,
        "findings": [_finding(each, verdict) for verdict in report.verdicts for each in verdict.findings],
        "areas": [_area(verdict) for verdict in report.verdicts],
        "profiles": [_profile(acts) for acts in report.profiles],
    }


def _finding(found: Finding, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": found.kind.id,
        "area": verdict.area,
        "severity": found.kind.severity,
        "title": found.kind.title,
        "what": found.what,
        "why": found.kind.why,
        "mend": list(found.mend),
    }


def _area(verdict: Verdict) -> dict[str, Any]:
    return {
        "area": verdict.area,
        "state": worst(verdict.findings) or "ok",
        "summary": verdict.summary,
        "facts": [{"name": name, "value": value} for name, value in verdict.facts],
    }


def _profile(acts: Acting) -> dict[str, Any]:
    return {
        "profile": acts.profile,
        "enforced": list(acts.acting),
        "not_enforced": [{"property": name, "why": why} for name, why in acts.idle],
    }
