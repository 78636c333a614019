"""``slicer routes suggest``: a threshold from what past jobs used, and a plot of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from slicer.cli import common, complete, drawing, output
from slicer.cli.routes import loading
from slicer.columns import FAINT, GOOD, WARNING, Line
from slicer.config import metric_units
from slicer.config.profiles import Config
from slicer.config.routes import Destination, Route
from slicer.errors import EX_OK, EX_PROBLEM, SlicerError, UsageError
from slicer.quantity import MIB_TEXT, format_mib, parse_mib
from slicer.record import as_dict
from slicer.route import suggestion
from slicer.route.past import PastJob
from slicer.route.suggestion import DEFAULT_MARGIN_PERCENT, Point, Suggestion, bounding_probe, suggest
from slicer.text import counted, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE_INCHES = (9, 5.5)
_LINE, _LIMIT, _FAINT = "#203040", "#c08020", "#999999"
# How a job ended, for the legend; its colour and mark.
_MARKS = {
    "succeeded": ("#4878a8", "o"),
    "failed, and may need more": (_FAINT, "^"),
    "ran out of GPU memory": ("#c03028", "x"),
}
# For the metric's axis: the largest unit of which its end has at least one.
_UNITS = {
    "duration": ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")),
    "size": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    "pixels": ((1_000_000, "MP"),),
}


@click.command(
    "suggest",
    short_help="Propose a threshold from what past jobs used.",
    epilog="""\
\b
Examples:
  slicer routes suggest whisper              with the declared memory
  slicer routes suggest whisper --vram 8G    if a job may use 8 GiB of a GPU
  slicer routes suggest whisper --plot out.svg
                                             a picture of it

\b
It fits a straight line that 95 of 100 past jobs do not exceed, and finds
where it reaches the memory that a job may use, less --spare. If too many jobs
ran out of memory, it proposes less. It makes no proposal from fewer than
10 successful jobs, from inputs that are all alike, or if the metric says
nothing about the memory. It never proposes more than twice the largest input
seen. A plot needs matplotlib.

\b
Exit codes:
    0  there is a proposal, or memory sets no threshold
    1  there is no proposal, for the reason shown""",
)
@click.argument("name", shell_complete=complete.routes)
@click.option("--vram", metavar="SIZE", help="GPU memory that a job may use.  [default: as declared]")
@click.option(
    "--spare", "margin_percent", metavar="PERCENT", type=click.IntRange(0, 90),
    default=DEFAULT_MARGIN_PERCENT, show_default=True, help="Part of that to keep free.",
)  # fmt: skip
@click.option("--to", "to", metavar="DESTINATION", help="Only this of several destinations on the GPU.")
@click.option("--probe", "number", metavar="N", type=click.IntRange(1), help="Only the Nth probe.")
@click.option("--since", metavar="TIME", help="Only jobs since then (7d, 2026-11-20): programs change.")
@click.option("--plot", "plot", metavar="FILE", help="Draw a plot into FILE (.png or .svg).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    name: str, vram: str | None, margin_percent: int, to: str | None, number: int | None, since: str | None,
    plot: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Propose a threshold for the route NAME: up to which inputs its jobs fit into a GPU's memory."""
    given_mib = _mib(vram)
    if plot is not None:
        drawing.check(plot)
    config = common.config()
    route = loading.routes(config, name)[name]
    parts = _gpu_parts(route, to)
    if plot is not None and len(parts) > 1:
        raise UsageError("a plot shows one destination", hint=f"add --to {parts[0].name}")
    past = loading.past(name, common.since(since)).get(name, [])
    found = [_found(config, route, part, past, given_mib, margin_percent, number) for part in parts]
    if plot is not None:
        drawing.write(figure_of(route.name, found[0]), plot)
    if as_json:
        output.show_json({"route": name, "suggestions": [_json(each) for each in found]})
    else:
        for each in found:
            output.show(lines(route, each), cuts=False)
        if plot is not None:
            output.show([Line(""), Line(f"wrote {plot}", FAINT)])
    return EX_OK if any(each.verdict in ("threshold", "flat") for each in found) else EX_PROBLEM


def _mib(text: str | None) -> int | None:
    if text is None:
        return None
    found = common.meant(parse_mib, text, "--vram")
    if not found:
        raise UsageError(f"expected {MIB_TEXT}, not {text!r:.40}", where="--vram")
    return found


def _gpu_parts(route: Route, to: str | None) -> list[Destination]:
    """The destinations to examine. Raises UsageError."""
    parts = [each for each in route.destinations if each.mode == "gpu"]
    names = ", ".join(each.name for each in parts)
    if not route.probes:
        raise UsageError(f"route {route.name} measures nothing", hint="give it a probe, see slicer.toml(5)")
    if not parts:
        raise UsageError(f"route {route.name} has no destination on the GPU")
    if to is None:
        return parts
    found = [each for each in parts if each.name == to]
    if not found:
        raise UsageError(f"no destination {to!r:.60} on the GPU", where="--to", hint=f"known: {names}")
    return found


def _found(
    config: Config, route: Route, part: Destination, past: Sequence[PastJob], vram_mib: int | None,
    margin_percent: int, number: int | None,
) -> Suggestion:  # fmt: skip
    if number is not None and number > len(route.probes):
        has = counted(len(route.probes), "probe")
        raise UsageError(f"route {route.name} has {has}, not {number}", where="--probe")
    made = suggestion_for(
        config, route, part, past, probe=number - 1 if number is not None else None, vram_mib=vram_mib,
        margin_percent=margin_percent,
    )  # fmt: skip
    if made is None:
        hint = "add --vram 10G, for example"
        raise SlicerError(f"the memory for a job of {route.name} is unknown, and there is no GPU", hint=hint)
    return made


