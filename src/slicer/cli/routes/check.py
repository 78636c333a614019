"""``slicer routes check``: whether the jobs of routes fit into this machine, with the sums."""

from __future__ import annotations

import shutil
from typing import Any

import click

from slicer.cli import common, complete, output
from slicer.cli.routes import loading
from slicer.columns import BAD, FAINT, GOOD, WARNING, Line
from slicer.config.profiles import Config
from slicer.config.routes import Route
from slicer.errors import EX_OK, EX_PROBLEM
from slicer.model import Gpu
from slicer.quantity import format_mib, format_size
from slicer.record import as_dict, replace
from slicer.route import budget, suggestion
from slicer.route.budget import Worksheet
from slicer.route.probe_program import FFPROBE
from slicer.route.probing import programs
from slicer.text import counted


@click.command(
    "check",
    short_help="Check whether the jobs of routes fit into this machine.",
    epilog="""\
\b
Examples:
  slicer routes check                all routes, with the sums
  slicer routes check whisper        one route
  slicer routes check --json | jq '.routes[] | select(.fits | not) | .route'
                                     for scripts: the routes that do not fit

\b
GPU memory is what the ledger leases if the largest number of jobs runs
(max_jobs). Memory is the MemoryMax of all these jobs, and the reserve
(memory_reserve) for everything else. SUGGESTED is the MemoryMax with which
the jobs use all the memory and still fit. Each route is checked on its own.
If jobs of two routes run together, the ledger still divides the GPU memory,
but nothing divides main memory. So the last line warns if all routes together
need too much.

\b
Exit codes:
    0  everything fits
    1  something does not, or a probe's program is missing""",
)
@click.argument("name", required=False, shell_complete=complete.routes)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(name: str | None, as_json: bool) -> int:
    """Check whether the jobs of each route fit into this machine, with the sums.

    It also checks that the programs of the route's probes are installed.
    """
    config = common.config()
    routes = loading.routes(config, name)
    parts = [part for each in routes.values() for part in each.destinations]
    gpus = loading.gpus() if any(part.mode == "gpu" for part in parts) else ()
    found = [(each, _sheet(config, each, gpus), missing_programs(each)) for each in routes.values()]
    needed = budget.together_bytes([sheet for _, sheet, _ in found])
    if as_json:
        routes_json = [_json(sheet, missing) for _, sheet, missing in found]
        output.show_json({"routes": routes_json, "needed_together_bytes": needed})
    elif not found:
        output.show([loading.NO_ROUTES])
    else:
        shown = [line for each in found for line in (Line(""), *lines(*each))][1:]
        has = config.host.memory_bytes
        if len(found) > 1 and needed > has:
            told = f"{format_size(needed)} of memory, and the machine has {format_size(has)}"
            shown += [Line(""), Line(f"all routes together: {told}", WARNING)]
        output.show(shown, cuts=False)
    return EX_PROBLEM if any(sheet.problems or missing for _, sheet, missing in found) else EX_OK


def _sheet(config: Config, route: Route, gpus: tuple[Gpu, ...] | None) -> Worksheet:
    """The budget of a route, with notes about the memory that its past jobs used."""
    made = budget.worksheet_here(config, route, gpus)
    past = loading.past(route.name, None).get(route.name, [])
    return replace(made, notes=(*made.notes, *suggestion.memory_notes(route, past)))


def missing_programs(route: Route) -> tuple[str, ...]:
    """The programs of the route's probes that are not in PATH."""
    return tuple(program for program in programs(route) if shutil.which(program) is None)


def lines(route: Route, sheet: Worksheet, missing: tuple[str, ...]) -> list[Line]:
    """The worksheet for people: jobs, GPUs, memory, and what does not fit."""
    is_well = not sheet.problems and not missing
    told = "fits" if is_well else counted(len(sheet.problems) + len(missing), "problem")
    made = [Line(f"{sheet.route}: {told}", GOOD if is_well else BAD), Line("")]
    made += output.indented(_jobs(sheet))
    if sheet.gpus:
        made += [Line(""), *output.indented(_gpus(sheet))]
    made += [Line(""), *output.indented(_memory(sheet))]
    made += [Line(f"  note: {note}", FAINT) for note in sheet.notes]
    made += [Line(f"  problem: {problem}", BAD) for problem in sheet.problems]
    for program in missing:
        hint = " (Debian: apt install ffmpeg)" if program == FFPROBE else ""
        made.append(Line(f"  problem: the probe's program {program!r} is not in PATH{hint}", WARNING))
    return made


def _jobs(sheet: Worksheet) -> list[Line]:
    heads = "TO<24 | JOBS> | LIMITED BY | GPUS> | VRAM> | MEMORYMAX> | ALL> | SUGGESTED> | FROM"
    rows = []
    for each in sheet.shares:
        together = None if each.memory_bytes is None or each.jobs is None else each.memory_bytes * each.jobs
        rows.append((
            each.name, "any" if each.jobs is None else str(each.jobs), each.limited_by or "-",
            str(each.gpus or "-"),
            "whole" if each.gpus and each.vram_mib is None else format_mib(each.vram_mib),
            "none" if each.memory_bytes is None else format_size(each.memory_bytes), format_size(together),
            format_size(each.suggested_bytes), each.memory_source or "-",
        ))  # fmt: skip
    return output.table(heads, rows)


def _gpus(sheet: Worksheet) -> list[Line]:
    rows = [
        (
            str(each.gpu.index), format_mib(each.gpu.memory_mib),
            " + ".join(f"{jobs} x {name}" for name, jobs in each.jobs.items()) or "-",
            format_mib(each.left_mib), each.gpu.name,
        )
        for each in sheet.gpus
    ]  # fmt: skip
    return output.table("GPU> | HAS> | JOBS | LEFT> | NAME", rows)


def _memory(sheet: Worksheet) -> list[Line]:
    """The sum, as one would write it on paper."""
    rows = [(format_size(sheet.machine_bytes), "this machine")]
    for each in sheet.shares:
        if each.is_declared and each.jobs and each.memory_bytes:
            each_of_them = format_size(each.memory_bytes)
            together = format_size(each.jobs * each.memory_bytes)
            rows.append((f"-{together}", f"{each.name}, {each.jobs} x {each_of_them}"))
    rows.append((f"-{format_size(sheet.reserve_bytes)}", f"reserve ({sheet.reserve_source})"))
    word = "left" if sheet.left_bytes >= 0 else "missing"
    sign = "" if sheet.left_bytes >= 0 else "-"
    rows.append((f"{sign}{format_size(abs(sheet.left_bytes))}", word))
    return output.table("MEMORY> | ", rows)


def _json(sheet: Worksheet, missing: tuple[str, ...]) -> dict[str, Any]:
    data = as_dict(sheet)
    data["gpus"] = [
        {
            "index": each.gpu.index, "name": each.gpu.name, "total_mib": each.gpu.memory_mib,
            "jobs": each.jobs, "left_mib": each.left_mib,
        }
        for each in sheet.gpus
    ]  # fmt: skip
    data["missing_programs"] = missing
    data["fits"] = not sheet.problems and not missing
    return data
