"""The plots of a report's page: SVG in the page's own colours, with a text for each bar. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence

from slicer.quantity import format_duration, format_mib
from slicer.report.markup import Html, element
from slicer.report.over_time import step_of
from slicer.report.parts import Bar, Period, Report

# Colours that people with any colour vision can tell apart (Okabe and Ito), and one for all others.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6fc8")
REST = "#8a8f98"
_TICKS = 8  # at most
_WORTH_DRAWING = 0.005  # GPUs, GiB or CPUs


def drawn(report: Report, colours: dict[str, str], key: str) -> Html:
    """The timeline, and below it what was held and used over time.

    ``colours``: of jobs, by the value of their field ``key``.
    """
    found, ticks = report.over_time, _ticks(report.period)
    charts = [
        ("GPUs held and busy", found.gpus_held, found.gpus_busy),
        ("GPU memory held and used, in GiB", found.declared_gib, found.used_gib),
        ("CPU slots held and CPUs used", found.cpu_slots, found.cpus_used),
    ]
    grid = [element("line", x1=at, x2=at, y2="100%") for at, _ in ticks]
    axis = _row("", (element("text", text, x=at, y="1em") for at, text in ticks), 1.2, "axis")
    shown: list[Html] = []
    if report.cards:
        bars: list[list[Bar]] = [[] for _ in report.cards]
        for bar in report.bars:
            bars[bar.card].append(bar)
        shown.append(element("h3", "Who held which GPU"))
        for card, row in zip(report.cards, bars, strict=True):
            lanes = max((1 / (bar.top - bar.bottom) for bar in row), default=1)
            jobs = (_bar(report, bar, colours.get(getattr(report.jobs[bar.job], key), REST)) for bar in row)
            shown.append(_row(card.label, [*grid, *jobs], max(2.2, 0.7 * lanes)))
        shown.append(axis)
    for title, held, used in charts:
        most = max(*held, *(value or 0.0 for value in used))
        if most >= _WORTH_DRAWING:
            top = _rounded_up(most)
            steps = _over_time(report, held, used, top)
            shown += [element("h3", title), _row(f"{top:,.9g}", [*grid, *steps], 6, "chart"), axis]
    return Html("".join(shown))


def _rounded_up(most: float) -> float:
    power = 10.0 ** math.floor(math.log10(most))
    return next(digit * power for digit in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if digit * power >= 0.999 * most)


def _row(label: str, drawn: Iterable[Html], high_rem: float, kind: str = "lane") -> Html:
    svg = element("svg", *drawn, height=f"{high_rem:.1f}rem")
    return element("div", element("span", label), svg, class_=f"row {kind}")


def _bar(report: Report, bar: Bar, colour: str) -> Html:
    """A job on a GPU; its lower part is what it used."""
    job, card, high = report.jobs[bar.job], report.cards[bar.card], bar.top - bar.bottom
    declared = "whole GPU" if job.declared_mib is None else f"{format_mib(job.declared_mib)} declared"
    told = (
        f"{job.name} ({job.id})", f"{job.user}, profile {job.profile or '-'}, {card.label}",
        f"from {_clock(job.began)} for {format_duration(job.ended - job.began)}",
        f"{declared}, peak {', '.join(map(format_mib, job.peak_mib)) or 'unknown'}",
        f"waited {'unknown' if job.waited_s is None else format_duration(job.waited_s)}; {job.ending}",
    )  # fmt: skip
    used = (bar.used or 0.0) * high
    rectangles = (
        _rectangle(report.period, bar.began, bar.ended, top, height, kind)
        for top, height, kind in ((1 - bar.top, high, "held"), (1 - bar.bottom - used, used, "used"))
    )
    said = element("title", "\n".join(told))
    return element("g", said, *rectangles, class_="failed" if job.has_failed else "", color=colour)


def _over_time(
    report: Report, held: Sequence[float], used: Sequence[float | None], most: float
) -> Iterator[Html]:
    found = report.over_time
    for place, (had, took) in enumerate(zip(held, used, strict=True)):
        began = found.began + place * found.step_s
        ended = min(began + found.step_s, found.ended)
        parts = [
            _rectangle(report.period, began, ended, 1 - value / most, value / most, kind)
            for value, kind in ((had, "held"), (took or 0.0, "used"))
        ]
        told = f"from {_clock(began)}: {had:.2f} held, "
        told += "use not measured" if took is None else f"{took:.2f} used"
        yield element("g", element("title", told), *parts)


def _rectangle(period: Period, began: float, ended: float, top: float, height: float, kind: str) -> Html:
    left, right = _across(period, began), _across(period, ended)
    box = {"x": left, "width": right - left, "y": top, "height": height}
    return element("rect", class_=kind, **{name: f"{part:.3%}" for name, part in box.items()})


def _across(period: Period, at: float) -> float:
    return (at - period.began) / (period.ended - period.began)


def _ticks(period: Period) -> list[tuple[str, str]]:
    """Places and texts of full days or times of day in local time, whose clock may be changed meanwhile."""
    step_min = max(1, step_of(period, _TICKS) // 60)
    year, month, day, *_ = time.localtime(period.began)
    found = []
    at, count = 0.0, 0
    while at < period.ended:
        at = time.mktime((year, month, day, 0, count * step_min, 0, 0, 0, -1))
        count += 1
        place = _across(period, at)
        if 0 <= place < 0.9:  # so that the text has room
            when = time.localtime(at)
            is_day = not when.tm_hour and not when.tm_min
            found.append((f"{place:.3%}", time.strftime("%d %b" if is_day else "%H:%M", when)))
    return found


def _clock(at: float) -> str:
    return time.strftime("%a %d %b %H:%M", time.localtime(at))
