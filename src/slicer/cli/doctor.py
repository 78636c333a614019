"""``slicer doctor``: what holds here of what slicer promises, what does not, and how to mend it."""

from __future__ import annotations

import os

import click

from slicer.cli import output
from slicer.errors import EX_OK

_EX_UNWELL = 1


@click.command(
    "doctor",
    short_help="Say what does not work here, why, and how to mend it.",
    epilog="""\
\b
Examples:
  slicer doctor             what is wrong here, why it matters, what mends it
  sudo slicer doctor        the same for root's jobs
  slicer doctor --verbose   what is fine, too
  slicer doctor --json | jq -r '.findings[].id'
                            for scripts: what it found, by names that stay

\b
It looks at systemd, the kernel, limits, GPUs, slicer's own files, and what
may be in the way. It changes nothing, and anybody may run it; what it says
holds for the user who runs it. A problem breaks a promise: jobs do not start,
or a limit or a lease does not act. A warning will surprise somebody. A note
is worth knowing.

\b
Exit codes:
    0  no problem (there may be warnings)
    1  a problem
  125  the doctor itself failed

\b
Each finding has a name in brackets that stays the same. docs/doctor.md lists
them all, docs/json.md has the form of --json.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-v", "--verbose", "verbose", is_flag=True, help="Show all that was looked at.")
def command(as_json: bool, verbose: bool) -> int:
    """Say what does not hold here of what slicer promises, and what mends it."""
    from slicer.doctor.examine import examine

    report = examine(os.environ, os.geteuid())
    if as_json:
        from slicer.cli.doctor_json import document

        output.show_json(document(report))
    else:
        from slicer.cli.doctor_text import lines

        output.show(lines(report, verbose=verbose), cuts=False)
    return EX_OK if report.is_well else _EX_UNWELL
