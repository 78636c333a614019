"""Hints that a route's threshold is wrong, by its past decisions, with the lines to change it. Pure.

A hint concerns the current configuration. It ignores jobs that a bound would now send elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slicer.config import metric_units
from slicer.config.routes import Destination, Route
from slicer.record import record
from slicer.route import route_config
from slicer.route.deciding import takes
from slicer.route.past import PastJob, count
from slicer.route.suggestion import Suggestion, bounding_probe, points_of, without_ooms
from slicer.text import counted

_FEWEST = 3  # inputs; fewer may be chance
_OOM_SHARE = 0.01  # of the GPU's jobs


@record
class Hint:
    """Something that looks wrong. ``config`` has lines for the configuration file; () if none would help."""

    id: str
    text: str  # one line
    config: tuple[str, ...]


def hints(route: Route, past: Sequence[PastJob], suggestion: Suggestion | None) -> tuple[Hint, ...]:
    """All hints, the most important first. ``suggestion``: for the part that :func:`gpu_part` names."""
    found = gpu_part(route)
    if found is None:
        return ()
    part, probe = found
    made = _gpu_ran_out(route, past, suggestion, part, probe), _cpu_blocked(route, past, suggestion, part)
    return tuple(hint for hint in made if hint is not None)


def gpu_part(route: Route) -> tuple[Destination, int] | None:
    """The GPU destination that takes the largest inputs, and the number of the probe that bounds it."""
    found = [each for each in route.destinations if each.mode == "gpu"]
    if not found or not route.probes:
        return None
    return found[-1], bounding_probe(found[-1])


def _gpu_ran_out(
    route: Route, past: Sequence[PastJob], suggestion: Suggestion | None, part: Destination, probe: int
) -> Hint | None:
    """The threshold looks too high: jobs that it sent to the GPU ran out of memory."""
    here = [each for each in past if each.row.after or takes(part, each.row.metrics)]
    points = points_of(here, part.name, probe)
    out = [point.metric for point in points if point.ran_out]
    if not out or len(out) < _OOM_SHARE * len(points):
        return None
    kind, bound = route.probes[probe].kind, part.up_to[probe]
    threshold = f" (the threshold is {metric_units.text(kind, bound)})" if bound is not None else ""
    text = (
        f"{len(out)} of {counted(len(points), 'input')} on {part.name} ran out of GPU memory;"
        f" the smallest measured {metric_units.text(kind, min(out))}{threshold}"
    )
    largest = max(point.metric for point in points)
    most = without_ooms(points, largest)
    if most and most < largest and route.destinations[-1] is not part:
        return Hint("gpu-out-of-memory", text, route_config.bound_lines(route, part, probe, most))
    return Hint("gpu-out-of-memory", text, _changed(suggestion, part, is_lower=True))


def _cpu_blocked(
    route: Route, past: Sequence[PastJob], suggestion: Suggestion | None, part: Destination
) -> Hint | None:
    """The threshold looks too low, or the CPU's slots too few: more large inputs were blocked than ran."""
    large = [
        each
        for each in past
        if each.row.mode == "cpu" and len(each.row.metrics) == len(part.up_to)
        and not takes(part, each.row.metrics)
    ]  # fmt: skip
    blocked = [each for each in large if each.row.result == "blocked"]
    started = [each for each in large if each.row.result == "started"]
    inputs, ran = count(blocked).inputs, count(started).inputs
    if inputs < _FEWEST or inputs <= ran:
        return None
    text = f"on the CPU {inputs} inputs were blocked and {ran} ran"
    return Hint("cpu-blocked", text, _changed(suggestion, part) or _more_cpu(route, blocked))


def _changed(suggestion: Suggestion | None, part: Destination, *, is_lower: bool = False) -> tuple[str, ...]:
    """The suggestion's lines, if it proposes a larger (or a smaller) bound than now."""
    if suggestion is None or suggestion.threshold is None:
        return ()
    bound = part.up_to[suggestion.probe]
    if bound is None or suggestion.threshold == bound:
        return ()
    return suggestion.config if (suggestion.threshold < bound) == is_lower else ()


def _more_cpu(route: Route, blocked: Sequence[PastJob]) -> tuple[str, ...]:
    """Lines that allow one more job where most were blocked, or let them wait."""
    name = Counter(each.row.destination for each in blocked).most_common(1)[0][0]
    part = next((each for each in route.destinations if each.name == name), None)
    if part is None:
        return ()
    heading = route_config.destination_table(route, part)
    return heading, 'on_busy = "wait"' if part.max_jobs is None else f"max_jobs = {part.max_jobs + 1}"
