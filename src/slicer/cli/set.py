"""``slicer set``: changes or shows the limits of a running job."""

from __future__ import annotations

import click

from slicer.cli import complete, output, say
from slicer.cli.job_register import JobRegister
from slicer.columns import Line
from slicer.job import change
from slicer.record import as_dict

_SOURCES = {
    "start": "profile or --set",
    "slicer set": "slicer set",
    "outside": "from outside (systemctl set-property)",
    "unit": "a drop-in file of the unit",
}


@click.command(
    "set",
    epilog="""\
\b
Examples:
  slicer set train                    its limits, and where each comes from
  slicer set train MemoryHigh=8G CPUQuota=200%
                                      set both until the job ends
  slicer set train CPUQuota=          as when it started

\b
Exit codes:
    0  all of them are in force
    2  no such job, or a property that cannot change while a job runs; nothing
       changed
  125  the job has just ended, or systemd refused; nothing changed""",
)
@click.argument("job", shell_complete=complete.jobs)
@click.argument(
    "assignments", metavar="[PROPERTY=VALUE]...", nargs=-1, shell_complete=complete.live_properties
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(job: str, assignments: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Change systemd's resource properties of a running job: all that are given, or none.

    Names and values are those of --set and of systemd.resource-control(5). They apply until the job ends.
    "PROPERTY=" restores the value with which the job was started. A list, such as DeviceAllow, is
    replaced.
    """
    jobs = JobRegister()
    lease, ledger = jobs.running(job), jobs.ledger
    if assignments:
        found = change.change(lease, ledger, assignments)
        idle = [each.name for each in found if not each.acts]
        if idle:
            say.line(f"set, but without effect here: {', '.join(idle)} (no cgroup controller for it)")
    else:
        found = change.show(lease, ledger)
    if as_json:
        properties = [{**as_dict(each), "value": each.value or None} for each in found]
        output.show_json({"job": lease.job, "name": lease.name or None, "properties": properties})
    elif not (quiet and assignments):
        says = {True: "yes", False: "no"}
        rows = [(one.name, one.value or "-", says[one.acts], _SOURCES[one.source]) for one in found]
        table = output.table("PROPERTY | VALUE | ACTS | FROM", rows)
        output.show(table if rows else [Line("It has no limits.")])
    return 0
