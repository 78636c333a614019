"""What past decisions say against a route's configuration, with the reason and the lines to write. Pure.

A hint is about the configuration as it is now. A job that a bound would send elsewhere today says nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

from slicer.record import record
from slicer.route import fit, metric_text, route_config, stats
from slicer.route.suggestion import Suggestion, bounding_probe, points_of
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import Destination, Route
    from slicer.outcome.decisions import PastDecision
    from slicer.route.fit import Point

_FEWEST = 3  # inputs: fewer are chance
_OOM_SHARE = 0.01  # of the GPU's jobs
_LOST_SHARE = 0.25  # of the GPU's jobs that ended well may be sent away so that none runs out of memory
_IDLE_SHARE = 0.5  # of the blocked calls, at which the GPU had room
_JUST_ABOVE = 1.5  # times the threshold
_NEAR_SHARE = 0.1  # of the CPU's inputs
_ERROR_SHARE = 0.05  # of the calls
_STORM = 10  # blocked calls for each blocked input
_RUNS_S = 86400.0  # nobody knows when a job without an outcome ended; after a day it does not count


@record
class Facts:
    """What hints are made of. ``past`` is the route's, the oldest first."""

    route: Route
    past: tuple[PastDecision, ...]
    suggestion: Suggestion | None  # for the largest GPU destination, its first bounded probe


@record
class Hint:
    """Something that looks wrong. ``config`` are lines of the configuration file; () if none would help."""

    id: str
    text: str  # one line
    config: tuple[str, ...]


def hints(facts: Facts) -> tuple[Hint, ...]:
    """All hints, the most important first."""
    rules: tuple[Callable[[Facts], Hint | None], ...] = (
        gpu_ran_out, cpu_blocked_beside_idle_gpu, cpu_just_above, probe_errors, too_large, retry_storm,
    )  # fmt: skip
    found: list[Hint] = []
    for rule in rules:
        hint = rule(facts)
        # Two reasons for the same line: the first is enough.
        if hint is not None and not any(hint.config and hint.config == each.config for each in found):
            found.append(hint)
    return tuple(found)


def gpu_part(route: Route) -> tuple[Destination, int] | None:
    """The GPU destination that takes the largest inputs, and the number of the probe that bounds it."""
    found = [each for each in route.destinations if each.mode == "gpu"]
    if not found or not route.probes:
        return None
    return found[-1], bounding_probe(found[-1])


def _takes(destination: Destination, metrics: Sequence[float]) -> bool:
    return len(metrics) == len(destination.up_to) and all(
        bound is None or metric <= bound for metric, bound in zip(metrics, destination.up_to, strict=True)
    )


def gpu_ran_out(facts: Facts) -> Hint | None:
    """GPU jobs ran out of memory though the threshold let them in."""
    found = gpu_part(facts.route)
    if found is None:
        return None
    part, probe = found
    here = [each for each in facts.past if each.row.after or _takes(part, each.row.metrics)]
    points = points_of(here, part.name, probe)
    out = [point.metric for point in points if point.ran_out]
    if not out or len(out) < _OOM_SHARE * len(points):
        return None
    kind = facts.route.probes[probe].kind
    bound = part.up_to[probe]
    threshold = f" (the threshold is {metric_text.shown(kind, bound)})" if bound is not None else ""
    text = (
        f"{len(out)} of {counted(len(points), 'input')} on {part.name} ran out of GPU memory;"
        f" the smallest measured {metric_text.shown(kind, min(out))}{threshold}"
    )
    most = _below_ooms(points)
    if most is not None and facts.route.destinations[-1] is not part:
        return Hint("gpu-out-of-memory", text, route_config.bound_lines(facts.route, part, probe, most))
    return Hint("gpu-out-of-memory", text, _changed(facts, part, is_lower=True))


def _below_ooms(points: Sequence[Point]) -> float | None:
    """The largest metric below all jobs that ran out of memory, if few others are above it.

    Else the one up to which few did; None if there is no such below the largest.
    """
    smallest = min(point.metric for point in points if point.ran_out)
    below = [point.metric for point in points if 0 < point.metric < smallest]
    well_above = sum(point.ended_well and point.metric >= smallest for point in points)
    if below and well_above <= _LOST_SHARE * len(points):
        return max(below)
    largest = max(point.metric for point in points)
    most = fit.without_ooms(points, largest)
    return most if most and most < largest else None


def _cpu_inputs(facts: Facts, part: Destination, result: str) -> list[PastDecision]:
    """The decisions for a CPU destination about inputs that are too large for the GPU part."""
    return [
        each
        for each in facts.past
        if each.row.result == result and each.row.mode == "cpu"
        and len(each.row.metrics) == len(part.up_to) and not _takes(part, each.row.metrics)
    ]  # fmt: skip


def cpu_blocked_beside_idle_gpu(facts: Facts) -> Hint | None:
    """More inputs were blocked at the CPU than ran there, while the GPU part had room."""
    found = gpu_part(facts.route)
    if found is None:
        return None
    part, _ = found
    blocked = _cpu_inputs(facts, part, "blocked")
    inputs, ran = stats.count(blocked).inputs, stats.count(_cpu_inputs(facts, part, "started")).inputs
    if inputs < _FEWEST or inputs <= ran:
        return None
    busy = _Busy(facts.past, part.name)
    idle = sum(busy.at(each.row.decided_at) < (part.max_jobs or 1) for each in blocked)
    if idle < _IDLE_SHARE * len(blocked):
        return None
    text = (
        f"{inputs} inputs were blocked at the CPU and {ran} ran there;"
        f" at {idle} of {counted(len(blocked), 'refusal')} {part.name} had room"
    )
    return Hint("cpu-blocked", text, _changed(facts, part) or _more_cpu(facts.route, blocked))


