"""A table with its bars, as Markdown, and the figures that go into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import quantiles


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    bars: Sequence[str] = (),
    texts: int = 1,
) -> str:
    """Rows below a title, and lines about them. The first columns (``texts`` of them) hold words."""
    aligned = "---|" * texts + "--:|" * (len(columns) - texts)
    lines = [title, "", _row(columns), f"|{aligned}", *map(_row, rows)]
    return "\n".join([*lines, "", *bars] if bars else lines)


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |".replace("|  ", "| ")


def figures(values: Iterable[float], digits: int = 1) -> list[str]:
    """So many digits after the point of each."""
    return [f"{value:.{digits}f}" for value in values]


def bar(words: str, met: bool, value: str) -> str:
    """A promise, whether it was kept, and by what figure."""
    return f"Bar: {words}: {'met' if met else 'NOT met'} ({value})."


def p99(values: list[float]) -> float:
    """The 99th percentile; of fewer than 100 values the largest."""
    return max(values) if len(values) < 100 else quantiles(values, n=100, method="inclusive")[-1]
