"""``slicer status``: who holds what, who waits, what is free."""

from __future__ import annotations

import os

import click

from slicer.cli import output, say
from slicer.cli.output import FAINT, Column, Line
from slicer.placement import expected_remaining
from slicer.quantity import format_duration, format_size
from slicer.status import Status, look
from slicer.stop import user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Gpu, Lease, Ticket


@click.command(
    "status",
    short_help="Show who holds what, who waits, and what is free.",
    epilog="""\
\b
A job's unit stands below it: `systemctl status UNIT` shows its processes,
`slicer stop JOB` ends it. LEFT is the job's own estimate (--expect).
The form of --json is in docs/json.md.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show the jobs that run and wait, and which GPUs and CPU slots are free."""
    status = look(os.environ, say.line)
    if as_json:
        output.show_json(status_json(status))
    else:
        output.show(lines(status))


def lines(status: Status) -> list[Line]:
    """The state of things for people."""
    shown: list[Line] = []
    if status.leases:
        shown += [*_jobs(status), Line("")]
    else:
        shown += [Line("No job runs."), Line("")]
    if status.tickets:
        shown += [*_waiting(status), Line("")]
    shown += _machine(status)
    if status.directory and not status.shared:
        shown += [Line(""), Line(f"Only jobs that share {status.directory} are seen here.", FAINT)]
    return shown


def _jobs(status: Status) -> list[Line]:
    columns = (
        Column("JOB"), Column("NAME", cap=18), Column("HOLDS", cap=20), Column("USER", cap=8),
        Column("PID", right=True), Column("FOR", right=True), Column("LEFT", right=True),
    )  # fmt: skip
    rows = [
        (
            lease.job, lease.name or "-", _held(lease, status), user_name(lease.uid), str(lease.pid),
            _seconds(status.now_s - lease.since_s), _left(lease, status.now_s),
        )
        for lease in status.leases
    ]  # fmt: skip
    below = [f"{_unit(lease)}: {lease.command}" for lease in status.leases]
    return _with_details(output.table(columns, rows), below)


def _waiting(status: Status) -> list[Line]:
    columns = (
        Column("WAITING"), Column("NAME", cap=18), Column("WANTS", cap=20), Column("USER", cap=8),
        Column("PID", right=True), Column("FOR", right=True),
    )  # fmt: skip
    rows = [
        (
            ticket.job, ticket.name or "-", say.describe_resources(ticket.gpus, ticket.cpu_slots),
            user_name(ticket.uid), str(ticket.pid), _seconds(status.now_s - ticket.arrived_s),
        )
        for ticket in status.tickets
    ]  # fmt: skip
    return _with_details(output.table(columns, rows), [ticket.command for ticket in status.tickets])


def _with_details(table: list[Line], details: list[str]) -> list[Line]:
    """Below each row of the table what is too long for a column."""
    shown = table[:1]
    for row, detail in zip(table[1:], details, strict=True):
        shown += [row, Line(f"  {output.visible(detail)}", FAINT)]
    return shown


def _unit(lease: Lease) -> str:
    if not lease.unit:
        return "no scope"
    return f"{lease.unit} (--user)" if lease.manager == "user" else lease.unit


def _held(lease: Lease, status: Status) -> str:
    parts = []
    if lease.gpus:
        known = [status.gpu(uuid) for uuid in lease.gpus]
        parts.append("GPU " + ",".join(str(gpu.index) if gpu else "?" for gpu in known))
    if lease.cpu_slots:
        parts.append(say.describe_resources(0, lease.cpu_slots))
    return ", ".join(parts) or "-"


def _left(lease: Lease, now_s: float) -> str:
    left = expected_remaining(lease, now_s)
    if left is None:
        return "-"
    return _seconds(left) if left else "overdue"


def _seconds(seconds: float) -> str:
    """A duration in whole seconds: this is a moment's picture."""
    return format_duration(float(max(0, round(seconds))))


def _machine(status: Status) -> list[Line]:
    if status.cpu_slots is None:
        shown = [Line("CPU slots: unknown")]
    else:
        shown = [Line(f"CPU slots: {status.free_cpu_slots} of {status.cpu_slots} free")]
    if status.no_gpus:
        return [*shown, Line(f"No GPUs: {output.visible(status.no_gpus)}")]
    shown.append(Line(f"GPUs: {len(status.free_gpus)} of {len(status.gpus)} free"))
    rows = [
        (str(gpu.index), gpu.name, format_size(gpu.memory_mib << 20), _holder(gpu, status))
        for gpu in status.gpus
    ]
    columns = (Column("", right=True), Column("", cap=32), Column("", right=True), Column(""))
    return [*shown, *(Line(f" {line.text}") for line in output.table(columns, rows)[1:])]


def _holder(gpu: Gpu, status: Status) -> str:
    holder = next((lease for lease in status.leases if gpu.uuid in lease.gpus), None)
    if holder is None:
        return "free"
    return f"{holder.job} {holder.name}".rstrip()


def status_json(status: Status) -> dict[str, Any]:
    """The same as data; see docs/json.md."""
    return {
        "state": {"directory": status.directory or None, "shared": status.shared},
        "jobs": [_job_json(lease, status) for lease in status.leases],
        "waiting": [_ticket_json(ticket, status.now_s) for ticket in status.tickets],
        "gpus": {
            "total": len(status.gpus),
            "free": [_gpu_json(gpu) for gpu in status.gpus if gpu.uuid in status.free_gpus],
            "all": [_gpu_json(gpu) for gpu in status.gpus],
            "why_none": status.no_gpus or None,
        },
        "cpu_slots": {"total": status.cpu_slots, "free": status.free_cpu_slots},
    }


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    return {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_mib": gpu.memory_mib}


def _job_json(lease: Lease, status: Status) -> dict[str, Any]:
    known = [(uuid, status.gpu(uuid)) for uuid in lease.gpus]
    return {
        "job": lease.job,
        **say.holder_dict(lease, status.now_s),
        "uid": lease.uid,
        "user": user_name(lease.uid),
        "backend": lease.backend,
        "manager": lease.manager,
        "cgroup": lease.cgroup or None,
        "gpus": [
            _gpu_json(gpu) if gpu else {"index": None, "uuid": uuid, "name": None, "memory_mib": None}
            for uuid, gpu in known
        ],
        "cpu_slots": lease.cpu_slots,
    }


def _ticket_json(ticket: Ticket, now_s: float) -> dict[str, Any]:
    return {
        "job": ticket.job,
        "name": ticket.name or ticket.command,
        "pid": ticket.pid,
        "uid": ticket.uid,
        "user": user_name(ticket.uid),
        "priority": ticket.priority,
        "gpus": ticket.gpus,
        "cpu_slots": ticket.cpu_slots,
        "waited": round(now_s - ticket.arrived_s, 1),
        "expected": ticket.expect_s,
        "command": ticket.command,
    }
