"""How much GPU memory jobs take at a metric: a line that most of them stay below. Pure.

The line is a quantile regression, not the mean: half of all jobs would be above that. Before it is drawn, a
few jobs far above all others are left out, and said. In a small sample one such job would turn the line.

A job that did not end well was seen at less than it needs. Its peak is a lower bound. So it counts only if
the line would be below it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from slicer.record import record

ENOUGH_JOBS = 10  # that ended well
ENOUGH_VALUES = 3  # different metrics among them
MOST_JOBS = 4000  # the newest count: programs change
LEAST_CORRELATION = 0.3  # of the ranks; below it the metric does not tell the memory
LEAST_RISE = 0.05  # of the peaks' median, over all metrics seen; below it the line is flat
OOM_SHARE = 0.05  # of the jobs up to a threshold may run out of memory
OOM_TAIL = 0.25  # of the largest jobs
OOM_FEWEST = 2  # one may have had bad luck: other programs use the GPU, too
_MANY_JOBS = 40
_SHARE, _SHARE_OF_MANY = 0.9, 0.95
_STEEPEST = 50.0  # in heights of all peaks over the width of all metrics
_OUTLIERS = 0.1  # of the jobs at most are left out; more are no exception
_FAR_SPREADS = 8.0  # of all jobs around their middle line
_FAR_SHARE = 0.25  # of the peaks' median: jobs that hardly differ have no outlier within this
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH_STEPS = 60
_FIT_ROUNDS = 10


@record
class Point:
    """One job on a GPU."""

    metric: float
    peak_mib: float  # on the GPU where it was largest; 0: not known
    ended_well: bool
    ran_out: bool  # of GPU memory; then it did not end well


@record
class Line:
    """The memory that most jobs stay at or below, in MiB: ``base_mib + slope * metric``."""

    base_mib: float
    slope: float  # MiB for one unit of the metric
    share: float  # of the jobs, at or below the line
    jobs: int  # that ended well
    lower_bounds: int  # jobs that did not, and were above the line
    outliers: int  # jobs so far above all others that the line leaves them out
    above: int  # jobs above the line, with the outliers
    highest_above_mib: float  # the most that one was

    def at(self, metric: float) -> float:
        return self.base_mib + self.slope * metric

    def reaches(self, mib: float) -> float:
        """The metric at which the line reaches ``mib``. Its slope must not be 0."""
        return (mib - self.base_mib) / self.slope


def known(points: Sequence[Point]) -> list[Point]:
    """The jobs that a fit rests on: they ended well and were seen to use memory."""
    return [point for point in points if point.ended_well and point.peak_mib > 0]


def upper_line(points: Sequence[Point]) -> Line:
    """The line of :func:`known` points, of which there must be some with different metrics.

    It does not fall: a larger input that takes less memory is not what a threshold is about.
    """
    whole = known(points)
    whole, outliers = _without_outliers(whole)
    share = _SHARE_OF_MANY if len(whole) >= _MANY_JOBS else _SHARE
    bounds = [point for point in points if not point.ended_well and point.peak_mib > 0]
    counted: list[Point] = []
    for _ in range(_FIT_ROUNDS):
        base, slope = _quantile_line(whole + counted, share)
        over = [point for point in bounds if point.peak_mib > base + slope * point.metric]
        bounds = [point for point in bounds if point.peak_mib <= base + slope * point.metric]
        if not over:
            break
        counted += over
    excess = [point.peak_mib - base - slope * point.metric for point in whole + counted + outliers]
    above = [mib for mib in excess if mib > 1]
    jobs = len(whole) + len(outliers)
    return Line(
        base, slope, share, jobs, len(counted), len(outliers), len(above), max(above, default=0.0)
    )


def _without_outliers(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """The jobs, and apart from them the few that are far above the line in the middle of all.

    That line is Theil's: the median slope between each job of the lower half of metrics and one of the upper.
    """
    ordered = sorted(points, key=lambda point: point.metric)
    half = len(ordered) // 2
    slopes = [
        (high.peak_mib - low.peak_mib) / (high.metric - low.metric)
        for low, high in zip(ordered[:half], ordered[-half:], strict=True)
        if high.metric > low.metric
    ]
    slope = statistics.median(slopes) if slopes else 0.0
    rests = [point.peak_mib - slope * point.metric for point in ordered]
    middle = statistics.median(rests)
    spread = 1.4826 * statistics.median(abs(rest - middle) for rest in rests)  # as a standard deviation
    far = max(_FAR_SPREADS * spread, _FAR_SHARE * statistics.median(point.peak_mib for point in ordered))
    are_far = [rest > middle + far for rest in rests]
    if sum(are_far) > max(1, _OUTLIERS * len(ordered)):
        return ordered, []
    found = [point for point, is_far in zip(ordered, are_far, strict=True) if is_far]
    return [point for point, is_far in zip(ordered, are_far, strict=True) if not is_far], found


def _quantile_line(points: Sequence[Point], share: float) -> tuple[float, float]:
    """Base and slope with the least loss.

    For a given slope the best base is a quantile. The loss with that is convex in the slope.
    """
    first = min(point.metric for point in points)
    width = max(point.metric for point in points) - first
    height = max(point.peak_mib for point in points) - min(point.peak_mib for point in points)
    xs = [(point.metric - first) / width for point in points]
    ys = [point.peak_mib for point in points]
    place = max(0, math.ceil(share * len(ys)) - 1)

    def base_at(slope: float) -> float:
        return sorted(y - slope * x for x, y in zip(xs, ys, strict=True))[place]

    def loss(slope: float) -> float:
        base = base_at(slope)
        over = [y - slope * x - base for x, y in zip(xs, ys, strict=True)]
        return sum(share * each if each > 0 else (share - 1) * each for each in over)

    slope = _least(loss, 0.0, _STEEPEST * height)
    return base_at(slope) - slope * first / width, slope / width


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex function is least; ``low`` itself if nowhere is better."""
    start, at_start = low, function(low)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_SEARCH_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return left if at_left < at_start else start


