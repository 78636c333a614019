"""The threshold that past jobs speak for: up to which metric they fit into a part of a GPU's memory. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from slicer.quantity import format_mib
from slicer.record import record, replace
from slicer.route import fit, metric_text, route_config, stats
from slicer.route.fit import Line, Point
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from slicer.config.routes import Destination, ProbeKind, Route
    from slicer.outcome.decisions import PastDecision

    # flat: the memory does not depend on the metric, and all jobs fit. The others propose nothing.
    Verdict = Literal["threshold", "flat", "too-few", "constant", "unrelated", "nothing-fits"]

DEFAULT_MARGIN_PERCENT = 10
_FURTHEST = 2.0  # times the largest metric that a job ended well with
_BETTER = 0.2  # so much more correlation, and another metric is worth a word


@record
class Suggestion:
    """What past jobs say of one destination's threshold, for the route's probe number ``probe`` (from 0)."""

    destination: str
    kind: ProbeKind
    probe: int
    verdict: Verdict
    reason: str  # why, in one line, for people
    threshold: float | None  # in the probe's unit, rounded down; None: nothing is proposed
    config: tuple[str, ...]  # the lines of the configuration file that say so
    current: float | None  # the bound that holds now; None: there is none
    vram_mib: int  # that one job may use
    margin_percent: int  # of it stay free
    points: tuple[Point, ...]  # the jobs that ended, the newest MOST_JOBS
    line: Line | None
    correlation: float | None  # of the ranks of metrics and peaks
    notes: tuple[str, ...]  # what else to know, a line each

    @property
    def limit_mib(self) -> float:
        """What a job may use at the threshold."""
        return self.vram_mib * (100 - self.margin_percent) / 100

    @property
    def seen(self) -> tuple[Point, ...]:
        """The jobs whose memory is known."""
        return tuple(point for point in self.points if point.peak_mib > 0)

    @property
    def drawn(self) -> tuple[Point, ...]:
        """The jobs of a plot. One that ran out of memory before anybody looked needed the limit at least."""
        return tuple(
            point if point.peak_mib > 0 else replace(point, peak_mib=self.limit_mib)
            for point in self.points
            if point.peak_mib > 0 or point.ran_out
        )


def suggest(
    route: Route, destination: Destination, past: Sequence[PastDecision], *, probe: int, vram_mib: int,
    margin_percent: int = DEFAULT_MARGIN_PERCENT,
) -> Suggestion:  # fmt: skip
    """What ``past`` (all decisions of the route, the oldest first) says of a GPU destination's threshold."""
    points = points_of(past, destination.name, probe)
    kind = route.probes[probe].kind
    limit = vram_mib * (100 - margin_percent) / 100
    whole = fit.known(points)
    correlation = fit.rank_correlation(whole) if len(whole) > 1 else None
    verdict, reason, line = _judged(points, kind, limit)
    threshold = None
    config: tuple[str, ...] = ()
    notes: list[str] = []
    if verdict == "threshold" and line is not None:
        threshold, reason, notes = _threshold(points, line, kind, limit)
        if threshold is None:
            verdict = "nothing-fits"
        else:
            config = route_config.bound_lines(route, destination, probe, threshold)
            threshold = metric_text.threshold(kind, threshold)[1]
    if line is not None:
        notes += _notes(points, line, kind)
    notes += _better(route, destination, past, probe, correlation)
    return Suggestion(
        destination.name, kind, probe, verdict, reason, threshold, config, destination.up_to[probe],
        vram_mib, margin_percent, tuple(points), line, correlation, tuple(notes),
    )  # fmt: skip


def bounding_probe(destination: Destination) -> int:
    """The number of the first probe that bounds the destination, else of the first."""
    return next((number for number, bound in enumerate(destination.up_to) if bound is not None), 0)


def points_of(past: Sequence[PastDecision], destination: str, probe: int) -> list[Point]:
    """The jobs that a GPU destination ran and that ended: of each input the last, the newest MOST_JOBS.

    Else one input that is tried again and again would weigh as much as many.
    """
    ran_out = stats.out_of_memory(past)
    points: dict[stats.InputKey, Point] = {}
    for each in past:
        row, job = each.row, each.job
        if job is None or row.mode != "gpu" or row.destination != destination or len(row.metrics) <= probe:
            continue
        if not math.isfinite(row.metrics[probe]):
            continue
        is_out = row.job in ran_out
        is_well = job.reason == "exited" and job.exit_code == 0 and not is_out
        key = (*stats.input_key(row), row.metrics)  # a file of that name may have been replaced
        points.pop(key, None)
        points[key] = Point(row.metrics[probe], max(job.vram_peak_mib, default=0), is_well, is_out)
    return list(points.values())[-fit.MOST_JOBS :]


