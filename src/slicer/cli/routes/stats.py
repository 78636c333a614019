"""``slicer routes stats``: what routes decided, and what looks wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from slicer.cli import common, complete, output
from slicer.cli.routes import loading
from slicer.cli.routes.suggest import suggestion_for
from slicer.columns import FAINT, WARNING, Column, Line
from slicer.config.profiles import Config
from slicer.config.routes import Route
from slicer.quantity import format_duration, format_mib, format_size
from slicer.record import as_dict
from slicer.route.hints import Hint, gpu_part, hints
from slicer.route.past import DecisionCount, DestinationStats, PastJob, RouteStats, Spread, summary
from slicer.text import counted, one_line

Found = tuple[RouteStats, tuple[Hint, ...]]


@click.command(
    "stats",
    short_help="Count what routes decided, and report what looks wrong.",
    epilog="""\
\b
Examples:
  slicer routes stats                all routes, from the beginning
  slicer routes stats --since 1d     the last 24 hours
  slicer routes stats whisper        one route, by its destinations
  slicer routes stats --json | jq -r '.routes[].hints[].id'
                                     for scripts: what looks wrong

\b
CALLS counts calls of `slicer route`; INPUTS counts different command lines,
so the rest of the calls are repeats. GPU and CPU count jobs that started,
FALLBACK those that ran again on the CPU after the GPU ran out of memory.
BLOCKED, TOO BIG and ERRORS (of the probe) started nothing. WAITED is the time
until the lease of jobs that ran: the median, and the 95th percentile. With
NAME: retries are repeats after a refusal or a failed job. A hint says what
looks wrong with the current configuration, and has the lines that would
change it. docs/json.md describes the output of --json.""",
)
@click.argument("name", required=False, shell_complete=complete.routes)
@click.option("--since", metavar="TIME", help="Only decisions since then (2h, 7d, yesterday).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(name: str | None, since: str | None, as_json: bool) -> None:
    """Count what routes decided: GPU, CPU, blocked, again on the CPU. Report what looks wrong.

    With NAME: only that route, by its destinations.
    """
    config = common.config()
    past = loading.past(name, common.since(since))
    # Routes that the configuration no longer has still have figures.
    routes = loading.routes(config, name if name is not None and not past else None)
    found = []
    for each, rows in past.items():
        route = routes.get(each)
        order = tuple(part.name for part in route.destinations) if route else ()
        found.append((summary(each, rows, order), _hints(config, route, rows)))
    if as_json:
        output.show_json({"routes": [_json(*each, each[0].route in routes) for each in found]})
    elif not found:
        output.show([Line("No decisions yet." if since is None else "No decisions in that time.")])
    elif name is not None:
        output.show([*details(found[0][0]), *hint_lines(found)], cuts=False)
    else:
        output.show(table(each for each, _ in found))
        output.show(hint_lines(found), cuts=False)


def _hints(config: Config, route: Route | None, past: list[PastJob]) -> tuple[Hint, ...]:
    if route is None:
        return ()
    part = gpu_part(route)
    suggestion = suggestion_for(config, route, part[0], past, probe=part[1]) if part else None
    return hints(route, past, suggestion)


def table(found: Iterable[RouteStats]) -> list[Line]:
    counts = "CALLS> | INPUTS> | GPU> | CPU> | FALLBACK> | BLOCKED> | TOO BIG> | ERRORS>"
    rows = [
        (
            each.route, str(each.calls.calls), str(each.calls.inputs),
            *map(_calls, (each.gpu, each.cpu, each.fallback, each.blocked, each.too_large, each.probe_error)),
            *_spread(each.waited),
        )
        for each in found
    ]  # fmt: skip
    return output.table(f"ROUTE<24 | {counts} | WAITED> | 95%>", rows)


def _calls(count: DecisionCount) -> str:
    return str(count.calls) if count.calls else "-"


def _spread(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "-", "-"
    return format_duration(round(spread.median_s, 3)), format_duration(round(spread.p95_s, 3))


def details(found: RouteStats) -> list[Line]:
    """One route, with a column for each destination."""
    calls = _calls_and_inputs(found.calls)
    again = f", {found.retries} {'retry' if found.retries == 1 else 'retries'}" if found.retries else ""
    heading = f"{found.route}: {calls}{again}; {_when(found.first_at)} to {_when(found.last_at)}"
    columns = [Column(""), *(Column(each.name, right=True, cap=24) for each in found.destinations)]
    rows = zip(_FACTS, *map(_facts, found.destinations), strict=True)
    lines = [Line(heading), Line(""), *output.table(columns, [row for row in rows if {*row[1:]} != {"-"}])]
    other = list(_refusals(found))
    return [*lines, Line(""), *output.rows(other)] if other else lines


_FACTS = (
    "started", "  inputs", "fallback", "blocked", "  inputs", "out of GPU memory", "failed", "waited",
    "  95%", "ran for", "  95%", "GPU memory, peak", "memory, peak",
)  # fmt: skip


def _facts(found: DestinationStats) -> tuple[str, ...]:
    return (
        *_both(found.started), _calls(found.fallback), *_both(found.blocked), str(found.ran_out or "-"),
        str(found.failed or "-"), *_spread(found.waited), *_spread(found.wall),
        format_mib(found.vram_peak_mib), format_size(found.memory_peak_bytes),
    )  # fmt: skip


def _both(count: DecisionCount) -> tuple[str, str]:
    return (str(count.calls), str(count.inputs)) if count.calls else ("-", "-")


def _refusals(found: RouteStats) -> Iterable[tuple[str, str]]:
    if found.blocked.calls:
        never = found.blocked_for_good
        later = "all ran later" if not never else f"{never} not run since"
        yield "blocked", f"{_calls_and_inputs(found.blocked)}: {later}"
    if found.too_large.calls:
        yield "too large", _calls_and_inputs(found.too_large)
    if found.probe_error.calls:
        last = one_line(found.last_probe_error, 200)
        yield "probe errors", f"{_calls_and_inputs(found.probe_error)}; the last: {last}"


def _calls_and_inputs(count: DecisionCount) -> str:
    return f"{counted(count.calls, 'call')}, {counted(count.inputs, 'input')}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def hint_lines(found: Iterable[Found]) -> list[Line]:
    lines: list[Line] = []
    for each, told in found:
        for hint in told:
            lines += [Line(""), Line(f"{each.route}: {one_line(hint.text, 400)}", WARNING)]
            lines += [Line(f"    {text}") for text in hint.config]
    if lines:
        lines += [Line(""), Line("slicer routes suggest NAME shows what past jobs suggest.", FAINT)]
    return lines


def _json(found: RouteStats, told: tuple[Hint, ...], is_known: bool) -> dict[str, Any]:
    return {**_plain(found), "is_configured": is_known, "hints": _plain(told)}


def _plain(value: Any) -> Any:
    """Records as dicts, recursively."""
    if hasattr(value, "__fields__"):
        return {name: _plain(each) for name, each in as_dict(value).items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value
