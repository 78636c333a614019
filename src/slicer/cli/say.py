"""Messages on stderr while a job runs: lines for people, and one line of JSON for scripts."""

from __future__ import annotations

import os

from slicer.kernel import proc
from slicer.kernel.proc import now_s
from slicer.quantity import format_duration
from slicer.text import command_text, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.errors import SlicerError
    from slicer.model import Busy, Lease, Outcome

PREFIX = "slicer: "
_TOLD_AGAIN_S = 5.0  # each repetition reads the ledger


def line(text: str) -> None:
    """Write one line to stderr. A closed or full stderr stops no job."""
    _end_drawn()
    _write(PREFIX + visible(text.replace("\n", " ").replace("\t", " ")) + "\n")


def cut(what: str) -> None:
    """Tell a person at a terminal that the output shows only ``what``."""
    if os.isatty(2):
        line(f"{what}; -n 0 shows all")


_drawn = False  # whether draw() wrote the terminal's last line, which has no newline yet


def draw(text: str) -> None:
    """Write one line to the terminal, in place of the last one drawn."""
    global _drawn
    shown = visible(f"{PREFIX}{text}")[: max(1, os.get_terminal_size(2).columns - 1)]
    _write(f"\r\x1b[K{shown}" if _drawn else shown)
    _drawn = True


def _has_foreground() -> bool:
    """Whether stderr is a terminal and we are in its foreground. If not, a shell has its prompt there."""
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False


def _end_drawn() -> None:
    global _drawn
    if _drawn:
        _write("\n")
    _drawn = False


def error(failure: SlicerError) -> int:
    """Print an error as one line: what was wrong, where, and what to do. Returns its exit code."""
    line(str(failure))
    return failure.exit_code


def error_json(failure: SlicerError) -> int:
    """Print an error as one line of JSON. Returns its exit code."""
    json_line(error_dict(failure))
    return failure.exit_code


def error_dict(failure: SlicerError) -> dict[str, str | None]:
    """An error as data; ``where`` and ``hint`` are null if they are empty."""
    where, hint = failure.where or None, failure.hint or None
    return {"error": failure.kind, "message": failure.message, "where": where, "hint": hint}


hears: Callable[[str], bool] | None = None  # all that is said; whether it need not go to stderr


def _write(text: str) -> None:
    if hears is not None and hears(text):
        return
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


class Messages:
    """Messages about one job. ``verbosity`` is -1 for errors only, 0 for what matters, 1 for everything."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity
        self._has_waited = False
        self._waits = False

    def notice(self, text: str) -> None:
        if self._verbosity >= 0:
            line(text)

    def warning(self, text: str) -> None:
        line(text)

    def waiting(self, busy: Busy) -> None:
        self._has_waited = self._waits = True
        if not _has_foreground():
            self.notice(f"waiting for {_busy_text(busy)}")

    def still_waiting(self, busy: Busy) -> float | None:
        """Keep the line up to date on a terminal. In a file, lines would pile up."""
        if self._verbosity < 0 or not os.isatty(2):
            return None
        if _has_foreground():
            room = os.get_terminal_size(2).columns - len(f"{PREFIX}waiting for ") - 1
            draw(f"waiting for {_busy_text(busy, most=max(1, room))}")
        return _TOLD_AGAIN_S

    def interrupted(self) -> None:
        """A signal ended the job before its command began."""
        if self._waits:
            self.notice("no longer waiting")

    def acquired(self, lease: Lease, waited_s: float) -> None:
        self._waits = False
        # After a message about the wait, say that it is over. Without a wait, say this only with -v.
        if self._verbosity < 0 or (self._verbosity == 0 and not self._has_waited):
            return
        after = f" after {format_duration(waited_s)}" if self._has_waited else ""
        from slicer.job.words import describe_resources

        what = describe_resources(len(lease.gpus), lease.slots, lease.vram_mib)
        told = f"{what} not free{after}: running anyway" if lease.forced else f"acquired {what}{after}"
        line(f"{told} · {lease.unit or lease.job}")

    def blocked(self, busy: Busy, waited_s: float | None, data: dict[str, Any], *, as_json: bool) -> None:
        """The job does not wait, or no longer. A program gets ``data``, a person at a terminal words."""
        if waited_s is not None:
            self.notice(f"gave up after {format_duration(waited_s)}: no {_busy_text(busy).partition(' ')[2]}")
        if as_json or not os.isatty(2):
            json_line(data)
        elif waited_s is None:
            line(f"not started: it would wait for {_busy_text(busy)}")

    def finished(self, outcome: Outcome) -> None:
        self.notice(describe_outcome(outcome))
        if self._verbosity >= 1 and outcome.not_enforced:
            line(f"not enforced here: {', '.join(outcome.not_enforced)}")


def _busy_text(busy: Busy, most: int = 0) -> str:
    from slicer.job.words import describe_busy
    from slicer.kernel.users import other_user

    return describe_busy(busy, now_s(), other_user=other_user, most=most)


def describe_outcome(outcome: Outcome) -> str:
    """The last line about a job: how it ended and what it used."""
    from slicer.job.words import describe_usage, why_ended

    why = why_ended(outcome)
    facts = [f"exit {outcome.exit_code}{f' ({why})' if why else ''}", format_duration(outcome.wall_s)]
    facts += describe_usage(outcome)
    if outcome.leftovers:
        facts.append(f"{outcome.leftovers} leftover process{'es' if outcome.leftovers > 1 else ''} ended")
    if outcome.sharing is not None:
        from slicer.share import details

        facts += filter(None, (details.problem(outcome.sharing, outcome.exit_code),))
    name = outcome.name or ("ended" if outcome.exit_code else "done")
    return f"{name}: {' · '.join(facts)}"


def holder_dict(lease: Lease, now: float) -> dict[str, Any]:
    """A lease's holder for ``--no-wait`` and ``status --json``; times in seconds."""
    from slicer.kernel.users import user_name
    from slicer.placement.decision import expected_remaining

    left = expected_remaining(lease, now)
    return _holder(
        lease.name or lease.command or lease.job, lease.pid, lease.command, user=user_name(lease.uid),
        unit=lease.unit or None, held_for=round(now - lease.since_s, 1),
        expected_remaining=None if left is None else round(left, 1),
    )  # fmt: skip


def _outsider_dict(pid: int) -> dict[str, Any]:
    """Like :func:`holder_dict`, for a process that holds the plain lock of scripts."""
    command = proc.command_line(pid)
    return _holder(command[0] if command else "", pid, command_text(command))


def _holder(name: str, pid: int, command: str, **known: object) -> dict[str, Any]:
    unknown = dict.fromkeys(("user", "unit", "held_for", "expected_remaining"))
    return {"name": name, "pid": pid, **unknown, "command": command, **known}


def json_line(data: dict[str, Any]) -> None:
    import json

    _write(json.dumps(data) + "\n")


def busy_dict(busy: Busy) -> dict[str, Any]:
    """The busy resource and its holder: the one line of JSON for ``--no-wait`` (B1)."""
    from slicer.placement.decision import first_to_finish

    now = now_s()
    lease = first_to_finish(busy.holders, now)
    holder = holder_dict(lease, now) if lease else _outsider_dict(busy.outsider) if busy.outsider else None
    which = {"slot": busy.slot} if busy.kind == "slot" else {}
    policy = {"policy": busy.why} if busy.why else {}
    return {"error": f"{busy.kind}-busy", **which, "holder": holder, **policy}
