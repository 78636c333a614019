"""Which destination a job goes to, by what was measured. Pure."""

from __future__ import annotations

from slicer.config import metrics as units
from slicer.quantity import format_duration
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import Destination, ProbeKind, Route
    from slicer.errors import ProbeError


@record
class Metric:
    """What one probe measured, in its unit (see :class:`slicer.config.routes.Probe`)."""

    kind: ProbeKind
    value: float
    at_least: bool = False  # counting ended once it was too much for every bound: there is more


@record
class Decision:
    """Where a job goes. ``choices`` are all destinations that would take it, the first first."""

    route: Route
    input: str  # as the command line has it; "-" for standard input; "" if none was found
    metrics: tuple[Metric, ...]  # () where the probe failed and the route says where to go then
    choices: tuple[Destination, ...]  # () if the job is too large for all
    why: str  # for people, without the route's name: "duration 12m ≤ 1h: gpu"


def decide(route: Route, input: str, metrics: tuple[Metric, ...]) -> Decision:
    """Where a job with these metrics (one for each probe) goes.

    ``choices`` are all destinations whose bounds hold, in their order: none if the job is too large for all.
    """
    choices = tuple(each for each in route.destinations if _takes(each, metrics))
    compared = ", ".join(_compared(route, metric, at, choices) for at, metric in enumerate(metrics))
    if not choices:
        names = " and ".join(each.name for each in route.destinations)
        return Decision(route, input, metrics, (), f"{compared}: too large for {names}")
    shown = compared or "nothing is measured"
    return Decision(route, input, metrics, choices, f"{shown}: {destination_text(choices[0])}")


def on_error(route: Route, error: ProbeError) -> Decision:
    """Where a job goes whose input could not be measured. Raises ``error`` if the route says "fail".

    Of several destinations of the mode, the one that takes the largest jobs is the first choice.
    """
    choices = tuple(each for each in reversed(route.destinations) if each.mode == route.on_probe_error)
    if not choices:
        raise error
    why = f"not measured, on_probe_error = {route.on_probe_error}: {destination_text(choices[0])} ({error})"
    return Decision(route, error.input, (), choices, why)


def cpu_choices(decision: Decision) -> tuple[Destination, ...]:
    """The destinations for a job that runs out of GPU memory; none if its route does not want that.

    These are the CPU destinations that take the job. Where nobody knows how large it is, that is the one for
    the largest jobs.
    """
    route = decision.route
    if route.on_gpu_oom != "cpu":
        return ()
    choices = tuple(each for each in decision.choices if each.mode == "cpu")
    if not decision.metrics and not choices:
        choices = tuple(each for each in reversed(route.destinations) if each.mode == "cpu")[:1]
    return choices


def after_ran_out(decision: Decision, ago_s: float) -> Decision:
    """The decision about an input that ran out of GPU memory a while ago: it goes to the CPU at once."""
    choices = cpu_choices(decision)
    why = f"ran out of GPU memory {format_duration(ago_s)} ago: {destination_text(choices[0])}"
    return replace(decision, choices=choices, why=why)


def destination_text(destination: Destination) -> str:
    """Its name, and its mode where that is not the same."""
    if destination.name == destination.mode:
        return destination.name
    return f"{destination.name} ({destination.mode})"


def _takes(destination: Destination, metrics: tuple[Metric, ...]) -> bool:
    bounds = zip(destination.up_to, metrics, strict=True)
    return all(bound is None or metric.value <= bound for bound, metric in bounds)


def _compared(route: Route, metric: Metric, at: int, choices: tuple[Destination, ...]) -> str:
    """``duration 12m ≤ 1h``: beside the bound that holds, or the largest that does not."""
    held = choices[0].up_to[at] if choices else None
    passed = [
        bound for each in route.destinations if (bound := each.up_to[at]) is not None and bound < metric.value
    ]
    beside = held if held is not None else max(passed, default=None)
    shown = f"{metric.kind} {_text(metric, beside)}"
    if beside is None:
        return shown
    sign = "≤" if held is not None else ">"
    return f"{shown} {sign} {units.bound_text(metric.kind, beside)}"


def _text(metric: Metric, beside: float | None) -> str:
    return f"{'at least ' * metric.at_least}{units.text(metric.kind, metric.value, beside=beside)}"
