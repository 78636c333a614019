"""A table with its bars, as Markdown, and the figures that go into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, quantiles


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


def launches(title: str, samples: dict[str, list[float]], peer: str, bars: Sequence[str] = ()) -> str:
    """How long each way to launch a command takes (samples in seconds), and its ratio to the peer's."""
    base = median(samples[peer])

    def row(name: str, values: list[float]) -> list[str]:
        deciles = quantiles(values, n=10)
        ms = figures(value * 1e3 for value in (median(values), deciles[0], deciles[-1]))
        return [name, *ms, f"{median(values) / base:.2f}"]

    rows = [row(name, values) for name, values in samples.items()]
    return table(title, ["", "median ms", "p10", "p90", "ratio"], rows, bars)
