"""Decides by the metrics where a job goes, and which destinations to try in which order. Pure."""

from __future__ import annotations

from slicer.config import metric_units as units
from slicer.config.profiles import Overrides
from slicer.config.routes import source
from slicer.job.job import OWN_OUTPUT
from slicer.quantity import format_duration
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.profiles import Config
    from slicer.config.routes import Destination, OnBusy, ProbeKind, Route
    from slicer.errors import ProbeError
    from slicer.job.plan import Invocation
    from slicer.model import Outcome, Profile
    from slicer.outcome.decisions import DecisionRow, Result
    from slicer.outcome.journal import Value
    from slicer.route.relay import Written


@record
class Metric:
    """The result of one probe, in its unit (see :class:`slicer.config.routes.Probe`)."""

    kind: ProbeKind
    value: float
    at_least: bool = False  # counting stopped because it exceeded every bound; there is more


@record
class RouteDecision:
    """Where a job goes. ``choices`` are all destinations that would take it, in order of preference."""

    route: Route
    input: str  # as in the command line; "-" for standard input; "" if none was found
    metrics: tuple[Metric, ...]  # () if the probe failed and the route says where to go then
    choices: tuple[Destination, ...]  # () if the job is too large for all
    why: str  # for people, without the route's name: "duration 12m ≤ 1h: gpu"


def decide(route: Route, input: str, metrics: tuple[Metric, ...]) -> RouteDecision:
    """Decide where a job with these metrics (one for each probe) goes.

    ``choices`` are all destinations whose bounds hold, in order; none if the job is too large for all.
    """
    measured = tuple(metric.value for metric in metrics)
    choices = tuple(each for each in route.destinations if takes(each, measured))
    compared = ", ".join(_compared(route, metric, at, choices) for at, metric in enumerate(metrics))
    if not choices:
        names = " and ".join(each.name for each in route.destinations)
        return RouteDecision(route, input, metrics, (), f"{compared}: too large for {names}")
    shown = compared or "nothing is measured"
    return RouteDecision(route, input, metrics, choices, f"{shown}: {destination_text(choices[0])}")


def on_error(route: Route, error: ProbeError) -> RouteDecision:
    """Decide where a job goes whose input could not be measured. Raises ``error`` if the route says "fail".

    Of several destinations with the route's mode, the one for the largest jobs comes first.
    """
    choices = tuple(each for each in reversed(route.destinations) if each.mode == route.on_probe_error)
    if not choices:
        raise error
    why = f"not measured, on_probe_error = {route.on_probe_error}: {destination_text(choices[0])} ({error})"
    return RouteDecision(route, error.input, (), choices, why)


def cpu_choices(decision: RouteDecision) -> tuple[Destination, ...]:
    """The destinations for a job that ran out of GPU memory; none if its route does not want that.

    These are the CPU destinations that take the job. If its size is unknown, it is the one for the largest
    jobs.
    """
    route = decision.route
    if route.on_gpu_oom != "cpu":
        return ()
    choices = tuple(each for each in decision.choices if each.mode == "cpu")
    if not decision.metrics and not choices:
        choices = tuple(each for each in reversed(route.destinations) if each.mode == "cpu")[:1]
    return choices


def after_ran_out(decision: RouteDecision, ago_s: float) -> RouteDecision:
    """The decision for an input that recently ran out of GPU memory: it goes to the CPU at once."""
    choices = cpu_choices(decision)
    why = f"ran out of GPU memory {format_duration(ago_s)} ago: {destination_text(choices[0])}"
    return replace(decision, choices=choices, why=why)


def destination_text(destination: Destination) -> str:
    """The destination's name, and its mode if that differs."""
    if destination.name == destination.mode:
        return destination.name
    return f"{destination.name} ({destination.mode})"


def takes(destination: Destination, measured: tuple[float, ...]) -> bool:
    """Whether all metrics are within the destination's bounds, one for each probe."""
    return len(measured) == len(destination.up_to) and all(
        bound is None or metric <= bound for metric, bound in zip(measured, destination.up_to, strict=True)
    )


