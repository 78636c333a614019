"""The experiment as a picture: how responses are distributed, and what the batch jobs do."""

from __future__ import annotations

from bench.sharing.measures import cumulative
from bench.sharing.model import ALONE_LOCKED
from slicer.cli import drawing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from bench.sharing.measures import Row
    from bench.sharing.model import Run

_SIZE_INCHES = (11, 5)
_COLOURS = ("#999999", "#c03028", "#203040", "#2a7f62", "#4878a8", "#c08020", "#8a5aa8", "#5a9bd4", "#7a6a50")


def picture(runs: Sequence[Run], rows: Sequence[Row], title: str, path: str, warning: str) -> bytes:
    """Two plots beside each other, as the end of ``path`` says. Raises NoLibrary."""
    figure = drawing.load()(figsize=_SIZE_INCHES, layout="constrained")
    shown = [row for row in rows if row.name != ALONE_LOCKED]
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    colours = {row.name: _COLOURS[number % len(_COLOURS)] for number, row in enumerate(shown)}
    _responses(left, runs, colours)
    _work(right, shown, colours)
    # A name may hold what matplotlib takes for a formula.
    figure.suptitle(f"{title}\n{warning}" if warning else title, fontsize="small", parse_math=False)
    return drawing.saved(figure, "png" if path.lower().endswith(".png") else "svg")


def _responses(axes: Axes, runs: Sequence[Run], colours: dict[str, str]) -> None:
    """All responses of all repetitions."""
    for name, colour in colours.items():
        all_of = [run.latency for run in runs if run.scenario == name and run.latency is not None]
        points = cumulative([ms for latency in all_of for ms in latency.responses_ms])
        if points:
            times, shares = zip(*points, strict=True)
            axes.step(times, [share * 100 for share in shares], where="post", color=colour, label=name)
    axes.set_xscale("log")
    for formatted in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        formatted(lambda value, _: f"{value:g}")
    axes.tick_params(axis="x", which="minor", labelsize="x-small")
    axes.set_ylim(0, 101)
    axes.axhline(99, color="#dddddd", lw=0.8, zorder=0)
    axes.set_xlabel("response of the latency job (ms)")
    axes.set_ylabel("% of requests")
    axes.grid(alpha=0.25)
    if axes.has_data():
        axes.legend(fontsize="small", loc="lower right")


def _work(axes: Axes, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """The batch jobs' kernels a second; a line from the worst repetition to the best."""
    known = [row for row in rows if row.batch is not None][::-1]
    for number, row in enumerate(known):
        if row.batch is not None:
            low, high = min(row.batch.per_s_of_each), max(row.batch.per_s_of_each)
            axes.barh(number, row.batch.per_s, color=colours[row.name])
            axes.plot([low, high], [number, number], color="black", lw=1)
    axes.set_yticks(range(len(known)), [row.name for row in known])
    axes.set_xlabel("kernels a second of the batch jobs")
    axes.grid(axis="x", alpha=0.25)
