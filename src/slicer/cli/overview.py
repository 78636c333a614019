"""``slicer`` without arguments: the state, what the doctor warns of, and three calls to try."""

from __future__ import annotations

import os

from slicer.cli import doctor_text, output, say
from slicer.cli.status_text import joined, sections
from slicer.columns import FAINT, HEADING, Line
from slicer.doctor import examine
from slicer.ledger.status import read
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.cli.status_text import Section
    from slicer.doctor.model import Report
    from slicer.ledger.status import Status

_MOST_ENTRIES = 5  # of a section


def show() -> None:
    """Print it. What hangs is left out, after a few seconds."""
    report, look = examine.glance(os.environ, os.geteuid(), _status)
    status: Status | None = None
    if look.facts is not None:
        status, warnings = look.facts
        for warning in warnings:
            say.line(warning)
    else:
        say.line(f"the state is not known: {look.failed or 'no answer in time'} (slicer doctor may tell why)")
    parts = [compact(section) for section in sections(status)] if status is not None else []
    output.show(joined([*parts, *filter(None, [warned(report)]), calls(status, report)]))


def _status() -> tuple[Status, list[str]]:
    warnings: list[str] = []
    return read(os.environ, warnings.append), warnings


def compact(section: Section) -> list[Line]:
    """A part of the status, with one line for each of the first few things in it."""
    shown = [entry[0] for entry in section.entries[:_MOST_ENTRIES]]
    more = len(section.entries) - len(shown)
    rest = [Line(f"… {more} more {section.what} (slicer status)", FAINT)] if more > 0 else []
    return [*section.head, *shown, *rest]


def warned(report: Report) -> list[Line]:
    """The doctor's problems and warnings, one a line."""
    found = [each for each in report.findings if each.kind.severity != "note"]
    return [
        Line(
            f"{doctor_text.mark(each.kind.severity)} {doctor_text.headline(each)}",
            doctor_text.style(each.kind.severity),
        )
        for each in found
    ]


def calls(status: Status | None, report: Report) -> list[Line]:
    """Three command lines that make sense now."""
    has_gpus = status is not None and bool(status.gpus)
    tries = [
        ("slicer run --gpus 1 -- python train.py", "waits for a whole GPU")
        if has_gpus
        else ("slicer run -p heavy -- make -j8", "waits for a CPU slot")
    ]
    if status is not None and (status.leases or status.tickets):
        tries.append(("slicer status --watch", f"{counted(len(status.leases), 'job')} as they come and go"))
    else:
        tries.append(("slicer history -n 5", "how the last jobs ended"))
    if warned(report):
        tries.append(("slicer doctor", "says how to mend the above"))
    else:
        tries.append(("slicer --help", "all commands"))
    return [Line("Try", HEADING), *output.rows([(f"  {call}", what) for call, what in tries])]