def _judged(points: Sequence[Point], kind: ProbeKind, limit: float) -> tuple[Verdict, str, Line | None]:
    """Whether a line can be drawn, why not, and the line."""
    whole = fit.known(points)
    values = {point.metric for point in whole}
    if len(whole) < fit.ENOUGH_JOBS:
        jobs = counted(len(whole), "GPU job")
        return "too-few", f"{jobs} ended well with known GPU memory; {fit.ENOUGH_JOBS} are needed", None
    low, high = min(values), max(values)
    if len(values) < fit.ENOUGH_VALUES:
        seen = metric_text.span(kind, low, high)
        return "constant", f"all {len(whole)} jobs measured {seen}: a line needs different inputs", None
    line = fit.upper_line(points)
    typical = statistics.median(point.peak_mib for point in whole)
    if line.slope * (high - low) < fit.LEAST_RISE * typical:
        most = max(point.peak_mib for point in whole)
        seen = f"{format_mib(round(typical))} mostly, {format_mib(round(most))} at most"
        flat = f"the peaks do not grow with {kind}: {seen}"
        if min(point.peak_mib for point in whole) > limit:
            return "nothing-fits", f"{flat}, and {format_mib(int(limit))} is less", line
        if line.at(high) > limit:
            return "unrelated", f"{kind} does not tell which jobs fit: {flat}", line
        return "flat", f"{flat}. Up to {metric_text.shown(kind, high)} memory sets no threshold", line
    correlation = fit.rank_correlation(whole)
    if correlation < fit.LEAST_CORRELATION:
        return "unrelated", f"{kind} does not tell the memory (rank correlation {correlation:.2f})", line
    return "threshold", "", line


def _threshold(
    points: Sequence[Point], line: Line, kind: ProbeKind, limit: float
) -> tuple[float | None, str, list[str]]:
    """The largest metric that fits, why that, and what else there is to say."""
    whole = fit.known(points)
    low, high = min(point.metric for point in whole), max(point.metric for point in whole)
    notes = []
    found = line.reaches(limit)
    reason = f"there {line.share:.0%} of jobs stay below {format_mib(int(limit))}"
    if found <= 0 or found < low:
        needed = format_mib(round(line.at(low)))
        return None, f"the smallest jobs, of {metric_text.shown(kind, low)}, need {needed} already", []
    if found > high * _FURTHEST:
        notes.append(
            f"the line allows {metric_text.shown(kind, found)}, but nothing above"
            f" {metric_text.shown(kind, high)} was seen: go up in steps"
        )
        found = high * _FURTHEST
        reason = f"there {line.share:.0%} of jobs should need {format_mib(round(line.at(found)))}"
    lowered = fit.without_ooms(points, found)
    if not lowered:  # nothing measures less than 0
        return None, "jobs of any size ran out of GPU memory", notes
    if lowered < found:
        notes.append(f"between this and {metric_text.shown(kind, found)} too many jobs ran out of GPU memory")
        reason = "above it too many jobs ran out of GPU memory"
    return lowered, reason, notes


def _notes(points: Sequence[Point], line: Line, kind: ProbeKind) -> list[str]:
    notes = []
    ran_out = [point.metric for point in points if point.ran_out]
    if line.outliers:
        are = "1 job is" if line.outliers == 1 else f"{line.outliers} jobs are"
        notes.append(f"{are} far above all others, and not in the line")
    if line.lower_bounds:
        jobs = counted(line.lower_bounds, "job")
        notes.append(f"{jobs} failed above the line: they count with what was seen, and may need more")
    if ran_out:
        smallest = metric_text.shown(kind, min(ran_out))
        notes.append(f"{counted(len(ran_out), 'job')} ran out of GPU memory, the smallest at {smallest}")
    return notes


def _better(
    route: Route, destination: Destination, past: Sequence[PastDecision], probe: int, ours: float | None
) -> list[str]:
    """A word on another probe of the route that tells more; ``ours`` is this one's correlation."""
    for number, other in enumerate(route.probes):
        if number == probe:
            continue
        whole = fit.known(points_of(past, destination.name, number))
        if len(whole) >= fit.ENOUGH_JOBS:
            theirs = fit.rank_correlation(whole)
            if theirs > (ours or 0.0) + _BETTER:
                return [
                    f"{other.kind} tells more of the memory (rank correlation {theirs:.2f}"
                    f" against {ours or 0.0:.2f}): --probe {number + 1}"
                ]
    return []
