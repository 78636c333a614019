"""Hints that a route's threshold is wrong, by its past decisions, with the lines to change it. Pure.

A hint concerns the current configuration. It ignores jobs that a bound would now send elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slicer.config import metrics
from slicer.config.routes import Destination, Route
from slicer.outcome.decisions import PastDecision
from slicer.record import record
from slicer.route import route_config, stats
from slicer.route.deciding import takes
from slicer.route.suggestion import Suggestion, bounding_probe, points_of, without_ooms
from slicer.text import counted

_FEWEST = 3  # inputs; fewer may be chance
_OOM_SHARE = 0.01  # of the GPU's jobs
_JUST_ABOVE = 1.5  # times the threshold
_NEAR_SHARE = 0.1  # of the CPU's inputs


@record
class Facts:
    """The basis of hints. ``past`` has the route's decisions, the oldest first."""

    route: Route
    past: tuple[PastDecision, ...]
    suggestion: Suggestion | None  # for the largest GPU destination, its first bounded probe


@record
class Hint:
    """Something that looks wrong. ``config`` has lines for the configuration file; () if none would help."""

    id: str
    text: str  # one line
    config: tuple[str, ...]


def hints(facts: Facts) -> tuple[Hint, ...]:
    """All hints, the most important first."""
    found = gpu_part(facts.route)
    if found is None:
        return ()
    part, probe = found
    made = _gpu_ran_out(facts, part, probe), _cpu_blocked(facts, part), _cpu_just_above(facts, part, probe)
    told: list[Hint] = []
    for hint in made:
        # If two hints propose the same line, the first is enough.
        if hint is not None and not any(hint.config and hint.config == each.config for each in told):
            told.append(hint)
    return tuple(told)


def gpu_part(route: Route) -> tuple[Destination, int] | None:
    """The GPU destination that takes the largest inputs, and the number of the probe that bounds it."""
    found = [each for each in route.destinations if each.mode == "gpu"]
    if not found or not route.probes:
        return None
    return found[-1], bounding_probe(found[-1])


def _gpu_ran_out(facts: Facts, part: Destination, probe: int) -> Hint | None:
    """The threshold looks too high: jobs that it sent to the GPU ran out of memory."""
    here = [each for each in facts.past if each.row.after or takes(part, each.row.metrics)]
    points = points_of(here, part.name, probe)
    out = [point.metric for point in points if point.ran_out]
    if not out or len(out) < _OOM_SHARE * len(points):
        return None
    kind = facts.route.probes[probe].kind
    bound = part.up_to[probe]
    threshold = f" (the threshold is {metrics.text(kind, bound)})" if bound is not None else ""
    text = (
        f"{len(out)} of {counted(len(points), 'input')} on {part.name} ran out of GPU memory;"
        f" the smallest measured {metrics.text(kind, min(out))}{threshold}"
    )
    largest = max(point.metric for point in points)
    most = without_ooms(points, largest)
    if most and most < largest and facts.route.destinations[-1] is not part:
        return Hint("gpu-out-of-memory", text, route_config.bound_lines(facts.route, part, probe, most))
    return Hint("gpu-out-of-memory", text, _changed(facts, part, is_lower=True))


def _cpu_inputs(facts: Facts, part: Destination, result: str) -> list[PastDecision]:
    """The decisions for a CPU destination about inputs that are too large for the GPU destination."""
    return [
        each
        for each in facts.past
        if each.row.result == result and each.row.mode == "cpu"
        and len(each.row.metrics) == len(part.up_to) and not takes(part, each.row.metrics)
    ]  # fmt: skip


def _cpu_blocked(facts: Facts, part: Destination) -> Hint | None:
    """The threshold looks too low, or the CPU's slots too few: more inputs were blocked there than ran."""
    blocked = _cpu_inputs(facts, part, "blocked")
    inputs, ran = stats.count(blocked).inputs, stats.count(_cpu_inputs(facts, part, "started")).inputs
    if inputs < _FEWEST or inputs <= ran:
        return None
    text = f"on the CPU {inputs} inputs were blocked and {ran} ran"
    return Hint("cpu-blocked", text, _changed(facts, part) or _more_cpu(facts.route, blocked))


def _changed(facts: Facts, part: Destination, *, is_lower: bool = False) -> tuple[str, ...]:
    """The suggestion's lines, if it proposes a larger (or a smaller) bound than now."""
    suggestion = facts.suggestion
    if suggestion is None or suggestion.threshold is None or suggestion.destination != part.name:
        return ()
    bound = part.up_to[suggestion.probe]
    if bound is None or suggestion.threshold == bound:
        return ()
    return suggestion.config if (suggestion.threshold < bound) == is_lower else ()


def _more_cpu(route: Route, blocked: Sequence[PastDecision]) -> tuple[str, ...]:
    """Lines that allow one more job where most were blocked, or let them wait."""
    name = Counter(each.row.destination for each in blocked).most_common(1)[0][0]
    part = next((each for each in route.destinations if each.name == name), None)
    if part is None:
        return ()
    heading = route_config.destination_table(route, part)
    return heading, 'on_busy = "wait"' if part.max_jobs is None else f"max_jobs = {part.max_jobs + 1}"


def _cpu_just_above(facts: Facts, part: Destination, probe: int) -> Hint | None:
    """The threshold looks too low: many of the CPU's inputs would fit into the GPU's memory."""
    suggestion, lines, bound = facts.suggestion, _changed(facts, part), part.up_to[probe]
    if suggestion is None or suggestion.threshold is None or suggestion.line is None or bound is None:
        return None
    all_of_them = _cpu_inputs(facts, part, "started") + _cpu_inputs(facts, part, "blocked")
    near = [
        each
        for each in all_of_them
        if bound < each.row.metrics[probe] <= min(suggestion.threshold, bound * _JUST_ABOVE)
        and not any(each.row.at_least[probe : probe + 1])
    ]
    inputs, of = stats.count(near).inputs, stats.count(all_of_them).inputs
    if not lines or inputs < _FEWEST or inputs < _NEAR_SHARE * of:
        return None
    kind = facts.route.probes[probe].kind
    largest = max(each.row.metrics[probe] for each in near)
    text = (
        f"{inputs} of {counted(of, 'CPU input')} measured {metrics.text(kind, bound)} to"
        f" {metrics.text(kind, largest)}; judging by {counted(suggestion.line.jobs, 'job')},"
        f" {suggestion.line.share:.0%} of such inputs need less than"
        f" {suggestion.line.at(largest) / 1024:.1f}G of {suggestion.vram_mib / 1024:.1f}G"
    )
    return Hint("cpu-just-above", text, lines)