def suggestion_for(
    config: Config, route: Route, part: Destination, past: Sequence[PastJob], *,
    probe: int | None = None, vram_mib: int | None = None, margin_percent: int = DEFAULT_MARGIN_PERCENT,
) -> Suggestion | None:  # fmt: skip
    """The suggestion within ``vram_mib``, by default what the configuration or the smallest GPU allows a job.

    None if that is unknown. ``probe`` defaults to the one that bounds the destination.
    """
    usable_mib = part.vram_mib if vram_mib is None else vram_mib
    if usable_mib is None:
        usable_mib = config.profile(part.profile).vram_mib
    if usable_mib is None:
        usable_mib = min((gpu.memory_mib for gpu in loading.gpus() or () if gpu.memory_mib), default=None)
    if usable_mib is None:
        return None
    number = bounding_probe(part) if probe is None else probe
    return suggest(route, part, past, probe=number, vram_mib=usable_mib, margin_percent=margin_percent)


def lines(route: Route, found: Suggestion) -> list[Line]:
    (_, head), *rest = facts(found)
    style = WARNING if found.threshold is None else GOOD
    made = [Line(f"{route.name}, {found.destination}: {head}", style)]
    made += output.rows([(f"  {word}", text) for word, text in rest])
    if found.config:
        made += [Line(""), *(Line(f"    {text}") for text in found.config)]
    return made


def facts(found: Suggestion) -> list[tuple[str, str]]:
    now = "no bound" if found.current is None else metric_units.text(found.kind, found.current)
    proposed = "no proposal"
    if found.threshold is not None:
        proposed = f"{found.kind} up to {metric_units.text(found.kind, found.threshold)}"
    usable = f"{format_mib(found.vram_mib)} for a job, less {found.margin_percent}%"
    told = [
        ("proposal", f"{proposed} (now {now}): {found.reason}"),
        ("memory", f"{usable}: {format_mib(int(found.limit_mib))}"),
        ("jobs", _jobs(found)),
    ]
    if found.line is not None:
        told.append(("line", _line(found, found.line)))
    return told + [("note", note) for note in found.notes]


def _jobs(found: Suggestion) -> str:
    whole = suggestion.known(found.points)
    parts = [f"{counted(len(whole), 'successful job')}"]
    if whole:
        low, high = min(point.metric for point in whole), max(point.metric for point in whole)
        parts[0] += f", of {suggestion.span(found.kind, low, high)}"
    seen = sum(point.peak_mib > 0 for point in found.points)
    if seen > len(whole):
        parts.append(f"{seen - len(whole)} that failed")
    unseen = len(found.points) - seen
    if unseen:
        parts.append(f"{unseen} whose memory was not measured")
    return "; ".join(parts)


def _line(found: Suggestion, line: suggestion.MemoryLine) -> str:
    seen = [point.metric for point in suggestion.known(found.points)]
    ends = [
        f"{format_mib(max(0, round(line.at(metric))))} at {metric_units.text(found.kind, metric)}"
        for metric in (min(seen), max(seen))
    ]
    parts = [" to ".join(ends)]
    if line.above:
        parts.append(f"{line.above} above it, by {format_mib(round(line.highest_above_mib))} at most")
    if found.correlation is not None:
        parts.append(f"rank correlation {found.correlation:.2f}")
    return "; ".join(parts)


def _json(found: Suggestion) -> dict[str, Any]:
    data = as_dict(found)
    data["probe"] = found.probe + 1
    data["limit_mib"] = round(found.limit_mib, 1)
    data["points"] = [{**as_dict(point), "peak_mib": point.peak_mib or None} for point in found.points]
    return data


# -- a picture ----------------------------------------------------------------------------------------------


def figure_of(route: str, found: Suggestion) -> Figure:
    """The picture: jobs as dots, the line, the memory limit, and the current and proposed thresholds."""
    figure = drawing.load()(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    shown = (found.threshold, *(point.metric for point in found.drawn))
    right = 1.05 * max((each for each in shown if each is not None), default=1.0)
    unit, letter = next((each for each in _UNITS.get(found.kind, ()) if right >= each[0]), (1, ""))
    for ended, (colour, marker) in _MARKS.items():
        points = [point for point in found.drawn if _ended(point) == ended]
        if points:
            axes.scatter(
                [point.metric / unit for point in points], [point.peak_mib / 1024 for point in points],
                s=18, c=colour, marker=marker, alpha=0.6 if ended == "succeeded" else 1.0, linewidths=1,
                label=f"{ended} ({len(points)})",
            )  # fmt: skip
    if found.line is not None:
        ends = [found.line.at(0) / 1024, found.line.at(right) / 1024]
        axes.plot([0, right / unit], ends, color=_LINE, label=f"{found.line.share:.0%} of jobs are below")
    label = f"{format_mib(int(found.limit_mib))} may be used"
    axes.axhline(found.limit_mib / 1024, color=_LIMIT, ls="--", label=label)
    for word, metric, colour in (("proposed", found.threshold, _LINE), ("now", found.current, _FAINT)):
        if metric is not None and metric <= right:
            label = f"{word}: {metric_units.text(found.kind, metric)}"
            axes.axvline(metric / unit, color=colour, ls=":", label=label)
    axes.set_xlim(0, right / unit)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{found.kind} ({letter})" if letter else found.kind)
    axes.set_ylabel("peak GPU memory (GiB)")
    # matplotlib might take a name for a formula.
    axes.set_title(visible(f"slicer route {route}, {found.destination}"), parse_math=False)
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small")
    return figure


def _ended(point: Point) -> str:
    succeeded, failed, ran_out = _MARKS
    if point.ran_out:
        return ran_out
    return succeeded if point.ended_well else failed