def _compared(route: Route, metric: Metric, at: int, choices: tuple[Destination, ...]) -> str:
    """Text such as ``duration 12m ≤ 1h``, with the bound that holds, or the largest that does not."""
    held = choices[0].up_to[at] if choices else None
    passed = [
        bound for each in route.destinations if (bound := each.up_to[at]) is not None and bound < metric.value
    ]
    beside = held if held is not None else max(passed, default=None)
    at_least = "at least " * metric.at_least
    shown = f"{metric.kind} {at_least}{units.text(metric.kind, metric.value, beside=beside)}"
    if beside is None:
        return shown
    sign = "≤" if held is not None else ">"
    return f"{shown} {sign} {units.bound_text(metric.kind, beside)}"


_LONGEST_NAME = 200  # the same as for slicer run --name


@record
class RouteAttempt:
    """A destination to try. ``waits``: wait until it is free. ``why`` is for people."""

    destination: Destination
    waits: bool
    why: str


def attempts(decision: RouteDecision, on_busy: OnBusy | None) -> tuple[RouteAttempt, ...]:
    """What to try, in order, until a destination is not busy. ``on_busy`` overrides the destinations' own.

    "other" passes the job on to the next destination that takes it, whose own on_busy applies there. If the
    last one also says "other", it is tried without waiting.
    """
    return _attempts(decision.choices, on_busy, decision.why)


def fallback(
    decision: RouteDecision, on_busy: OnBusy | None, failed: Destination
) -> tuple[RouteAttempt, ...]:
    """What to try after the GPU ran out of memory; nothing if the route does not want that."""
    choices = cpu_choices(decision) if failed.mode == "gpu" else ()
    why = f"out of GPU memory on {failed.name}"
    return _attempts(choices, on_busy, f"{why}: {destination_text(choices[0])}") if choices else ()


def _attempts(choices: tuple[Destination, ...], on_busy: OnBusy | None, why: str) -> tuple[RouteAttempt, ...]:
    found: list[RouteAttempt] = []
    for choice in choices:
        if found:
            why = f"{why}, which is busy: {destination_text(choice)}"
        word = on_busy or choice.on_busy
        found.append(RouteAttempt(choice, word == "wait", why))
        if word != "other":
            break
    return tuple(found)


def is_out_of_gpu_memory(outcome: Outcome) -> bool:
    """Whether an attempt may have failed because the GPU ran out of memory.

    It did not if somebody ended it, or if it exceeded its time or main memory. A queue judges the same (E9).
    """
    return outcome.exit_code != 0 and outcome.reason in ("exited", "signal") and not outcome.ended_by


def may_run_again(route: Route, written: Written) -> bool:
    """Whether the job may run again, given what its attempt on the GPU wrote."""
    return written.tells_of_oom and (route.idempotent or not written.on_stdout)


def job_name(route: Route, input: str) -> str:
    """The name of a job without --name: ``whisper:talk.mp4``."""
    last = input.rstrip("/").rpartition("/")[2]
    return f"{route.name}:{last}"[:_LONGEST_NAME] if last and input != "-" else route.name


def profile_for(config: Config, route: Route, destination: Destination) -> Profile:
    """The profile of a job at the destination, without its slot. Raises SlicerError."""
    made = config.profile(destination.profile, overrides_for(config, destination))
    sources = dict(made.sources)
    if destination.vram_mib is not None:
        sources["vram"] = source(route, destination, "vram")
    if destination.memory_bytes is not None:
        sources["MemoryMax"] = source(route, destination, "memory")
    return replace(made, sources=sources)


def overrides_for(config: Config, destination: Destination) -> Overrides:
    """The destination's overrides of its profile, without its slot.

    A built-in profile's MemoryHigh= belongs to its MemoryMax=. With the destination's ``memory`` it would
    slow down a job that is allowed more, so it is removed.
    """
    assignments: tuple[str, ...] = ()
    if destination.memory_bytes is not None:
        assignments = (f"MemoryMax={destination.memory_bytes}",)
        named = config.profile(destination.profile)
        if named.sources.get("MemoryHigh", "").startswith("built-in"):
            assignments = ("MemoryHigh=infinity", *assignments)
    vram = None if destination.vram_mib is None else f"{destination.vram_mib}M"
    return Overrides(vram=vram, assignments=assignments)


