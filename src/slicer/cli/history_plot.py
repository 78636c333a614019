"""``slicer history JOB --plot``: what one job used over time, drawn in the terminal or into a file."""

from __future__ import annotations

import time

from slicer.cli import drawing, output
from slicer.columns import FAINT, HEADING, UNICODE, Glyphs, Line, cell_count
from slicer.errors import SlicerError
from slicer.quantity import format_duration, format_size
from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from slicer.outcome.series import Series, Values

_ROWS = 3  # of each chart
_LEVELS = " ▁▂▃▄▅▆▇█"
_MIB = 1 << 20
_INCHES = (9.0, 1.5)  # of one chart
_MARKS_UP, _MARKS_ACROSS = 4, 8
_WORTH_SHOWING = 0.01  # of the time that a job was stalled
# Round distances between the marks of an axis.
_DECIMALS = tuple(digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5))
_SIZES_MIB = tuple(2.0**power for power in range(-20, 30))
_TIMES_S = (*(unit * each for unit in (1, 60) for each in (1, 2, 5, 10, 15, 30)),
            *(3600 * hours for hours in (1, 2, 4, 6, 12, 24, 48, 7 * 24, 28 * 24)))  # fmt: skip


@record
class Chart:
    """One figure over time. ``most``: the top of its axis."""

    name: str
    values: Values
    most: float
    text: Callable[[float], str]  # a value for people
    note: str = ""
    joins: Callable[[Sequence[float]], float] = max  # the values of one column
    steps: Sequence[float] = _DECIMALS


def charts(series: Series, gpus: Sequence[str], most_mib: int | None) -> list[Chart]:
    """What there is to draw. ``gpus``: their names, in the order of the series; ``most_mib``: as declared."""
    found = []
    for name, gpu in zip(gpus, series.gpus, strict=True):
        peak = _most(gpu.mib)
        most, note = max(peak, float(most_mib or 0)), f"peak {_size(peak)}"
        found.append(Chart(f"{name} memory", gpu.mib, most, _size, note, steps=_SIZES_MIB))
        found.append(Chart(f"{name} busy", gpu.busy, 100.0, lambda value: f"{value:.0f}%", joins=_mean))
    most = _most(series.cpu)
    found.append(Chart("CPUs in use", series.cpu, most, lambda value: f"{value:.1f}", joins=_mean))
    found.append(Chart("memory", series.memory_mib, _most(series.memory_mib), _size, steps=_SIZES_MIB))
    for name, values in (("read", series.read_mib), ("written", series.written_mib)):
        most, per_s = _most(values), lambda value: f"{_size(value)}/s"
        found.append(Chart(name, values, most, per_s, joins=_mean, steps=_SIZES_MIB))
    stalls = (("CPU", series.stalled_cpu), ("memory", series.stalled_memory), ("IO", series.stalled_io))
    for name, values in stalls:
        if _most(values) >= _WORTH_SHOWING:
            found.append(Chart(f"waits for {name}", values, 1.0, lambda value: f"{value:.0%}", joins=_mean))
    return [each for each in found if each.most > 0 and any(value is not None for value in each.values)]


def _most(values: Values) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _size(mib: float) -> str:
    return format_size(round(mib * _MIB))


def lines(title: str, series: Series, shown: Sequence[Chart], width: int, glyphs: Glyphs) -> list[Line]:
    """The charts, at least one, in a terminal of ``width`` columns, one above the other."""
    labels = [[f"{chart.name}  {chart.text(chart.most)}", chart.note, "0"] for chart in shown]
    margin = max(cell_count(label) for each in labels for label in each)
    room = max(8, width - margin - 2)
    columns = min(room, len(series.cpu)) if len(series.cpu) > room // 2 else room
    bar = "▕" if glyphs is UNICODE else "|"
    found = [Line(title, HEADING)]
    for chart, label in zip(shown, labels, strict=True):
        parts = [chart.values[at:end] for at, end in _parts(len(chart.values), columns)]
        drawn = _drawn(parts, chart, glyphs)
        found.append(Line(""))
        for left, row in zip(label, drawn, strict=True):
            found.append(Line(f"{left:>{margin}} {bar}{row}".rstrip()))
    whole = format_duration(series.step_s * len(series.cpu))
    found.append(Line(f"{'':{margin}}  0{whole:>{max(1, columns - 1)}}", FAINT))
    return found


