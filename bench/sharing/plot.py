"""The experiment as a picture: how responses are distributed, and what the batch jobs do."""

from __future__ import annotations

from bench.sharing.model import ALONE_LOCKED
from slicer.cli import drawing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sharing.figures import Row
    from bench.sharing.model import Run

_SIZE_INCHES = (11, 5)
_COLOURS = ("#999999", "#c03028", "#203040", "#2a7f62", "#4878a8", "#c08020", "#8a5aa8", "#5a9bd4", "#7a6a50")


def picture(runs: Sequence[Run], rows: Sequence[Row], title: str) -> bytes:
    """Two plots beside each other, as SVG. Raises NoLibrary."""
    figure = drawing.load()(figsize=_SIZE_INCHES, layout="constrained")
    responses, work = figure.subplots(1, 2, width_ratios=(3, 2))
    shown = [row for row in rows if row.name != ALONE_LOCKED]
    colours = {row.name: _COLOURS[number % len(_COLOURS)] for number, row in enumerate(shown)}
    for name, colour in colours.items():
        all_of = [run.latency for run in runs if run.scenario == name and run.latency is not None]
        times = sorted(ms for latency in all_of for ms in latency.responses_ms)
        if times:
            shares = [100 * (number + 1) / len(times) for number in range(len(times))]
            responses.step(times, shares, where="post", color=colour, label=name)
    responses.set(xscale="log", ylim=(0, 101), xlabel="response (ms)", ylabel="% of requests")
    if responses.has_data():
        responses.legend(fontsize="small", loc="lower right")
    known = [(row.name, row.batch) for row in shown if row.batch is not None][::-1]
    for number, (name, batch) in enumerate(known):
        work.barh(number, batch.per_s, color=colours[name])
        # From the worst repetition to the best.
        work.plot([min(batch.per_s_of_each), max(batch.per_s_of_each)], [number, number], color="black", lw=1)
    work.set_yticks(range(len(known)), [name for name, _ in known])
    work.set_xlabel("kernels a second of the batch jobs")
    # A name may hold what matplotlib takes for a formula.
    figure.suptitle(title, fontsize="small", parse_math=False)
    return drawing.saved(figure, "svg")
