"""``slicer`` without arguments: the state, the doctor's warnings, and three commands to try."""

from __future__ import annotations

import os

from slicer.broker.client.standing import read
from slicer.cli import doctor, output, say
from slicer.cli.queue import rows
from slicer.cli.status_text import sections
from slicer.columns import HEADING, WARNING, Line, joined
from slicer.doctor import looks
from slicer.doctor.findings import DoctorReport
from slicer.doctor.glance import glance
from slicer.ledger.status import LedgerStatus
from slicer.queue.control.messages import RunningQueue
from slicer.state import standings
from slicer.state.standings import ServerStanding

_DEADLINE_S = 5.0
_MOST_ENTRIES = 5  # in a section
_CALLS = (
    ("  slicer run -p heavy -- make -j8", "waits for a CPU slot"),
    ("  slicer history -n 5", "how the last five jobs ended"),
    ("  slicer help", "all commands"),
)


def show() -> None:
    """Print the overview. A look that hangs is left out after some seconds."""
    duties = {"status": _status, "doctor": lambda: glance(os.environ, os.geteuid())}
    found, parts, status = looks.take(duties, _DEADLINE_S), [], None
    if found["status"].facts is not None:
        status, servers, queues, warnings = found["status"].facts
        for warning in warnings:
            say.line(warning)
        for section in sections(status, servers, queues):
            most = len(section.head) + _MOST_ENTRIES + 1
            parts.append(section.cut(output.glyphs(), most, " (slicer status)"))
    else:
        say.line(f"the state is not known: {found['status'].failed or 'no answer in time'}")
    warnings = warned(found["doctor"].facts)
    output.show(joined([*parts, *filter(None, [warnings]), calls(status, warnings)]))


def _status() -> tuple[LedgerStatus, tuple[ServerStanding, ...], tuple[RunningQueue, ...], list[str]]:
    warnings: list[str] = []
    status, servers = read(os.environ, warnings.append), standings.read(os.environ, warnings.append)
    return status, servers, rows.running(status.directory), warnings


def warned(report: DoctorReport | None) -> list[Line]:
    """The doctor's problems and warnings, one a line. None: the doctor did not answer."""
    if report is None:
        return [Line("! the doctor could not check everything: slicer doctor says what hangs", WARNING)]
    return [
        Line(f"{doctor.mark(one.kind.severity)} {doctor.headline(one)}", doctor.STYLES[one.kind.severity])
        for one in report.findings
        if one.kind.severity != "note"
    ]


def calls(status: LedgerStatus | None, warnings: list[Line]) -> list[Line]:
    """Three commands that make sense now."""
    first, second, third = _CALLS
    if status is not None and status.gpus:
        first = ("  slicer run --gpus 1 -- python train.py", "waits for a whole GPU")
    if status is not None and (status.leases or status.tickets):
        second = ("  slicer top", "follow jobs live")
    if warnings:
        third = ("  slicer doctor", "how to fix the above")
    return [Line("Try", HEADING), *output.rows((first, second, third))]
