"""What people read on stderr while a job runs, and the one line of JSON that scripts read."""

from __future__ import annotations

import os

from slicer.ledger import now_s
from slicer.placement import expected_remaining, first_to_finish
from slicer.quantity import format_duration, format_size
from slicer.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.errors import SlicerError
    from slicer.model import Lease, Outcome
    from slicer.placement import Busy

_PREFIX = "slicer: "
_ESCAPED = {"\n": " ", "\t": " "}
_REASONS = {
    "oom-kill": "out of memory",
    "timeout": "over its time limit",
    "stopped": "stopped",
    "unknown": "nobody saw how",
}


def line(text: str) -> None:
    """One line on stderr. A closed or full stderr stops no job."""
    if not text.isprintable():
        # Names are other people's: none may add a line here, or talk to the terminal.
        text = "".join(c if c.isprintable() else _ESCAPED.get(c) or ascii(c)[1:-1] for c in text)
    _write(f"{_PREFIX}{text}\n")


def error(failure: SlicerError) -> None:
    """An error as one line: what was wrong, where, and what to do."""
    line(str(failure))


def error_json(failure: SlicerError) -> None:
    """An error as one line of JSON; ``where`` and ``hint`` are null when there is nothing to say."""
    import json

    data = {
        "error": failure.kind,
        "message": failure.message,
        "where": failure.where or None,
        "hint": failure.hint or None,
    }
    _write(json.dumps(data) + "\n")


def _write(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


class Messages:
    """Tells a person about one job. ``verbosity`` -1: nothing, 0: what matters, 1: all."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity
        self._has_waited = False

    def notice(self, text: str) -> None:
        if self._verbosity >= 0:
            line(text)

    def warning(self, text: str) -> None:
        line(text)

    def waiting(self, busy: Busy) -> None:
        self._has_waited = True
        if self._verbosity < 0:
            return
        behind = f", {busy.ahead} ahead of you" if busy.ahead else ""
        line(f"waiting for {_KINDS[busy.kind]}{describe_holders(busy.holders)}{behind}")

    def acquired(self, lease: Lease, waited_s: float) -> None:
        # Who was told of the wait is told of its end; who never waited has to ask.
        if self._verbosity < 0 or (self._verbosity == 0 and not self._has_waited):
            return
        after = f" after {format_duration(waited_s)}" if self._has_waited else ""
        what = describe_resources(len(lease.gpus), lease.cpu_slots)
        line(f"acquired {what}{after} · {lease.unit or lease.job}")

    def finished(self, outcome: Outcome) -> None:
        if self._verbosity >= 0:
            line(describe_outcome(outcome))
        if self._verbosity >= 1 and outcome.not_enforced:
            line(f"not enforced here: {', '.join(outcome.not_enforced)}")


_KINDS = {"gpu": "a GPU", "cpu": "a CPU slot"}


def describe_resources(gpus: int, cpu_slots: int) -> str:
    """As in "2 GPUs and 1 CPU slot"."""
    parts = []
    if gpus:
        parts.append(f"{gpus} GPU{'s' if gpus > 1 else ''}")
    if cpu_slots:
        parts.append(f"{cpu_slots} CPU slot{'s' if cpu_slots > 1 else ''}")
    return " and ".join(parts) or "nothing"


def describe_holders(holders: tuple[Lease, ...]) -> str:
    """ ", held by train (pid 42, slicer-….scope, for 12m, about 3m left) and 2 others"."""
    now = now_s()
    lease = first_to_finish(holders, now)
    if lease is None:
        return ""
    facts = [f"pid {lease.pid}", lease.unit, f"for {format_duration(now - lease.since_s)}"]
    left = expected_remaining(lease, now)
    if left is not None:
        facts.append(f"about {format_duration(left)} left" if left else "overdue")
    others = len(holders) - 1
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    return f", held by {lease.name or lease.command} ({', '.join(filter(None, facts))}){more}"


def describe_outcome(outcome: Outcome) -> str:
    """The last line about a job: how it ended and what it took."""
    used = outcome.usage
    why = f" ({_why(outcome)})" if outcome.reason != "exited" else ""
    facts = [f"exit {outcome.exit_code}{why}", format_duration(outcome.wall_s)]
    if used.cpu_s is not None:
        facts.append(f"CPU {format_duration(used.cpu_s)}")
    if used.memory_peak_bytes:
        facts.append(f"memory {format_size(used.memory_peak_bytes)}")
    if outcome.leftovers:
        facts.append(f"{outcome.leftovers} leftover process{'es' if outcome.leftovers > 1 else ''} ended")
    return f"{outcome.name or 'done'}: {' · '.join(facts)}"


def _why(outcome: Outcome) -> str:
    if outcome.reason == "signal" and outcome.signal:
        return f"killed by {signal_name(outcome.signal)}"
    return _REASONS.get(outcome.reason, outcome.reason)


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` where it has no name. The signal module would cost 5 ms for its enums."""
    names = (name for name in dir(signal) if name.startswith("SIG") and name[3].isalpha())
    return next((name for name in sorted(names) if getattr(signal, name) == number), f"signal {number}")


def holder_dict(lease: Lease, now: float) -> dict[str, Any]:
    """A lease's holder as ``--no-wait`` and ``status --json`` show it; times in seconds."""
    left = expected_remaining(lease, now)
    return {
        "name": lease.name or lease.command,
        "pid": lease.pid,
        "unit": lease.unit or None,
        "held_for": round(now - lease.since_s, 1),
        "expected_remaining": None if left is None else round(left, 1),
        "command": lease.command,
    }


def busy_json(busy: Busy) -> None:
    """The one line of JSON for ``--no-wait`` (B1)."""
    import json

    now = now_s()
    holder = first_to_finish(busy.holders, now)
    data = {"error": f"{busy.kind}-busy", "holder": holder_dict(holder, now) if holder else None}
    _write(json.dumps(data) + "\n")