def _parts(count: int, columns: int) -> list[tuple[int, int]]:
    """For each column the values that it shows: their first, and the first of the next."""
    ends = [(number * count // columns, (number + 1) * count // columns) for number in range(columns)]
    return [(at, max(end, at + 1)) for at, end in ends]


def _drawn(parts: Sequence[Values], chart: Chart, glyphs: Glyphs) -> list[str]:
    """The rows of a chart, the highest first."""
    steps = len(_LEVELS) - 1
    heights: list[int | None] = []
    for part in parts:
        known = [value for value in part if value is not None]
        share = min(1.0, chart.joins(known) / chart.most) if known else None
        is_some = share is not None and share > 0
        heights.append(None if share is None else max(int(is_some), round(share * steps * _ROWS)))
    rows = []
    for row in reversed(range(_ROWS)):
        cells = [None if height is None else min(steps, max(0, height - row * steps)) for height in heights]
        if glyphs is UNICODE:
            rows.append("".join(_unknown(row) if cell is None else _LEVELS[cell] for cell in cells))
        else:
            rows.append("".join(_unknown(row) if cell is None else " ####"[-(-cell // 2)] for cell in cells))
    return rows


def _unknown(row: int) -> str:
    return "?" if row == 0 else " "


def _figure(title: str, series: Series, shown: Sequence[Chart]) -> Figure:
    size = (_INCHES[0], 1.0 + _INCHES[1] * len(shown))
    figure = drawing.load()(figsize=size, layout="constrained")
    figure.suptitle(visible(title), parse_math=False)
    times = [number * series.step_s for number in range(len(series.cpu) + 1)]
    panels = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
    for axes, chart in zip(panels, shown, strict=True):
        values = [float("nan") if value is None else value for value in chart.values]
        axes.stairs(values, times, fill=True, alpha=0.35, color="#4878a8")
        axes.stairs(values, times, color="#203040", linewidth=0.8)
        axes.set_ylim(0, chart.most * 1.05)
        marks = _marks(chart.most, chart.steps, _MARKS_UP)
        axes.set_yticks(marks, [chart.text(mark) for mark in marks])
        axes.set_title(", ".join(filter(None, (chart.name, chart.note))), loc="left", fontsize="medium")
        axes.grid(alpha=0.25)
    marks = _marks(times[-1], _TIMES_S, _MARKS_ACROSS)
    panels[-1].set_xticks(marks, [format_duration(mark) for mark in marks])
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(series.started_at))
    panels[-1].set_xlabel(f"time since {began}")
    return figure


def _marks(most: float, steps: Sequence[float], count: int) -> list[float]:
    """From 0 to ``most``, in the first of the steps of which about ``count`` are enough."""
    step = next((each for each in steps if each * count >= most), steps[-1])
    return [step * number for number in range(int(most / step) + 1)]


@record
class Plotted:
    """A job to draw. ``series``: None if nobody has sampled it."""

    title: str
    series: Series | None
    gpus: tuple[str, ...]  # their names, in the order of the series
    declared_mib: int | None  # on each GPU


def show(job: Plotted, path: str) -> None:
    """Print the charts, or write them into the file ``path``, as its ending says. Raises SlicerError."""
    if job.series is None:
        hint = "a job has none if it ended within two seconds, or if slicer was killed meanwhile"
        raise SlicerError(f"there are no samples of {job.title}", hint=hint)
    found = charts(job.series, job.gpus, job.declared_mib)
    if not found:
        raise SlicerError(f"nothing of what {job.title} used was measurable, or it used nothing")
    if path:
        drawing.write(_figure(job.title, job.series, found), path)
        return
    output.show(lines(job.title, job.series, found, output.width() or 80, output.glyphs()))
