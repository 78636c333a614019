"""``slicer status``: who holds what, who waits and why, what is free."""

from __future__ import annotations

import click

from slicer.cli.status_shown import show


@click.command(
    "status",
    epilog="""\
\b
Examples:
  slicer status                   jobs, who waits and why, GPUs and slots
  slicer top                      the same live, until q or Ctrl-C
  slicer status --json | jq '.gpus.free[].index'
                                  for scripts: the GPUs that nobody holds

\b
A job's unit is on the line below it: `systemctl status UNIT` shows its
processes, `slicer stop JOB` ends it. LEFT is what its user said
(--expect); ~ by earlier runs of its command; < the rest of its time limit;
- not known.
Of a GPU's MEMORY, RESERVED is set aside for jobs (as declared) and for
processes outside slicer; FREE is what a further job can have. STATE: "over"
marks a job that uses more than it declared, "forced" one that waited too long
and runs although what it holds is not free. A job that is "stopped" (Ctrl-Z)
or "frozen" does nothing, but keeps what it holds. STARTS is calculated from
LEFT, and - where that is not known; "later" waits for other jobs (--after) or
for its time (--begin). Servers of `slicer serve` are listed with their state;
IDLE is the time since the last request.
docs/json.md describes the output of --json.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show running and waiting jobs, and which GPUs and slots are free."""
    show(as_json=as_json)
