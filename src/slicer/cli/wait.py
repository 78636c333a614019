"""``slicer wait``: waits until jobs have ended, and returns their exit code."""

from __future__ import annotations

from typing import Any

import click

from slicer.cli import complete, output
from slicer.cli.ends import Ended, ends
from slicer.cli.job_register import JobRegister
from slicer.cli.run import seconds
from slicer.text import visible


@click.command(
    "wait",
    epilog="""\
\b
Examples:
  slicer wait train && ./publish     once it has ended well
  slicer wait 3f2a 7d0d              both; the higher exit code
  slicer wait --any train eval       the first of them
  slicer wait --max-wait 1h train    124 after an hour; the job goes on

\b
Exit codes:
  The job's own (the highest of several; with --any, the first job's), or
    2  no such job, or several could be meant; nothing was waited for
   75  the queue of a line that has not begun has ended
  124  a job has not ended within --max-wait
  125  a job was killed together with slicer, and nobody saw how it ended
  143  a line of a jobs file was cancelled or removed before it began""",
)
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=complete.jobs)
@click.option("--any", "is_any", is_flag=True, help="Wait only for the first job that ends.")
@click.option("--max-wait", metavar="DURATION", help="Wait no longer than this (15m, 2h).")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(jobs: tuple[str, ...], is_any: bool, max_wait: str | None, quiet: bool, as_json: bool) -> int:
    """Wait until jobs have ended, whether they run, wait or have ended already.

    JOB is as in `slicer logs`; without it: your last job. A job that never ran has the exit code of its
    `slicer run`. Of a line of a jobs file, all attempts are waited for.
    """
    timeout_s = seconds(max_wait, "--max-wait")
    found, ended = list(map(JobRegister().find, jobs or (None,))), list[Ended]()
    try:
        for each in ends(found, timeout_s):
            ended.append(each)
            if not quiet and not as_json:
                print(visible(each.text), flush=True)
            if is_any:
                break
    finally:
        if as_json and ended:
            output.show_json({"jobs": list(map(_json, ended))})
    return max(each.exit_code for each in ended)


def _json(ended: Ended) -> dict[str, Any]:
    reason = ended.outcome.reason if ended.outcome is not None else None
    return {
        "job": ended.known.job or None, "name": ended.known.name or None, "exit_code": ended.exit_code,
        "reason": reason, "why": ended.why or None,
    }  # fmt: skip
