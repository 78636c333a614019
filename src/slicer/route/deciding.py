"""Where a job goes by what was measured: the decision, and the attempts that it comes to. Pure."""

from __future__ import annotations

from slicer.config import metrics as units
from slicer.job.job import OWN_OUTPUT
from slicer.quantity import format_duration
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.profiles import Overrides
    from slicer.config.routes import Destination, OnBusy, ProbeKind, Route
    from slicer.errors import ProbeError
    from slicer.job.plan import Invocation
    from slicer.model import Outcome
    from slicer.outcome.decisions import DecisionRow, Result
    from slicer.outcome.journal import Value
    from slicer.route.relay import Written


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
    measured = tuple(metric.value for metric in metrics)
    choices = tuple(each for each in route.destinations if takes(each, measured))
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


def takes(destination: Destination, measured: tuple[float, ...]) -> bool:
    """Whether all that was measured is within the destination's bounds, one for each probe."""
    return len(measured) == len(destination.up_to) and all(
        bound is None or metric <= bound for metric, bound in zip(measured, destination.up_to, strict=True)
    )


def _compared(route: Route, metric: Metric, at: int, choices: tuple[Destination, ...]) -> str:
    """``duration 12m ≤ 1h``: beside the bound that holds, or the largest that does not."""
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


_LONGEST_NAME = 200  # as of slicer run --name


@record
class Attempt:
    """One destination to try. ``waits``: until it is free. ``why`` is for people."""

    destination: Destination
    waits: bool
    why: str


def attempts(decision: Decision, on_busy: OnBusy | None) -> tuple[Attempt, ...]:
    """What to try, in order, until one is not busy. ``on_busy`` replaces what the destinations say.

    A destination that says "other" hands the job on to the next one that takes it, and that one's own word
    counts there. The last is tried without waiting if it says "other", too.
    """
    return _attempts(decision.choices, on_busy, decision.why)


def fallback(decision: Decision, on_busy: OnBusy | None, failed: Destination) -> tuple[Attempt, ...]:
    """What to try when the GPU ran out of memory; nothing if the route does not want that."""
    choices = cpu_choices(decision) if failed.mode == "gpu" else ()
    why = f"out of GPU memory on {failed.name}"
    return _attempts(choices, on_busy, f"{why}: {destination_text(choices[0])}") if choices else ()


def _attempts(choices: tuple[Destination, ...], on_busy: OnBusy | None, why: str) -> tuple[Attempt, ...]:
    found: list[Attempt] = []
    for choice in choices:
        if found:
            why = f"{why}, which is busy: {destination_text(choice)}"
        word = on_busy or choice.on_busy
        found.append(Attempt(choice, word == "wait", why))
        if word != "other":
            break
    return tuple(found)


def is_out_of_gpu_memory(outcome: Outcome) -> bool:
    """Whether an attempt may have failed because the GPU ran out of memory.

    Not if somebody ended it, or if it took too long or too much main memory: as a queue judges it (E9).
    """
    return outcome.exit_code != 0 and outcome.reason in ("exited", "signal") and not outcome.ended_by


def may_run_again(route: Route, written: Written) -> bool:
    """Whether the job may run once more, by what its attempt on the GPU wrote."""
    return written.tells_of_oom and (route.idempotent or not written.on_stdout)


def job_name(route: Route, input: str) -> str:
    """What the job is called if nobody gave it a name: ``whisper:talk.mp4``."""
    last = input.rstrip("/").rpartition("/")[2]
    return f"{route.name}:{last}"[:_LONGEST_NAME] if last and input != "-" else route.name


def invocation(
    asked: Invocation, decision: Decision, attempt: Attempt, said: Overrides,
    output: tuple[int, int] = OWN_OUTPUT,
) -> Invocation:  # fmt: skip
    """The job of an attempt. ``asked`` is what the command line says, which counts over the route.

    ``said`` is what the destination says over its profile.
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
# Only whole words are looked at: an option is ``--model X`` or ``--model=X`` (a single dash will do), before
# a ``--``. Not recognised are ``-mX``, which could be several short options in one word, and abbreviations.


def command_for(destination: Destination, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the destination's ``replace``, ``prepend`` and ``args``, in this order.

    ``prepend`` goes right after the command's name and ``args`` to the end. If ``args`` begins with an
    option, it goes before a ``--``, after which nothing is an option.
    """
    words = command[1:]
    for option, value in destination.replace:
        words = _replaced(words, option, value)
    end = len(words)
    if destination.args[:1] and destination.args[0][:1] == "-" and "--" in words:
        end = words.index("--")
    return (*command[:1], *destination.prepend, *words[:end], *destination.args, *words[end:])


def _replaced(words: tuple[str, ...], option: str, value: str | None) -> tuple[str, ...]:
    """The words with the option's value exchanged wherever it stands; None takes the option away.

    Taken away are ``--fp16`` and ``--fp16=X``; the word after it too only if ``option`` ends in "=", for a
    flag has no value.
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


# -- what is told ------------------------------------------------------------------------------------------


def row(
    decision: Decision, attempt: Attempt | None, command: tuple[str, ...], now_s: float, result: Result, *,
    job: str = "", after: str = "", waited_s: float = 0.0, reason: str = "",
) -> DecisionRow:  # fmt: skip
    """What the history keeps of a decision. ``now_s``: seconds since the epoch."""
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
    """What the journal is told of a decision: SLICER_RESULT and so on. A metric is ``duration=720``.

    ``command`` is what runs, or was to run.
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
    """The metrics for programs, each with the bound of the destination."""
    bounds = to.up_to if to else (None,) * len(metrics)
    return [
        {"probe": metric.kind, "value": metric.value, "at_least": metric.at_least, "bound": bound}
        for metric, bound in zip(metrics, bounds, strict=True)
    ]
