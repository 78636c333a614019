"""A suggestion as a picture: PNG or SVG."""

from __future__ import annotations

from slicer.cli import drawing
from slicer.config import metric_units
from slicer.quantity import format_mib
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slicer.route.suggestion import Point, Suggestion

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