def invocation(
    asked: Invocation, decision: RouteDecision, attempt: RouteAttempt, said: Overrides,
    output: tuple[int, int] = OWN_OUTPUT,
) -> Invocation:  # fmt: skip
    """The job of an attempt. ``asked`` is the command line, which overrides the route.

    ``said`` is what the destination overrides in its profile.
    """
    to = attempt.destination
    return replace(
        asked,
        command=command_for(to, asked.command),
        profile=to.profile,
        overrides=replace(
            asked.overrides,
            vram=said.vram,
            slots=(f"{to.slot}=1",) if to.slot else (),
            assignments=said.assignments + asked.overrides.assignments,
        ),
        name=asked.name or job_name(decision.route, decision.input),
        wait=attempt.waits,
        route=decision.route.name,
        output=output,
    )


# -- the command line ---------------------------------------------------------------------------------------
#
# Only whole words count: an option is ``--model X`` or ``--model=X`` (or with a single dash), before a
# ``--``. ``-mX``, which could be several short options in one word, and abbreviations are not recognised.


def command_for(destination: Destination, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the destination's ``replace``, ``prepend`` and ``args``, in this order.

    ``prepend`` goes right after the command's name, ``args`` at the end. If ``args`` begins with an option,
    it goes before a ``--``, after which there are no options.
    """
    words = command[1:]
    for option, value in destination.replace:
        words = _replaced(words, option, value)
    end = len(words)
    if destination.args[:1] and destination.args[0][:1] == "-" and "--" in words:
        end = words.index("--")
    return (*command[:1], *destination.prepend, *words[:end], *destination.args, *words[end:])


def _replaced(words: tuple[str, ...], option: str, value: str | None) -> tuple[str, ...]:
    """The words with each value of the option replaced; None removes the option.

    ``--fp16`` and ``--fp16=X`` are removed. The word after it is removed only if ``option`` ends in "=",
    because a flag has no value.
    """
    name = option.rstrip("=")
    found: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            found += words[position:]
            break
        position += 1
        if word == name and value is not None and position < len(words):
            found += (word, value)
            position += 1
        elif word == name and value is None:
            position += option.endswith("=")
        elif word.startswith(f"{name}="):
            if value is not None:
                found.append(f"{name}={value}")
        else:
            found.append(word)
    return tuple(found)


# -- reports ------------------------------------------------------------------------------------------------


def row(
    decision: RouteDecision, attempt: RouteAttempt | None, command: tuple[str, ...], now_s: float,
    result: Result, *, job: str = "", after: str = "", waited_s: float = 0.0, reason: str = "",
) -> DecisionRow:  # fmt: skip
    """The history's row about a decision. ``now_s``: seconds since the epoch."""
    from slicer.outcome.decisions import DecisionRow

    to = attempt.destination if attempt else None
    return DecisionRow(
        route=decision.route.name, decided_at=now_s, kinds=tuple(each.kind for each in decision.metrics),
        metrics=tuple(each.value for each in decision.metrics),
        bounds=to.up_to if to and decision.metrics else (), destination=to.name if to else "",
        mode=to.mode if to else "", result=result, job=job, after=after, waited_s=round(waited_s, 3),
        input=decision.input, command=command, reason=reason,
        at_least=tuple(each.at_least for each in decision.metrics),
    )  # fmt: skip


def event_fields(row: DecisionRow, command: tuple[str, ...]) -> dict[str, Value | tuple[str, ...]]:
    """The journal's fields about a decision: SLICER_RESULT and so on. A metric is ``duration=720``.

    ``command`` is what runs, or would have run.
    """
    return {
        "route": row.route,
        "destination": row.destination or None,
        "mode": row.mode or None,
        "metric": tuple(f"{kind}={value:.15g}" for kind, value in zip(row.kinds, row.metrics, strict=True)),
        "bound": tuple(
            f"{kind}={bound:.15g}"
            for kind, bound in zip(row.kinds, row.bounds, strict=False)  # there may be no destination
            if bound is not None
        ),
        "result": row.result,
        "input": row.input or None,
        "after": row.after or None,
        "command": " ".join(command),
    }


def metric_data(metrics: tuple[Metric, ...], to: Destination | None) -> list[dict[str, object]]:
    """The metrics for programs, each with the destination's bound."""
    bounds = to.up_to if to else (None,) * len(metrics)
    return [
        {"probe": metric.kind, "value": metric.value, "at_least": metric.at_least, "bound": bound}
        for metric, bound in zip(metrics, bounds, strict=True)
    ]