def rank_correlation(points: Sequence[Point]) -> float:
    """Spearman's: 1 if a larger metric always goes with a larger peak, 0 if nothing can be told from it."""
    metrics = _ranks([point.metric for point in points])
    peaks = _ranks([point.peak_mib for point in points])
    if len(set(metrics)) < 2 or len(set(peaks)) < 2:
        return 0.0
    return statistics.correlation(metrics, peaks)


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each among all; equal ones share the mean of their places."""
    order = sorted(values)
    first: dict[float, int] = {}
    count: dict[float, int] = {}
    for place, value in enumerate(order):
        first.setdefault(value, place)
        count[value] = count.get(value, 0) + 1
    return [first[value] + (count[value] - 1) / 2 for value in values]


def without_ooms(points: Sequence[Point], most: float) -> float | None:
    """``most``, or the largest smaller metric up to which few enough jobs ran out of memory; None: no such.

    Few enough: one, or 5 % of all that ended, and 25 % of the largest ones, however many those are.
    """
    ordered = sorted((point for point in points if point.metric <= most), key=lambda point: point.metric)
    kept = _without_tail(ordered)
    best: float | None = None
    ran_out = 0
    for number, point in enumerate(kept, start=1):
        ran_out += point.ran_out
        is_last_of_its_metric = number == len(kept) or kept[number].metric > point.metric
        if is_last_of_its_metric and (ran_out < OOM_FEWEST or ran_out <= OOM_SHARE * number):
            best = point.metric
    return most if not ordered or best == ordered[-1].metric else best


def _without_tail(ordered: Sequence[Point]) -> Sequence[Point]:
    """The jobs, by their metric, without the largest ones if too many of those ran out of memory.

    These begin where most more of them than OOM_TAIL did.
    """
    end = len(ordered)
    ran_out = 0
    best = 0.0
    for number in range(len(ordered) - 1, -1, -1):
        ran_out += ordered[number].ran_out
        excess = ran_out - OOM_TAIL * (len(ordered) - number)
        is_first_of_its_metric = number == 0 or ordered[number - 1].metric < ordered[number].metric
        if is_first_of_its_metric and ran_out >= OOM_FEWEST and excess > best:
            end, best = number, excess
    return ordered[:end]
