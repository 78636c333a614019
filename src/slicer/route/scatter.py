"""Jobs as dots in text: GPU memory over what their inputs measured, with the line and the limits. Pure."""

from __future__ import annotations

from slicer.quantity import format_mib
from slicer.record import record
from slicer.route import metric_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.route.suggestion import Suggestion

_LEAST_WIDTH = 20
_BETWEEN = "   "
_ROOM = 1.05  # above the largest value


@record
class Marks:
    """The characters of a plot."""

    jobs: tuple[str, str, str]  # one job, a few, many
    failed: str
    ran_out: str
    line: str
    limit: str
    threshold: str
    axis: str
    corner: str
    floor: str


UNICODE = Marks(("·", "•", "●"), "△", "✗", "\u2571", "╌", "┊", "│", "└", "─")
ASCII = Marks((".", "o", "@"), "^", "x", "/", "-", "!", "|", "+", "-")
_FEW, _MANY = 2, 6  # jobs in one place


def lines(suggestion: Suggestion, width: int, height: int, marks: Marks) -> list[str]:
    """The plot with its legend, in at most ``width`` columns; nothing without a job to show."""
    points = suggestion.drawn
    if not points:
        return []
    bounds = [each for each in (suggestion.threshold, suggestion.current) if each is not None]
    most_metric = max(point.metric for point in points)
    # A bound far away would leave the jobs no room.
    most_metric = max([most_metric, *(each for each in bounds if each <= 2 * most_metric)]) * _ROOM or 1.0
    most_mib = max(suggestion.limit_mib, *(point.peak_mib for point in points)) * _ROOM
    labels = [format_mib(round(most_mib * (height - row - 0.5) / height)) for row in range(height)]
    margin = max(map(len, labels)) + 2
    columns = max(_LEAST_WIDTH, width - margin)
    grid = _grid(suggestion, columns, height, most_metric, most_mib, marks)
    labels = [label if row % 3 == 0 and row < height - 1 else "" for row, label in enumerate(labels)]
    shown = [
        f"{label:>{margin - 2}} {marks.axis}{''.join(cells)}".rstrip()
        for label, cells in zip(labels, grid, strict=True)
    ]
    shown.append(f"{'0':>{margin - 2}} {marks.corner}{marks.floor * columns}")
    end = metric_text.shown(suggestion.kind, most_metric)
    shown.append(f"{'':{margin}}0{suggestion.kind:^{max(1, columns - len(end) - 1)}}{end}")
    return [*shown, "", *_legend(suggestion, width, marks)]


def _grid(
    suggestion: Suggestion, columns: int, height: int, most_metric: float, most_mib: float, marks: Marks
) -> list[list[str]]:
    grid = [[" "] * columns for _ in range(height)]

    def column(metric: float) -> int:
        return min(columns - 1, int(metric / most_metric * columns))

    def row(mib: float) -> int:
        return height - 1 - min(height - 1, int(mib / most_mib * height))

    for place in range(columns):
        grid[row(suggestion.limit_mib)][place] = marks.limit
    if suggestion.threshold is not None and suggestion.threshold <= most_metric:
        for cells in grid:
            cells[column(suggestion.threshold)] = marks.threshold
    if suggestion.line is not None:
        for place in range(columns):
            mib = suggestion.line.at((place + 0.5) / columns * most_metric)
            if 0 <= mib <= most_mib:
                grid[row(mib)][place] = marks.line
    count: dict[tuple[int, int], int] = {}
    for point in suggestion.drawn:
        where = row(point.peak_mib), column(point.metric)
        count[where] = count.get(where, 0) + point.ended_well
        number = count[where]
        mark = marks.jobs[(number >= _FEW) + (number >= _MANY)]
        grid[where[0]][where[1]] = mark if point.ended_well else marks.failed
    for point in suggestion.drawn:
        if point.ran_out:
            grid[row(point.peak_mib)][column(point.metric)] = marks.ran_out
    return grid


def _legend(suggestion: Suggestion, width: int, marks: Marks) -> list[str]:
    one, few, many = marks.jobs
    words = [f"{one} {few} {many} jobs"]
    if any(not point.ended_well and not point.ran_out for point in suggestion.drawn):
        words.append(f"{marks.failed} failed")
    if any(point.ran_out for point in suggestion.drawn):
        words.append(f"{marks.ran_out} ran out of GPU memory")
    if suggestion.line is not None:
        words.append(f"{marks.line} {suggestion.line.share:.0%} are below")
    words.append(f"{marks.limit} {format_mib(int(suggestion.limit_mib))}")
    if suggestion.threshold is not None:
        words.append(f"{marks.threshold} {metric_text.shown(suggestion.kind, suggestion.threshold)}")
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(_BETWEEN) + len(word) <= width:
            lines[-1] += _BETWEEN + word
        else:
            lines.append(word)
    return lines
