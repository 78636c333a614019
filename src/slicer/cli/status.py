"""``slicer status``: who holds what, who waits and why, what is free."""

from __future__ import annotations

import math

import click

from slicer.cli.status_shown import show

_LONGEST_S = 3600.0


@click.command(
    "status",
    short_help="Show who holds what, who waits and why, and what is free.",
    epilog="""\
\b
Examples:
  slicer status                   jobs, who waits and why, GPUs and slots
  slicer status --watch           the same, kept up to date until q or Ctrl-C
  slicer status --json | jq '.gpus.free[].index'
                                  for scripts: the GPUs that nobody holds

\b
A job's unit stands below it: `systemctl status UNIT` shows its processes,
`slicer stop JOB` ends it. LEFT is the job's own estimate (--expect).
Of a GPU's memory, RESERVED is set aside for jobs (what they declared) and for
processes outside slicer, FREE what one more job can count on. A job marked
"over" uses more than it declared; one marked "forced" waited too long and
runs without what it holds being free; one "stopped" (Ctrl-Z) or "frozen" does
nothing and holds on to what it has. STARTS is worked out from estimates.
A server of `slicer serve` is listed with its state; IDLE is the time since
its last request. In --watch, q or Ctrl-C leaves.
The form of --json is in docs/json.md.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; with --watch one a line.")
@click.option("-w", "--watch", "watches", is_flag=True, help="Stay, and show each change as it comes.")
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1, _LONGEST_S),
    help="With --watch: how often to look at the GPUs, which tell of no change. 2 by default.",
)
def command(as_json: bool, watches: bool, interval_s: float | None) -> int:
    """Show the jobs that run and wait, and which GPUs and slots are free."""
    if interval_s is not None and math.isnan(interval_s):  # which is in every range
        raise click.UsageError("--interval: expected a number of seconds")
    if interval_s is not None and not watches:
        raise click.UsageError("--interval goes with --watch")
    if watches:
        from slicer.cli.watch import run

        return run(as_json=as_json, interval_s=2.0 if interval_s is None else interval_s)
    show(as_json=as_json)
    return 0
