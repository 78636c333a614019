"""``slicer`` without arguments: the state, what the doctor warns of, and three calls to try."""

from __future__ import annotations

import os

from slicer.cli import doctor, output, say
from slicer.columns import FAINT, HEADING, WARNING, Line
from slicer.doctor import looks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.cli.status_text import Section
    from slicer.doctor.model import Report
    from slicer.ledger.status import Status
    from slicer.serve.model import Standing

_DEADLINE_S = 5.0
_MOST_ENTRIES = 5  # of a section


def show() -> None:
    """Print it. What hangs is left out, after some seconds."""
    found = looks.take({"status": _status, "doctor": _glance}, _DEADLINE_S, meanwhile=_load)
    from slicer.cli.status_text import joined, sections

    status: Status | None = None
    servers: tuple[Standing, ...] = ()
    if found["status"].facts is not None:
        status, servers, warnings = found["status"].facts
        for warning in warnings:
            say.line(warning)
    else:
        say.line(f"the state is not known: {found['status'].failed or 'no answer in time'}")
    parts = [compact(section) for section in sections(status, servers)] if status is not None else []
    warnings = warned(found["doctor"].facts)
    output.show(joined([*parts, *filter(None, [warnings]), calls(status, warnings)]))


def _status() -> tuple[Status, tuple[Standing, ...], list[str]]:
    from slicer.broker.client.standing import read
    from slicer.serve import standings

    warnings: list[str] = []
    return read(os.environ, warnings.append), standings.read(os.environ, warnings.append), warnings


def _glance() -> Report:
    from slicer.doctor.glance import glance

    return glance(os.environ, os.geteuid())


def _load() -> None:
    """What is needed afterwards, while others look."""
    from slicer.cli import status_text
    from slicer.doctor import model
    from slicer.ledger import status

    del status_text, model, status


def compact(section: Section) -> list[Line]:
    """A part of the status, with one line for each of the first few things in it."""
    shown = [entry[0] for entry in section.entries[:_MOST_ENTRIES]]
    more = len(section.entries) - len(shown)
    rest = [Line(f"… {more} more {section.what} (slicer status)", FAINT)] if more > 0 else []
    return [*section.head, *shown, *rest]


def warned(report: Report | None) -> list[Line]:
    """The doctor's problems and warnings, one a line. None: it did not answer."""
    if report is None:
        return [Line("! not all could be looked at: slicer doctor says what hangs", WARNING)]
    found = [each for each in report.findings if each.kind.severity != "note"]
    return [
        Line(
            f"{doctor.mark(each.kind.severity)} {doctor.headline(each)}",
            doctor.style(each.kind.severity),
        )
        for each in found
    ]


def calls(status: Status | None, warnings: list[Line]) -> list[Line]:
    """Three command lines that make sense now."""
    tries = [("slicer run -p heavy -- make -j8", "waits for a CPU slot")]
    if status is not None and status.gpus:
        tries = [("slicer run --gpus 1 -- python train.py", "waits for a whole GPU")]
    if status is not None and (status.leases or status.tickets):
        tries.append(("slicer status --watch", "jobs as they come and go"))
    else:
        tries.append(("slicer history -n 5", "how the last jobs ended"))
    if warnings:
        tries.append(("slicer doctor", "says how to mend the above"))
    else:
        tries.append(("slicer --help", "all commands"))
    return [Line("Try", HEADING), *output.rows([(f"  {call}", what) for call, what in tries])]
