"""``slicer status``: who holds what, who waits and why, what is free."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from slicer.cli.status_shown import show

_LONGEST_S = 3600.0


def _seconds(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):  # NaN passes every range check
        raise click.UsageError("--interval: expected a number of seconds")
    return value


def _interval(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = click.FloatRange(0.1, _LONGEST_S)
    return click.option(
        "--interval", "interval_s", metavar="SECONDS", type=kind, callback=_seconds, help=text
    )


@click.command(
    "status",
    short_help="Show who holds what, who waits and why, and what is free.",
    epilog="""\
\b
Examples:
  slicer status                   jobs, who waits and why, GPUs and slots
  slicer status --watch           follow it live until q or Ctrl-C
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
In --watch, the arrow keys choose a job: k stops it, p pauses or resumes it, l
shows its log. / filters, ? explains all keys, q or Ctrl-C quits.
`slicer top` is short for it.
docs/json.md describes the output of --json.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; with --watch, one a line.")
@click.option("-w", "--watch", "watches", is_flag=True, help="Stay, and show each change as it happens.")
@_interval("With --watch: how often to check the GPUs, which report no changes. 2 by default.")
def command(as_json: bool, watches: bool, interval_s: float | None) -> int:
    """Show running and waiting jobs, and which GPUs and slots are free."""
    if interval_s is not None and not watches:
        raise click.UsageError("--interval is only valid with --watch")
    if watches:
        return _watch(as_json, interval_s)
    show(as_json=as_json)
    return 0


@click.command(
    "top",
    short_help="Follow GPUs, jobs and who waits live.",
    epilog="""\
\b
Examples:
  slicer top                      the same as slicer status --watch
  slicer top --interval 0.5       check the GPUs twice a second""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON documents, one a line.")
@_interval("How often to check the GPUs, which report no changes. 2 by default.")
def top_command(as_json: bool, interval_s: float | None) -> int:
    """Show GPUs, jobs and who waits, and follow each change: `slicer status --watch`.

    The arrow keys choose a job: k stops it, p pauses or resumes it, l shows its log. / filters, ? explains
    all keys, q or Ctrl-C quits.
    """
    return _watch(as_json, interval_s)


def _watch(as_json: bool, interval_s: float | None) -> int:
    from slicer.cli.watch import run

    return run(as_json=as_json, interval_s=2.0 if interval_s is None else interval_s)
