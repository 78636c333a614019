"""A report as one picture, by matplotlib."""

from __future__ import annotations

import time

from slicer.report.figures import WAITS
from slicer.report.words import summary
from slicer.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from matplotlib.figure import Figure

    from slicer.report.model import Bar, Report

SIZE_INCHES = (12, 13)
_PALE, _DARK, _BAD = "#b5cbe4", "#2468a8", "#c0392b"
_MOST_ROWS = 12  # of a list of bars
_LABEL = 24  # characters
_TICKS = 7


def draw(figure: Figure, report: Report, title: str) -> None:
    """Draw the report on an empty figure of matplotlib's."""
    # matplotlib might take a name for a formula.
    figure.suptitle("\n".join([title, *summary(report)]), parse_math=False, fontsize=10, ha="left", x=0.01)
    mosaic = [["timeline"] * 2, ["gpus"] * 2, ["slots"] * 2, ["memory", "waits"], ["memory", "endings"]]
    heights = (2 + 0.4 * len(report.cards), 1.4, 1.4, 1.6, 1.6)
    axes: dict[str, Any] = figure.subplot_mosaic(mosaic, height_ratios=heights)
    found = report.over_time
    _timeline(axes["timeline"], report)
    _over_time(axes["gpus"], report, "GPUs held (pale) and busy", found.gpus_held, found.gpus_busy)
    _over_time(axes["slots"], report, "CPU slots held (pale) and CPUs used", found.cpu_slots, found.cpus_used)
    uses = report.memory[:_MOST_ROWS]
    names = [use.name or use.profile for use in uses]
    _list(axes["memory"], "GPU memory held (pale), and highest peak, in GiB", names, [
        ([use.declared_mib / 1024 for use in uses], _PALE), ([use.peak_mib / 1024 for use in uses], _DARK)
    ])  # fmt: skip
    counts = [sum(each.counts[place] for each in report.by_user) for place in range(len(WAITS))]
    _list(axes["waits"], "jobs by waiting time", [word for _, word in WAITS], [(counts, _DARK)])
    endings = report.endings[:_MOST_ROWS]
    failed = {job.ending for job in report.jobs if job.has_failed}
    colours = [_BAD if each.ending in failed else _DARK for each in endings]
    _list(
        axes["endings"], "jobs by how they ended", [each.ending for each in endings],
        [([each.jobs for each in endings], colours)],
    )  # fmt: skip


def _timeline(axes: Any, report: Report) -> None:
    from matplotlib.collections import PolyCollection  # a patch for each bar takes ten times as long

    edges = [_BAD if report.jobs[bar.job].has_failed else _DARK for bar in report.bars]
    for parts, colour in (([1.0] * len(edges), _PALE), ([bar.used or 0.0 for bar in report.bars], _DARK)):
        corners = [_corners(report, bar, part) for bar, part in zip(report.bars, parts, strict=True)]
        axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors=edges, linewidths=0.3))
    axes.set_ylim(0, max(1, len(report.cards)))
    labels = [one_line(card.label, _LABEL) for card in reversed(report.cards)]
    axes.set_yticks([place + 0.5 for place in range(len(labels))], labels, parse_math=False)
    _titled(axes, "who held what: declared memory (pale), and its peak; red: failed")
    _clock_axis(axes, report)


def _corners(report: Report, bar: Bar, part: float) -> list[tuple[float, float]]:
    """The lower ``part`` of a bar."""
    low, high = report.height(bar, 0), report.height(bar, part)
    return [(bar.began, low), (bar.ended, low), (bar.ended, high), (bar.began, high)]


def _over_time(axes: Any, report: Report, title: str, held: Any, used: Any) -> None:
    found = report.over_time
    edges = [found.began + place * found.step_s for place in range(len(held))]
    axes.stairs(held, [*edges, found.ended], fill=True, color=_PALE)
    axes.stairs([value or 0.0 for value in used], [*edges, found.ended], fill=True, color=_DARK)
    axes.set_ylim(bottom=0)
    _titled(axes, title)
    _clock_axis(axes, report)


def _clock_axis(axes: Any, report: Report) -> None:
    began, ended = report.period.began, report.period.ended
    ticks = [began + (ended - began) * place / (_TICKS - 1) for place in range(_TICKS)]
    axes.set_xlim(began, ended)
    axes.set_xticks(ticks, [time.strftime("%d %b %H:%M", time.localtime(tick)) for tick in ticks])


def _list(axes: Any, title: str, names: list[str], series: list[tuple[list[Any], Any]]) -> None:
    """Horizontal bars, the first at the top."""
    for values, colour in series:
        axes.barh(range(len(names)), values, color=colour)
    axes.set_yticks(range(len(names)), [one_line(name, _LABEL) for name in names], parse_math=False)
    axes.invert_yaxis()
    _titled(axes, title)


def _titled(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
