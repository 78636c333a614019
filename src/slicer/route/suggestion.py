"""The threshold that past jobs suggest: up to which metric they fit into a part of a GPU's memory. Pure.

Two things decide. A straight line that 95 of 100 jobs do not exceed reaches the memory that a job may use at
some metric. And if jobs ran out of GPU memory, the threshold is lowered.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal

from slicer.config import metric_units
from slicer.config.routes import Destination, Route
from slicer.quantity import format_mib
from slicer.record import record, replace
from slicer.route import route_config
from slicer.route.budget import short_size
from slicer.route.past import ENOUGH_JOBS, PastJob
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import ProbeKind

# flat: the memory does not depend on the metric, and all jobs fit. The verdicts after it propose nothing.
Verdict = Literal["threshold", "flat", "too-few", "constant", "unrelated", "nothing-fits"]
DEFAULT_MARGIN_PERCENT = 10
_ENOUGH_VALUES = 3  # different metrics among the successful jobs
_MOST_JOBS = 4000  # the newest ones, because programs change
_SHARE = 0.95  # of the jobs are at or below the line
_LEAST_CORRELATION = 0.3  # of the ranks; below it the metric says nothing about the memory
_LEAST_RISE = 0.05  # of the peaks' median, over all metrics seen; below it the line is flat
_FURTHEST = 2.0  # times the largest metric of a successful job
_MIB, _GIB = 2**20, 2**30
_OOM_WEIGHT = 20  # one job that runs out of memory weighs as much as this many successful ones


@record
class Point:
    """The last job on a GPU for one input."""

    metric: float
    peak_mib: float  # on the GPU with the largest peak; 0: unknown
    ended_well: bool
    ran_out: bool  # of GPU memory; then ``ended_well`` is false


@record
class MemoryLine:
    """The memory that most jobs do not exceed, in MiB: ``base_mib + slope * metric``."""

    base_mib: float
    slope: float  # MiB for one unit of the metric, not negative
    share: float  # of the jobs, at or below the line
    jobs: int  # the successful jobs, on which the line is based
    above: int  # jobs above the line
    highest_above_mib: float  # the largest distance above it

    def at(self, metric: float) -> float:
        return self.base_mib + self.slope * metric

    def reaches(self, mib: float) -> float:
        """The metric at which the line reaches ``mib``. Its slope must not be 0."""
        return (mib - self.base_mib) / self.slope


@record
class Suggestion:
    """What past jobs suggest for one destination's threshold. ``probe`` is the probe's number (from 0)."""

    destination: str
    kind: ProbeKind
    probe: int
    verdict: Verdict
    reason: str  # one line for people
    threshold: float | None  # in the probe's unit, rounded down; None: no proposal
    config: tuple[str, ...]  # the lines for the configuration file
    current: float | None  # the current bound; None: there is none
    vram_mib: int  # that one job may use
    margin_percent: int  # of this to keep free
    points: tuple[Point, ...]  # jobs that have ended, the newest _MOST_JOBS
    line: MemoryLine | None
    correlation: float | None  # of the ranks of metrics and peaks
    notes: tuple[str, ...]  # more to know, one line each

    @property
    def limit_mib(self) -> float:
        """The memory that a job may use at the threshold."""
        return self.vram_mib * (100 - self.margin_percent) / 100

    @property
    def drawn(self) -> tuple[Point, ...]:
        """The jobs in a plot. A job that ran out of memory unmeasured needed at least the limit."""
        return tuple(
            point if point.peak_mib > 0 else replace(point, peak_mib=self.limit_mib)
            for point in self.points
            if point.peak_mib > 0 or point.ran_out
        )


def suggest(
    route: Route, destination: Destination, past: Sequence[PastJob], *, probe: int, vram_mib: int,
    margin_percent: int = DEFAULT_MARGIN_PERCENT,
) -> Suggestion:  # fmt: skip
    """The suggestion for a GPU destination. ``past`` has all decisions of the route, the oldest first."""
    points = points_of(past, destination.name, probe)
    kind = route.probes[probe].kind
    limit = vram_mib * (100 - margin_percent) / 100
    verdict, reason, line = _judged(points, kind, limit)
    threshold = None
    config: tuple[str, ...] = ()
    notes: list[str] = []
    if verdict == "threshold" and line is not None:
        found, reason, notes = _threshold(points, line, kind, limit)
        if found is None:
            verdict = "nothing-fits"
        else:
            config = route_config.bound_lines(route, destination, probe, found)
            threshold = route_config.rounded(kind, found)[1]
    ran_out = [point.metric for point in points if point.ran_out]
    if line is not None and ran_out:
        smallest = metric_units.text(kind, min(ran_out))
        notes.append(f"{counted(len(ran_out), 'job')} ran out of GPU memory, the smallest at {smallest}")
    whole = known(points)
    return Suggestion(
        destination.name, kind, probe, verdict, reason, threshold, config, destination.up_to[probe],
        vram_mib, margin_percent, tuple(points), line,
        rank_correlation(whole) if len(whole) > 1 else None, tuple(notes),
    )  # fmt: skip


def bounding_probe(destination: Destination) -> int:
    """The number of the first probe that bounds the destination, or 0."""
    return next((number for number, bound in enumerate(destination.up_to) if bound is not None), 0)


def points_of(past: Sequence[PastJob], destination: str, probe: int) -> list[Point]:
    """The last job for each input that a GPU destination ran and that has ended, the newest _MOST_JOBS.

    Otherwise an input that is tried again and again would outweigh others.
    """
    points: dict[object, Point] = {}
    for each in past:
        row, job = each.row, each.job
        if job is None or row.mode != "gpu" or row.destination != destination or len(row.metrics) <= probe:
            continue
        if math.isfinite(row.metrics[probe]):
            key = each.input, row.metrics  # the file may have been replaced
            points.pop(key, None)
            peak = max(job.vram_peak_mib, default=0)
            points[key] = Point(row.metrics[probe], peak, each.ended == "ok", each.is_out)
    return list(points.values())[-_MOST_JOBS:]


def known(points: Sequence[Point]) -> list[Point]:
    """The jobs on which a line is based: they succeeded, and their memory was measured."""
    return [point for point in points if point.ended_well and point.peak_mib > 0]


def span(kind: ProbeKind, low: float, high: float) -> str:
    """Two metrics as text, such as ``1m to 1h``; one if both are the same."""
    return " to ".join(dict.fromkeys((metric_units.text(kind, low), metric_units.text(kind, high))))


def _judged(points: Sequence[Point], kind: ProbeKind, limit: float) -> tuple[Verdict, str, MemoryLine | None]:
    """Whether a line can be drawn, why not, and the line."""
    whole = known(points)
    values = {point.metric for point in whole}
    if len(whole) < ENOUGH_JOBS:
        jobs = counted(len(whole), "GPU job")
        return "too-few", f"{jobs} succeeded with known GPU memory; {ENOUGH_JOBS} are needed", None
    low, high = min(values), max(values)
    if len(values) < _ENOUGH_VALUES:
        seen = span(kind, low, high)
        return "constant", f"all {len(whole)} jobs measured {seen}: a line needs different inputs", None
    line = upper_line(whole)
    typical = statistics.median(point.peak_mib for point in whole)
    if line.slope * (high - low) < _LEAST_RISE * typical:
        most = max(point.peak_mib for point in whole)
        seen = f"typically {format_mib(round(typical))}, at most {format_mib(round(most))}"
        flat = f"the peaks do not grow with {kind}: {seen}"
        if min(point.peak_mib for point in whole) > limit:
            return "nothing-fits", f"{flat}, but {format_mib(int(limit))} is less", line
        if line.at(high) > limit:
            return "unrelated", f"{kind} does not show which jobs fit: {flat}", line
        return "flat", f"{flat}. Up to {metric_units.text(kind, high)}, memory sets no threshold", line
    correlation = rank_correlation(whole)
    if correlation < _LEAST_CORRELATION:
        return "unrelated", f"{kind} does not predict the memory (rank correlation {correlation:.2f})", line
    return "threshold", "", line


def upper_line(whole: Sequence[Point]) -> MemoryLine:
    """The line for :func:`known` points. Some of them must have different metrics.

    Its slope is Theil's, on which a few odd jobs have no influence: the median slope between each job of the
    lower half of metrics and one of the upper half. Then the line is raised until enough jobs are at or below
    it. It never falls: a threshold has no use for larger inputs that need less memory.
    """
    ordered = sorted(whole, key=lambda point: point.metric)
    half = len(ordered) // 2
    slopes = [
        (high.peak_mib - low.peak_mib) / (high.metric - low.metric)
        for low, high in zip(ordered[:half], ordered[-half:], strict=True)
        if high.metric > low.metric
    ]
    slope = max(0.0, statistics.median(slopes)) if slopes else 0.0
    rests = sorted(point.peak_mib - slope * point.metric for point in ordered)
    base = rests[math.ceil(_SHARE * len(rests)) - 1]
    above = [rest - base for rest in rests if rest > base + 1]
    return MemoryLine(base, slope, _SHARE, len(rests), len(above), max(above, default=0.0))


def rank_correlation(points: Sequence[Point]) -> float:
    """Spearman's: 1 if a larger metric always goes with a larger peak, 0 if they are unrelated."""
    ours = _ranks([point.metric for point in points])
    peaks = _ranks([point.peak_mib for point in points])
    if len(set(ours)) < 2 or len(set(peaks)) < 2:
        return 0.0
    return statistics.correlation(ours, peaks)


