"""``slicer route --dry-run``: where a job would go, why, and whether it could start now. Runs nothing."""

from __future__ import annotations

from typing import Any

from slicer.cli import output, say
from slicer.cli.dryrun import Forecast, forecast_of, usable_backend
from slicer.columns import Line
from slicer.errors import CannotExecute, CommandNotFound
from slicer.job.plan import Invocation, plan_of
from slicer.ledger.status import existing_ledger
from slicer.quantity import format_size
from slicer.record import record
from slicer.route import deciding
from slicer.route.deciding import RouteAttempt, RouteDecision, destination_text
from slicer.route.inside import environment
from slicer.route.running import Order, measured
from slicer.text import command_text

_COMMAND_CHARS = 100_000  # long enough that a command can be copied


@record
class _Tried:
    """An attempt that a job would make."""

    attempt: RouteAttempt
    command: tuple[str, ...]
    now: Forecast


def show(order: Order, *, as_json: bool) -> None:
    """Print the decision. Raises what the job would raise before its lease."""
    decision = measured(order)
    tries = []
    for each in deciding.attempts(decision, order.on_busy):
        said = deciding.overrides_for(order.config, each.destination)
        invocation = deciding.invocation(order.asked, decision, each, said)
        tries.append(_Tried(each, invocation.command, _now(order, invocation)))
    later = deciding.fallback(decision, order.on_busy, tries[0].attempt.destination)
    if as_json:
        output.show_json(_data(decision, tries, later))
    else:
        output.show([Line(f"{order.route.name}: {decision.why}"), *output.rows(_rows(order, tries, later))])


def _now(order: Order, invocation: Invocation) -> Forecast:
    ledger = existing_ledger(order.environ, say.line)
    try:
        plan = plan_of(invocation, environment(order.environ, order.route), ledger)
    except (CommandNotFound, CannotExecute) as missing:  # the decision is useful all the same
        return Forecast(f"not known: {missing}", (), is_free=None)
    return forecast_of(plan, usable_backend(plan), ledger)


def _rows(order: Order, tries: list[_Tried], later: tuple[RouteAttempt, ...]) -> list[tuple[str, str]]:
    rows = []
    for number, tried in enumerate(tries):
        to = tried.attempt.destination
        rows += [
            ("  then" if number else "  goes to", destination_text(to)),
            ("  command", command_text(tried.command, limit=_COMMAND_CHARS)),
            ("  profile", to.profile),
            ("  lease", tried.now.text),
        ]
        if to.memory_bytes is not None:
            rows.append(("  memory", f"at most {format_size(to.memory_bytes)}"))
        rows.append(("  when busy", _when_busy(tries, number)))
    if later:
        more = "" if order.route.idempotent else ", unless it has written to stdout"
        text = f"again on {destination_text(later[0].destination)}{more}"
        rows.append(("  out of GPU memory", text))
    return rows


def _when_busy(tries: list[_Tried], number: int) -> str:
    attempt = tries[number].attempt
    if attempt.waits:
        return "waits"
    if number + 1 < len(tries):
        return f"goes to {tries[number + 1].attempt.destination.name}"
    return f"fails with exit code {tries[0].attempt.destination.exit_code}"


def _data(decision: RouteDecision, tries: list[_Tried], later: tuple[RouteAttempt, ...]) -> dict[str, Any]:
    """The JSON document (docs/json.md)."""
    first = tries[0].attempt.destination
    return {
        "route": decision.route.name,
        "input": decision.input or None,
        "why": decision.why,
        "metrics": deciding.metric_data(decision.metrics, first),
        "destination": first.name,
        "mode": first.mode,
        "attempts": [_attempt_data(tried) for tried in tries],
        "on_gpu_oom": later[0].destination.name if later else None,
    }


def _attempt_data(tried: _Tried) -> dict[str, Any]:
    to = tried.attempt.destination
    return {
        "destination": to.name,
        **output.picked(to, "mode profile slot? max_jobs vram_mib memory_bytes exit_code"),
        "command": list(tried.command),
        "waits": tried.attempt.waits,
        "free": tried.now.is_free,
        "busy": say.busy_dict(tried.now.busy) if tried.now.busy else None,
    }
