"""``slicer status``: who holds what, who waits and why, what is free."""

from __future__ import annotations

import click

from slicer.cli.common import meant
from slicer.cli.status_shown import show
from slicer.errors import UsageError
from slicer.quantity import parse_duration

_LEAST_S, _MOST_S = 0.1, 3600.0


def _interval(ctx: click.Context, param: click.Parameter, value: str) -> float:
    found = meant(parse_duration, value, "--interval", "for example 2, 0.5 or 1m") / 1e6
    if not _LEAST_S <= found <= _MOST_S:
        raise UsageError(f"{value}: expected a time from 0.1 s to one hour", where="--interval")
    return found


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


@click.command(
    "top",
    epilog="""\
\b
Examples:
  slicer top                   follow it live until q or Ctrl-C
  slicer top --interval 0.5    check the GPUs twice a second
  slicer top --json            a line of JSON for each change""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON documents, one a line.")
@click.option(
    "--interval", "interval_s", metavar="DURATION", default="2", show_default=True, callback=_interval,
    help="How often to check the GPUs, which report no changes.",
)  # fmt: skip
def top_command(as_json: bool, interval_s: float) -> int:
    """Show GPUs, jobs and who waits, and follow each change.

    The arrow keys choose a job: k stops it, p pauses or resumes it, l shows its log. / filters, ? explains
    all keys, q or Ctrl-C quits.
    """
    from slicer.cli.watch import run

    return run(as_json=as_json, interval_s=interval_s)