def _ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value among all; equal values share the mean of their ranks."""
    order = sorted(values)
    return [bisect_left(order, value) + bisect_right(order, value) for value in values]


def _threshold(
    points: Sequence[Point], line: MemoryLine, kind: ProbeKind, limit: float
) -> tuple[float | None, str, list[str]]:
    """The largest metric that fits, the reason for it, and further notes."""
    whole = known(points)
    low, high = min(point.metric for point in whole), max(point.metric for point in whole)
    notes = []
    found = line.reaches(limit)
    reason = f"up to there {line.share:.0%} of jobs stay below {format_mib(int(limit))}"
    if found <= 0 or found < low:
        needed = format_mib(round(line.at(low)))
        return None, f"even the smallest jobs, of {metric_units.text(kind, low)}, need {needed}", []
    if found > high * _FURTHEST:
        notes.append(
            f"the line allows {metric_units.text(kind, found)}, but no input above"
            f" {metric_units.text(kind, high)} was seen: raise the threshold in steps"
        )
        found = high * _FURTHEST
        reason = f"there {line.share:.0%} of jobs should need at most {format_mib(round(line.at(found)))}"
    lowered = without_ooms(points, found)
    if not lowered:  # no metric is below 0
        return None, "jobs of any size ran out of GPU memory", notes
    if lowered < found:
        notes.append(f"between this and {metric_units.text(kind, found)} too many jobs ran out of GPU memory")
        reason = "above this too many jobs ran out of GPU memory"
    return lowered, reason, notes


def without_ooms(points: Sequence[Point], most: float) -> float | None:
    """``most``, or the smaller metric up to which the GPU serves best; None if there is none.

    The GPU serves best where most jobs succeed, less _OOM_WEIGHT for each job that runs out of memory.
    """
    ordered = sorted((point for point in points if point.metric <= most), key=lambda point: point.metric)
    best: float | None = None
    gain = most_gain = 0
    for number, point in enumerate(ordered, start=1):
        gain += point.ended_well - _OOM_WEIGHT * point.ran_out
        is_last_of_its_metric = number == len(ordered) or ordered[number].metric > point.metric
        if is_last_of_its_metric and gain >= most_gain:
            best, most_gain = point.metric, gain
    return most if not ordered or best == ordered[-1].metric else best


def memory_notes(route: Route, past: Sequence[PastJob]) -> list[str]:
    """The ``memory`` that past jobs of each destination suggest: the largest peak, and a fifth more."""
    notes = []
    for each in route.destinations:
        here = [row.job for row in past if row.job and row.row.destination == each.name and row.ended == "ok"]
        peaks = [job.memory_peak_bytes for job in here if job.memory_peak_bytes]
        if len(peaks) >= ENOUGH_JOBS:
            most = max(peaks)
            tenths, mib = -(-most * 12 // _GIB), -(-most * 6 // (5 * _MIB))  # rounded up
            proposed = short_size(tenths * _GIB // 10 if most >= _GIB else mib * _MIB)
            told = f"the largest of {counted(len(peaks), 'successful job')} used {short_size(most)} of memory"
            notes.append(f'{each.name}: {told}; with a fifth more: memory = "{proposed}"')
    return notes
