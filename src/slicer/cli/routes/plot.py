"""A suggestion as a picture: PNG, SVG, or a self-contained HTML page."""

from __future__ import annotations

import html
import os

from slicer.cli import drawing
from slicer.cli.common import failing
from slicer.config import metrics
from slicer.errors import SlicerError
from slicer.outcome.outcome_file import put
from slicer.quantity import format_mib
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slicer.route.suggestion import Point, Suggestion

_SIZE_INCHES = (9, 5.5)
_LINE, _LIMIT, _FAINT = "#203040", "#c08020", "#999999"
# How a job ended, for the table and the legend; its colour and mark.
_MARKS = {
    ("well", "succeeded"): ("#4878a8", "o"),
    ("failed", "failed, and may need more"): (_FAINT, "^"),
    ("out of GPU memory", "ran out of GPU memory"): ("#c03028", "x"),
}
# For the metric's axis: the largest unit of which its end has at least one.
_UNITS = {
    "duration": ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")),
    "size": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    "pixels": ((1_000_000, "MP"),),
}
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { text-align: left; padding: .2em 1em .2em 0; border-bottom: 1px solid #ddd; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f4f4f4; padding: .8em }
svg { max-width: 100%; height: auto }
"""


def write(route: str, found: Suggestion, path: str, facts: list[tuple[str, str]]) -> None:
    """Write the plot to ``path``; its extension chooses the format. ``facts``: labels and texts for HTML.

    Raises SlicerError.
    """
    extension = os.path.splitext(path)[1].lower()
    directory = os.path.dirname(path)
    if directory and not os.path.isdir(directory):
        raise SlicerError("the directory does not exist", where=directory)
    picture = drawing.saved(_figure(route, found), "png" if extension == ".png" else "svg")
    if extension == ".html":
        picture = _page(route, found, picture.decode(), facts).encode()
    with failing("the plot cannot be written", path):
        put(picture, path)


def _figure(route: str, found: Suggestion) -> Figure:
    """The picture: jobs as dots, the line, the memory limit, and the current and proposed thresholds."""
    figure = drawing.load()(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    shown = (found.threshold, *(point.metric for point in found.drawn))
    right = 1.05 * max((each for each in shown if each is not None), default=1.0)
    unit, letter = next((each for each in _UNITS.get(found.kind, ()) if right >= each[0]), (1, ""))
    for (ended, label), (colour, marker) in _MARKS.items():
        points = [point for point in found.drawn if _ended(point) == ended]
        if points:
            axes.scatter(
                [point.metric / unit for point in points], [point.peak_mib / 1024 for point in points],
                s=18, c=colour, marker=marker, alpha=0.6 if ended == "well" else 1.0, linewidths=1,
                label=f"{label} ({len(points)})",
            )  # fmt: skip
    if found.line is not None:
        ends = [found.line.at(0) / 1024, found.line.at(right) / 1024]
        axes.plot([0, right / unit], ends, color=_LINE, label=f"{found.line.share:.0%} of jobs are below")
    label = f"{format_mib(int(found.limit_mib))} may be used"
    axes.axhline(found.limit_mib / 1024, color=_LIMIT, ls="--", label=label)
    for word, metric, colour in (("proposed", found.threshold, _LINE), ("now", found.current, _FAINT)):
        if metric is not None and metric <= right:
            label = f"{word}: {metrics.text(found.kind, metric)}"
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
    if point.ran_out:
        return "out of GPU memory"
    return "well" if point.ended_well else "failed"


def _escaped(text: str) -> str:
    return html.escape(visible(text))


def _page(route: str, found: Suggestion, svg: str, facts: list[tuple[str, str]]) -> str:
    title = _escaped(f"slicer route {route}, {found.destination}")
    rows = "".join(f"<tr><th>{_escaped(word)}</th><td>{_escaped(text)}</td></tr>\n" for word, text in facts)
    config = "\n".join(map(_escaped, found.config))
    jobs = "".join(
        f'<tr><td class="n">{_escaped(metrics.text(found.kind, point.metric))}</td>'
        f'<td class="n">{format_mib(round(point.peak_mib) or None)}</td><td>{_ended(point)}</td></tr>\n'
        for point in sorted(found.points, key=lambda point: point.metric)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        + (f"<pre>{config}</pre>\n" if config else "")
        + f"<table>\n{rows}</table>\n{svg[svg.index('<svg') :]}\n"
        f"<h2>Jobs</h2>\n<table>\n<tr><th>{found.kind}</th><th>peak</th><th>ended</th></tr>\n{jobs}</table>\n"
        "</body>\n</html>\n"
    )
