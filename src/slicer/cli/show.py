"""``slicer show``: all that is known about one job, whether it waits, runs or has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import click

from slicer import moments
from slicer.broker.client.standing import read
from slicer.cli import complete, output, say
from slicer.cli.history import attempt_rows, details
from slicer.cli.job_register import JobRegister, KnownJob, attempts_of
from slicer.cli.status_json import job_json, ticket_json
from slicer.errors import SlicerError
from slicer.job import change
from slicer.job.find import members
from slicer.job.words import ESTIMATES
from slicer.kernel import cgroup
from slicer.ledger.ledger import Ledger
from slicer.model import Lease
from slicer.outcome import job_files
from slicer.outcome.outcome_file import attempts_json, outcome_json
from slicer.quantity import format_duration, format_estimate, format_mib, format_size
from slicer.record import as_dict
from slicer.text import counted, slots_words, visible

_PIDS_SHOWN = 12


@click.command(
    "show",
    epilog="""\
\b
Examples:
  slicer show                   your last job
  slicer show train             what it holds and uses, or why it waits
  slicer show 3f2a --json | jq -r .log
                                where its output goes, for a script

The form of --json is in docs/json.md.""",
)
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(job: str | None, as_json: bool) -> None:
    """Show all that is known about a job, whether it waits, runs or has ended.

    JOB is as in `slicer logs`; without it: your last job. For a running job: its limits and its current use
    of them, its GPUs and its processes. For a waiting job: why it waits, and when it may start. For an ended
    job: as `slicer history`.
    """
    jobs = JobRegister()
    known = jobs.find(job)
    if known.outcome is not None and not as_json:
        said = _said_rows(job_files.said_of(os.environ, known.job))
        output.show(details(known.outcome, said), cuts=False)
        return
    data = _data(known, jobs)
    if as_json:
        output.show_json(data)
    else:
        rows = _rows(data) + attempt_rows(known.file.attempts if known.file else ())
        output.show(output.rows([(name, value) for name, value in rows if value]), cuts=False)


# -- the data -----------------------------------------------------------------------------------------------


def _data(known: KnownJob, jobs: JobRegister) -> dict[str, Any]:
    entry, file, outcome, line = known.entry, known.file, known.outcome, known.line
    said = outcome or file
    found: dict[str, Any] = {
        "job": known.job, "name": known.name or None, "state": known.state, "command": known.command,
        "directory": said.directory if said else _directory(known), "profile": said.profile if said else None,
        "log": known.output or None, "after": list(file.after) if file else [],
        "begins_at": file.begins_at if file else None, "again": (file.again or None) if file else None,
        "attempts": attempts_json(said.attempts) if said else [],
        "exit_code": outcome.exit_code if outcome else file.exit_code if file else None,
        "why": file.why or None if file else None,
        "running": None, "waiting": None, "outcome": outcome_json(outcome) if outcome else None,
        "queue": None, "said": list(job_files.said_of(os.environ, known.job)) if known.job else [],
    }  # fmt: skip
    if file is not None and found["state"] == "ended" and found["exit_code"] is None:
        found["why"] = file.unseen
    if line is not None:
        picked = output.picked(line, "log_dir pid status attempts")
        ended = [outcome_json(each) for each in attempts_of(line)]
        found["queue"] = {"file": line.jobs_file, "line": line.label, **picked, "ended": ended}
        found["why"] = line.waits_for or line.reason or None
        found["exit_code"] = line.code_for_others if line.is_final else None
        if entry is None:
            found.update(job=line.job or None, directory=None)  # the line may have cwd=
    if entry is not None:
        found["profile"] = entry.profile or found["profile"]
        status = read(os.environ, say.line)
        for lease in status.leases:
            if lease.job == entry.job:
                found["running"] = {**job_json(lease, status), **_running(lease, jobs.ledger)}
        for ticket in status.tickets:
            if ticket.job == entry.job:
                found["waiting"] = ticket_json(ticket, status)
    return found


def _directory(known: KnownJob) -> str | None:
    try:
        return os.readlink(f"/proc/{known.pid}/cwd") if known.pid else None
    except OSError:
        return None


def _running(lease: Lease, ledger: Ledger) -> dict[str, Any]:
    """Its use, its limits and its processes. None: unknown."""
    path = cgroup.path_of(lease.cgroup) if lease.cgroup else ""
    pids = list(cgroup.processes(path)) if path else members(lease, ledger)
    limits = None
    if path:
        try:
            limits = [as_dict(each) for each in change.show(lease, ledger)]
        except SlicerError as error:
            say.line(str(error))
    usage = as_dict(cgroup.usage(path)) if path else None
    if usage is not None:
        usage |= {"memory_bytes": cgroup.memory(path), "processes": cgroup.number(path, "pids.current")}
    return {"processes": sorted(pids), "usage": usage, "limits": limits}


# -- for people ---------------------------------------------------------------------------------------------

_STATES = {"after": "begins later", "waiting": "waits", "running": "runs", "ended": "ended"}


def _rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    running, waiting, queue = data["running"], data["waiting"], data["queue"]
    begins = data["state"] == "after" and data["begins_at"] is not None
    again = f" ({data['again']})" if data["again"] else ""
    rows = [
        ("job", data["job"] or "-"),
        ("name", data["name"] or "-"),
        ("state", _STATES[data["state"]] + _how_ended(data)),
        ("after", ", ".join(data["after"])),
        ("begins", moments.words(data["begins_at"], time.time()) + again if begins else ""),
        ("command", data["command"]),
        ("directory", data["directory"] or ""),
        ("profile", data["profile"] or ""),
        ("output", data["log"] or ""),
    ]
    if queue is not None:
        attempts = counted(queue["attempts"], "attempt")
        rows.append(("queue", f"{queue['line']} of pid {queue['pid']}, {attempts}"))
    if waiting is not None:
        rows += _waiting_rows(waiting)
    elif data["state"] == "waiting":
        rows += [("why", data["why"] or "it is about to start"), ("starts", "not known")]
    rows += _running_rows(running) if running is not None else []
    return rows + _said_rows(data["said"])


def _said_rows(said: Sequence[str]) -> list[tuple[str, str]]:
    """What slicer said of a detached job since its caller has left."""
    return [("slicer said", visible(each)) for each in said]


def _how_ended(data: dict[str, Any]) -> str:
    if data["state"] != "ended":
        return ""
    if data["exit_code"] is None:
        return f": {data['why'] or job_files.KILLED}"
    return f", exit code {data['exit_code']}" + (f": {data['why']}" if data["why"] else "")


def _waiting_rows(waiting: dict[str, Any]) -> list[tuple[str, str]]:
    starts_s, why = waiting["starts_in"], waiting["why"]
    starts = "" if starts_s is None else f"in about {format_estimate(starts_s)}, if others end as expected"
    return [
        ("waits", f"for {format_duration(waiting['waited'])}"),
        ("why", why["text"] if why else "about to start"),
        ("starts", starts or "not known"),
        ("length", _length(waiting)),
        ("pid", str(waiting["pid"])),
    ]


def _length(found: dict[str, Any]) -> str:
    """How long the job should run, as in "about 40m, by earlier runs"; "" unknown."""
    known = found["estimate"]
    if not known or known["from"] == "machine":
        return ""
    return f"about {format_estimate(known['likely'])}, {ESTIMATES[known['from']]}"


def _running_rows(running: dict[str, Any]) -> list[tuple[str, str]]:
    left, usage, pids = running["expected_remaining"], running["usage"], running["processes"]
    shown = " ".join(map(str, pids[:_PIDS_SHOWN])) + (" …" if len(pids) > _PIDS_SHOWN else "")
    rows = [
        ("user", running["user"]),
        ("unit", f"{running['unit']} ({running['manager']} manager)" if running["unit"] else "none"),
        ("runs", f"for {format_duration(running['held_for'])}"),
        ("left", "" if left is None else f"about {format_estimate(left)}" if left else "overdue"),
        ("length", _length(running)),
        ("halted", running["halted"] or ""),
        *(("GPU", _gpu(gpu, running["vram_mib"])) for gpu in running["gpus"]),
        ("slots", ", ".join(slots_words(running["slots"]))),
        ("processes", shown or "none seen"),
    ]
    if usage is not None:
        now, peak = (format_size(usage[name]) for name in ("memory_bytes", "memory_peak_bytes"))
        rows += [
            ("CPU time", "-" if usage["cpu_s"] is None else format_duration(usage["cpu_s"])),
            ("memory", f"{now}, peak {peak}"),
        ]
    for limit in running["limits"] or ():
        acts = "" if limit["acts"] else " (not in effect)"
        rows.append(("limit", f"{limit['name']}={limit['value']}{acts}"))
    return rows


def _gpu(gpu: dict[str, Any], declared_mib: int | None) -> str:
    index = "?" if gpu["index"] is None else gpu["index"]
    declared = "whole" if declared_mib is None else f"{format_mib(declared_mib)} declared"
    return f"{index}: {declared}, uses {format_mib(gpu['used_mib'])}, peak {format_mib(gpu['peak_mib'])}"
