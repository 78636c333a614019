"""What to say of wrapped programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.wraps import WrapFacts
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Verdict
from slicer.text import counted, visible
from slicer.wrap.model import ProblemId

# Calls fail; with all else that is wrong they may go past the route.
_BROKEN: tuple[ProblemId, ...] = ("program-gone", "slicer-gone", "no-route", "shim-gone")


def wraps(facts: WrapFacts) -> Verdict:
    """Each program, and whether calls of it go through its route."""
    shown = tuple((visible(each.wrap.path), f"{each.wrap.route}, {each.state}") for each in facts.wraps)
    summary = f"{counted(len(shown), 'program')} wrapped" if shown else "nothing is wrapped"
    return Verdict("wraps", summary, shown, tuple(_findings(facts)))


def _findings(facts: WrapFacts) -> Iterator[Finding]:
    for status in facts.wraps:
        for problem in status.problems:
            mend = tuple(visible(line) for line in problem.mend)
            kind = "wrap-broken" if problem.id in _BROKEN else "wrap-changed"
            yield finding(kind, visible(problem.message), *mend)
    for told in facts.passed_over:
        yield finding("wrap-record-unusable", visible(told))
