"""The plots of a report's page: models of Bokeh, which the page's own script draws."""

from __future__ import annotations

import time
from typing import Any

from bokeh import layouts, models, plotting

from slicer.quantity import format_duration, format_mib
from slicer.report.model import OverTime, Report

# Colours that people with any colour vision can tell apart (Okabe and Ito), and one for all others.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6fc8")
REST = "#8a8f98"
_FAILED = "#c0392b"
_ROW_PX = 44
_FIELDS = ("id", "name", "user", "profile", "ending")  # of a job, as they are
_TOOLTIPS = [
    ("job", "@name (@id)"), ("user", "@user"), ("profile", "@profile"), ("GPU", "@card"), ("held", "@held"),
    ("GPU memory", "@memory"), ("waited", "@waited"), ("ended", "@ending"),
]  # fmt: skip


def layout(report: Report, colours: dict[str, str], key: str) -> Any:
    """The timeline, and below it what was held and used over time. Zooming one zooms them all.

    ``colours``: of jobs, by the value of their field ``key``.
    """
    found = report.over_time
    x_range = models.Range1d(start=_local_ms(found.began), end=_local_ms(found.ended), bounds="auto")
    rows = [
        ("GPUs held and busy", found.gpus_held, found.gpus_busy),
        ("GPU memory held and used, in GiB", found.declared_gib, found.used_gib),
        ("CPU slots held and CPUs used", found.cpu_slots, found.cpus_used),
    ]
    made = [_timeline(report, colours, key, x_range)] if report.cards else []
    made += [_over_time(found, *row, x_range) for row in rows if any(row[1]) or any(row[2])]
    return layouts.column(*made, sizing_mode="stretch_width", name="plots")


def _figure(title: str, height: int, x_range: models.Range1d, y_range: models.Range1d) -> Any:
    wheel = models.WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    made = plotting.figure(
        title=title, height=height, x_range=x_range, y_range=y_range, x_axis_type="datetime",
        sizing_mode="stretch_width", tools=["xpan", wheel, "xbox_zoom", "reset", "save"],
        active_drag="xpan", active_scroll=wheel, background_fill_color=None, border_fill_color=None,
        outline_line_color=None, min_border_left=64, lod_threshold=None,
    )  # fmt: skip
    made.toolbar.logo = None
    made.toolbar.autohide = True
    made.ygrid.visible = False
    return made


def _timeline(report: Report, colours: dict[str, str], key: str, x_range: models.Range1d) -> Any:
    lines = len(report.cards)
    y_range = models.Range1d(start=0, end=lines, bounds="auto")
    made = _figure("Who held which GPU", 90 + _ROW_PX * lines, x_range, y_range)
    source = models.ColumnDataSource(_bars(report, colours, key), name="jobs")
    kept = models.CDSView(filter=models.BooleanFilter(name="kept"))
    held = made.quad(
        left="left", right="right", bottom="bottom", top="top", fill_color="colour", fill_alpha=0.35,
        line_color="edge", line_width=1, source=source, view=kept, name="bars",
    )  # fmt: skip
    made.quad(
        left="left", right="right", bottom="bottom", top="used", fill_color="colour", line_color=None,
        source=source, view=kept, name="peaks",
    )  # fmt: skip
    made.add_tools(models.HoverTool(renderers=[held], tooltips=_TOOLTIPS))
    made.yaxis.ticker = models.FixedTicker(ticks=[place + 0.5 for place in range(lines)])
    labels = {lines - place - 0.5: card.label for place, card in enumerate(report.cards)}
    made.yaxis.major_label_overrides = labels
    return made


def _bars(report: Report, colours: dict[str, str], key: str) -> dict[str, Any]:
    """One value a bar in each column."""
    jobs = [report.jobs[bar.job] for bar in report.bars]
    colour = [colours.get(getattr(job, key), REST) for job in jobs]
    columns: dict[str, Any] = {
        "left": [_local_ms(bar.began) for bar in report.bars],
        "right": [_local_ms(bar.ended) for bar in report.bars],
        "bottom": [report.height(bar, 0) for bar in report.bars],
        "top": [report.height(bar, 1) for bar in report.bars],
        "used": [report.height(bar, bar.used or 0) for bar in report.bars],
        "colour": colour,
        "edge": [_FAILED if job.has_failed else own for job, own in zip(jobs, colour, strict=True)],
        "card": [report.cards[bar.card].label for bar in report.bars],
        "held": [f"{_clock(job.began)}, for {format_duration(job.ended - job.began)}" for job in jobs],
        "waited": ["unknown" if job.waited_s is None else format_duration(job.waited_s) for job in jobs],
        "memory": [
            f"{_declared(job.declared_mib)}, peak {', '.join(map(format_mib, job.peak_mib)) or 'unknown'}"
            for job in jobs
        ],
    }  # fmt: skip
    return columns | {name: [getattr(job, name) for job in jobs] for name in _FIELDS}


def _declared(mib: int | None) -> str:
    return "whole GPU" if mib is None else f"{format_mib(mib)} declared"


def _over_time(
    found: OverTime, title: str, held: tuple[float, ...], used: tuple[float | None, ...],
    x_range: models.Range1d,
) -> Any:  # fmt: skip
    most = max(*held, *(value or 0.0 for value in used))
    made = _figure(title, 170, x_range, models.Range1d(start=0, end=most * 1.05))
    lefts = [found.began + place * found.step_s for place in range(len(held))]
    source = models.ColumnDataSource({
        "left": list(map(_local_ms, lefts)),
        "right": [_local_ms(min(left + found.step_s, found.ended)) for left in lefts],
        "held": held, "used": [value or 0.0 for value in used], "when": list(map(_clock, lefts)),
        "held_text": [f"{value:.2f}" for value in held],
        "used_text": ["not measured" if value is None else f"{value:.2f}" for value in used],
    })  # fmt: skip
    bars = made.quad(left="left", right="right", bottom=0, top="held", source=source, name="held")
    made.quad(left="left", right="right", bottom=0, top="used", source=source, name="used")
    tooltips = [("from", "@when"), ("held", "@held_text"), ("used", "@used_text")]
    made.add_tools(models.HoverTool(renderers=[bars], mode="vline", tooltips=tooltips))
    return made


def _local_ms(at: float) -> float:
    """Bokeh shows times as if all were in UTC."""
    return (at + time.localtime(at).tm_gmtoff) * 1000


def _clock(at: float) -> str:
    return time.strftime("%a %d %b %H:%M", time.localtime(at))