def _changed(facts: Facts, part: Destination, *, is_lower: bool = False) -> tuple[str, ...]:
    """The lines of the suggestion, if that is a larger bound than now, or a smaller one."""
    suggestion = facts.suggestion
    if suggestion is None or suggestion.threshold is None or suggestion.destination != part.name:
        return ()
    bound = part.up_to[suggestion.probe]
    if bound is None or suggestion.threshold == bound:
        return ()
    return suggestion.config if (suggestion.threshold < bound) == is_lower else ()


def _more_cpu(route: Route, blocked: Sequence[PastDecision]) -> tuple[str, ...]:
    """Lines that let one more job run where most were blocked, or let them wait."""
    name = Counter(each.row.destination for each in blocked).most_common(1)[0][0]
    part = next((each for each in route.destinations if each.name == name), None)
    if part is None:
        return ()
    heading = route_config.destination_table(route, part)
    return heading, 'on_busy = "wait"' if part.max_jobs is None else f"max_jobs = {part.max_jobs + 1}"


class _Busy:
    """How many jobs of a destination ran at a time."""

    def __init__(self, past: Sequence[PastDecision], destination: str) -> None:
        ran = [each for each in past if each.row.destination == destination and each.row.job]
        self._starts = sorted(_start(each) for each in ran)
        self._ends = sorted(_start(each) + (each.job.wall_s if each.job else _RUNS_S) for each in ran)

    def at(self, at: float) -> int:
        return bisect_right(self._starts, at) - bisect_left(self._ends, at)


def _start(past: PastDecision) -> float:
    return past.job.started_at if past.job else past.row.decided_at


def cpu_just_above(facts: Facts) -> Hint | None:
    """Many inputs of the CPU are only a little too large for the GPU, and memory is left there."""
    found = gpu_part(facts.route)
    suggestion = facts.suggestion
    if found is None or suggestion is None or suggestion.threshold is None or suggestion.line is None:
        return None
    part, _ = found
    probe, most = suggestion.probe, suggestion.threshold
    bound = part.up_to[probe]
    lines = _changed(facts, part)
    if bound is None or not lines:
        return None
    all_of_them = _cpu_inputs(facts, part, "started") + _cpu_inputs(facts, part, "blocked")
    near = [
        each
        for each in all_of_them
        if bound < each.row.metrics[probe] <= min(most, bound * _JUST_ABOVE)
        and not any(each.row.at_least[probe : probe + 1])
    ]
    inputs, of = stats.count(near).inputs, stats.count(all_of_them).inputs
    if inputs < _FEWEST or inputs < _NEAR_SHARE * of:
        return None
    kind = facts.route.probes[probe].kind
    largest = max(each.row.metrics[probe] for each in near)
    text = (
        f"{inputs} of {counted(of, 'CPU input')} measured {metric_text.shown(kind, bound)} to"
        f" {metric_text.shown(kind, largest)}; by what {counted(suggestion.line.jobs, 'job')} used,"
        f" {suggestion.line.share:.0%} of such need less than"
        f" {suggestion.line.at(largest) / 1024:.1f}G of {suggestion.vram_mib / 1024:.1f}G"
    )
    return Hint("cpu-just-above", text, lines)


def probe_errors(facts: Facts) -> Hint | None:
    """The probe fails often."""
    failed = [each for each in facts.past if each.row.result == "probe-error"]
    calls = stats.calls_of(facts.past)
    if stats.count(failed).inputs < _FEWEST or len(failed) < _ERROR_SHARE * len(calls):
        return None
    reason, times = Counter(each.row.reason for each in failed).most_common(1)[0]
    text = f"the probe failed in {len(failed)} of {len(calls)} calls; {times} times: {reason}"
    has_cpu = any(each.mode == "cpu" for each in facts.route.destinations)
    is_strict = facts.route.on_probe_error == "fail"
    lines = (route_config.table(facts.route.name), 'on_probe_error = "cpu"') if has_cpu and is_strict else ()
    return Hint("probe-errors", text, lines)


def too_large(facts: Facts) -> Hint | None:
    """No destination takes the largest inputs."""
    refused = [each for each in facts.past if each.row.result == "too-large"]
    route = facts.route
    if not refused or any(all(bound is None for bound in each.up_to) for each in route.destinations):
        return None
    inputs = stats.count(refused).inputs
    text = f"{counted(inputs, 'input')} {'was' if inputs == 1 else 'were'} too large for all destinations"
    if any(each.mode == "cpu" for each in route.destinations) or not route_config.is_two_way(route):
        return Hint("too-large", text, ())
    return Hint("too-large", text, (route_config.table(route.name, "cpu"), 'profile = "heavy"'))


def retry_storm(facts: Facts) -> Hint | None:
    """Callers try again and again instead of waiting their turn."""
    blocked = [each for each in facts.past if each.row.result == "blocked"]
    seen = stats.count(blocked)
    if seen.inputs < 1 or seen.calls < _STORM * seen.inputs:
        return None
    if all(each.on_busy == "wait" for each in facts.route.destinations):
        return None
    were = "was" if seen.inputs == 1 else "were"
    text = (
        f"{counted(seen.inputs, 'input')} {were} blocked {seen.calls} times:"
        " waiting would serve them in order, if their callers have the time"
    )
    return Hint("retries", text, (route_config.table(facts.route.name), 'on_busy = "wait"'))
