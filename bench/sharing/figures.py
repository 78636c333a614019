"""From runs to figures: percentiles of the latency job, throughput of the batch jobs, ratios. Pure.

Each figure is the median of the repetitions' figures. The figures of the repetitions are kept: how far they
lie apart tells what a difference between two scenarios is worth.
"""

from __future__ import annotations

from statistics import median, quantiles

from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sharing.model import Calibration, LatencyRun, Parameters, Run, Scenario


@record
class Latency:
    """Responses in milliseconds. ``max_ms`` is the longest of all, the others are medians of repetitions."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    served: float  # the share of requests that it came to in time, of those that were due
    samples: int
    p99_of_each_ms: tuple[float, ...]  # repetition
    of_alone: float | None = None  # P99 over that of the job alone
    of_unmanaged: float | None = None  # P99 over that without the lock


@record
class Batch:
    """Kernels a second of all batch jobs together."""

    per_s: float
    per_s_of_each: tuple[float, ...]  # repetition
    of_alone: float | None = None  # a share of what they do alone
    of_left: float | None = None  # a share of what the latency job leaves them; None where that is nothing


@record
class Row:
    """What became of a scenario, or of two with the same name: one job alone and then the other."""

    name: str
    runs: int  # that have figures
    latency: Latency | None
    batch: Batch | None
    errors: tuple[str, ...]  # of its other runs
    troubles: tuple[str, ...]  # why the lock was not, or not wholly, applied
    turns: int | None  # that all its jobs had, in all repetitions; None: no lock


def rows(
    parameters: Parameters, found: Calibration, scenarios: Sequence[Scenario], runs: Sequence[Run]
) -> tuple[Row, ...]:
    """One row a name, in the order of the scenarios; with ratios, where what they are of was measured."""
    made = {name: _row(name, runs) for name in dict.fromkeys(scenario.name for scenario in scenarios)}
    alone, unmanaged = made.get(ALONE), made.get(UNMANAGED)
    return tuple(_with_ratios(row, alone, unmanaged, parameters, found) for row in made.values())


def _row(name: str, runs: Sequence[Run]) -> Row:
    mine = [run for run in runs if run.scenario == name]
    good = [run for run in mine if not run.error]
    latency = [run.latency for run in good if run.latency is not None]
    batch = tuple(sum(job.done / job.seconds for job in run.batch) for run in good if run.batch)
    told = [job.sharing for run in good for job in (run.latency, *run.batch) if job is not None]
    sharing = [each for each in told if each is not None]
    return Row(
        name=name, runs=len(good), latency=_latency(latency) if latency else None,
        batch=Batch(median(batch), batch) if batch else None,
        errors=tuple(dict.fromkeys(run.error for run in mine if run.error)),
        troubles=tuple(dict.fromkeys(word for each in sharing for word in each.troubles)),
        turns=sum(each.turns for each in sharing) if sharing else None,
    )  # fmt: skip


def _latency(runs: Sequence[LatencyRun]) -> Latency:
    cuts = [_percentiles(run.responses_ms) for run in runs]
    samples = sum(len(run.responses_ms) for run in runs)
    return Latency(
        p50_ms=median(cut[49] for cut in cuts), p90_ms=median(cut[89] for cut in cuts),
        p99_ms=median(cut[98] for cut in cuts), max_ms=max(max(run.responses_ms) for run in runs),
        served=samples / sum(run.due for run in runs), samples=samples,
        p99_of_each_ms=tuple(cut[98] for cut in cuts),
    )  # fmt: skip


def _percentiles(values: tuple[float, ...]) -> list[float]:
    """From 1 to 99, on the line between two neighbours. ``values``: at least one."""
    return quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99


def _with_ratios(
    row: Row, alone: Row | None, unmanaged: Row | None, parameters: Parameters, found: Calibration
) -> Row:
    latency, batch = row.latency, row.batch
    if latency is not None:
        of = [other.latency.p99_ms if other and other.latency else None for other in (alone, unmanaged)]
        ratios = [None if not base else latency.p99_ms / base for base in of]
        latency = replace(latency, of_alone=ratios[0], of_unmanaged=ratios[1])
    if batch is not None and alone is not None and alone.batch is not None and alone.batch.per_s > 0:
        of_alone = batch.per_s / alone.batch.per_s
        left = 1.0
        if latency is not None and row.name not in (ALONE, ALONE_LOCKED):
            left = 1 - latency.served * found.request_ms / parameters.period_ms
        batch = replace(batch, of_alone=of_alone, of_left=of_alone / left if left > 0 else None)
    return replace(row, latency=latency, batch=batch)
