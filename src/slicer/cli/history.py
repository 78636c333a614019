"""``slicer history``: how jobs ended and what they took."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import click

from slicer.cli import output, say
from slicer.cli.output import Column
from slicer.cli.since import since as began_since
from slicer.columns import Line
from slicer.errors import UsageError
from slicer.kernel.signals import signal, signal_name
from slicer.model import Outcome, job_of_unit
from slicer.outcome.history import default_path, read
from slicer.outcome.outcome_file import outcome_json
from slicer.quantity import format_duration, format_size
from slicer.share.words import details as sharing_rows
from slicer.text import command_text, slots_words

_SHORT_ID = 8
_COMMAND = 32  # columns of a terminal, before other figures have room
_FULL_DATE_S = 300 * 86400


class UnknownOutcome(UsageError):
    kind = "unknown-job"


@click.command(
    "history",
    short_help="Show how jobs ended and what they took.",
    epilog="""\
\b
Examples:
  slicer history -n 5
      The last five jobs.
  slicer history train
      All that is known about the job of that name.
  slicer history --since 1d --name 'sweep*'
      What the jobs of a sweep did in the last 24 hours.
  sudo slicer history --all-users --since 1d
      What everybody's jobs did in the last 24 hours, where there is a broker.
  slicer history --json -n 0 | jq '.outcomes[] | select(.exit_code != 0)'
      All that ended badly, for a script.

\b
CPU is CPU time; MEMORY the most that was in use at once, VRAM on one GPU;
WAITED the time from the start of slicer until the lease. "-": not known here.
A narrow terminal shows fewer of them.
The form of --json is in docs/json.md.""",
)
@click.argument("job", required=False)
@click.option(
    "-n", "--number", type=click.IntRange(min=0), metavar="N", default=20, show_default=True,
    help="The last N jobs; 0: all.",
)  # fmt: skip
@click.option("--name", metavar="PATTERN", help="Only jobs of that name; a shell pattern, such as 'train*'.")
@click.option("--since", metavar="DURATION", help="Only jobs that began within this time (2h, 7d).")
@click.option("--all-users", is_flag=True, help="For root: the jobs of everybody, as the broker knows them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    job: str | None, number: int, name: str | None, since: str | None, all_users: bool, as_json: bool
) -> None:
    """Show how the last jobs ended and what they took, the newest last.

    With JOB (an id or its beginning, a unit or a name): all that is known about it, or a list when several
    have that name.
    """
    limits = {"limit": number + 1 if number else None, "name": name, "since": began_since(since)}
    is_narrowed = bool(since or name or job)
    if all_users:
        _show_all_users(job, number, is_narrowed, as_json, limits)
        return
    path = default_path()
    outcomes = find_outcomes(path, job, **limits)
    _check_found(job, outcomes, path)
    has_more = 0 < number < len(outcomes)
    outcomes = outcomes[: number or None]
    outcomes.reverse()  # the newest where the eye is: above the prompt
    if as_json:
        output.show_json({"outcomes": [outcome_json(each) for each in outcomes], "has_more": has_more})
    elif job is not None and len(outcomes) == 1:
        output.show(details(outcomes[0]), cuts=False)
    else:
        output.show(table(outcomes, time.time()) if outcomes else [Line("No jobs yet.")])
        _say_more(number, is_narrowed and has_more)


def _show_all_users(
    job: str | None, number: int, is_narrowed: bool, as_json: bool, limits: dict[str, Any]
) -> None:
    from slicer.broker.accounts.reading import PATH
    from slicer.cli import history_all

    if os.geteuid():
        hint = "slicer usage shows what your own jobs used"
        raise UsageError("only root may see the jobs of all users", where="--all-users", hint=hint)
    found = history_all.find(PATH, job, **limits)
    _check_found(job, found, PATH)
    has_more = 0 < number < len(found)
    found = found[: number or None]
    found.reverse()
    if as_json:
        output.show_json({"jobs": [history_all.row_json(each) for each in found], "has_more": has_more})
    elif job is not None and len(found) == 1:
        output.show(history_all.details(found[0]))
    else:
        output.show(history_all.table(found, time.time()) if found else [Line("No jobs yet.")])
        _say_more(number, is_narrowed and has_more)


def _check_found(job: str | None, found: Sequence[object], path: str) -> None:
    if job is not None and not found:
        hint = "slicer status shows those that run"
        raise UnknownOutcome(f"no ended job {job!r}", where=path, hint=hint)


def _say_more(number: int, is_wanted: bool) -> None:
    """Who asked for nothing in particular expects no more."""
    if is_wanted:
        say.line(f"only the last {number} of them: -n 0 shows all")


def find_outcomes(path: str, job: str | None, **limits: Any) -> list[Outcome]:
    """The outcomes that ``job`` means, as in `slicer stop`: an id or unit, a name, the beginning of an id.

    ``limits`` are arguments of :func:`slicer.outcome.history.read`.
    """
    if job is None:
        return read(path, **limits)
    word = job_of_unit(job)
    exact = [outcome for outcome in read(path, job=word, **limits) if outcome.job == word]
    if exact:
        return exact
    named = [] if limits.get("name") else read(path, **{**limits, "name": _literal(job)})
    return named or read(path, job=word, **limits)


def _literal(name: str) -> str:
    """A pattern that matches this name alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def table(outcomes: list[Outcome], now: float) -> list[Line]:
    """One line a job. ``now`` is in seconds since the epoch."""
    columns = (
        Column("STARTED"), Column("JOB"), Column("ENDED"), Column("WALL", right=True),
        Column("CPU", right=True, spare=3), Column("MEMORY", right=True, spare=2),
        Column("VRAM", right=True, spare=1), Column("WAITED", right=True, spare=4), Column("NAME: COMMAND"),
    )  # fmt: skip
    rows = [
        (
            _when(outcome.started_at, now),
            outcome.job[:_SHORT_ID],
            ended(outcome),
            format_duration(outcome.wall_s),
            _time(outcome.usage.cpu_s),
            format_size(outcome.usage.memory_peak_bytes),
            format_size(max(outcome.vram_peak_mib) << 20) if outcome.vram_peak_mib else "-",
            format_duration(outcome.waited_s) if outcome.waited_s >= 0.1 else "-",
            _what(outcome),
        )
        for outcome in outcomes
    ]
    return output.table(columns, rows, least=_COMMAND)


def _what(outcome: Outcome) -> str:
    command = command_text(outcome.command)
    return f"{outcome.name}: {command}" if outcome.name else command


def ended(outcome: Outcome) -> str:
    """How a job ended, in a word or two."""
    if outcome.reason in ("oom-kill", "timeout", "stopped"):
        return outcome.reason
    if outcome.signal is not None:
        return signal_name(outcome.signal)
    return "ok" if outcome.exit_code == 0 else f"exit {outcome.exit_code}"


def _when(started_at: float, now: float) -> str:
    form = "%m-%d %H:%M" if now - started_at < _FULL_DATE_S else "%Y-%m-%d"
    return time.strftime(form, time.localtime(started_at))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def details(outcome: Outcome) -> list[Line]:
    """Every field of one outcome."""
    used = outcome.usage
    held = [f"GPU {uuid}" for uuid in outcome.gpus]
    held += slots_words(outcome.slots)
    code = f"{ended(outcome)}, exit code {outcome.exit_code}"
    if outcome.signal is not None and signal_name(outcome.signal) != ended(outcome):
        code += f", {signal_name(outcome.signal)}"
    if outcome.ended_by:
        code += f", {_BY[outcome.ended_by]}"
        if outcome.ended_by == "terminal":
            code += f" ({_AT_TERMINAL.get(outcome.signal or 0, 'a key')})"
    return output.rows(
        [
            ("job", outcome.job),
            ("name", outcome.name or "-"),
            ("command", command_text(outcome.command, limit=100_000)),
            ("profile", outcome.profile),
            ("user", _user(outcome.uid)),
            ("unit", f"{outcome.unit} in {outcome.slice}" if outcome.unit else "none"),
            ("backend", f"{outcome.backend}, {outcome.manager} manager" if outcome.unit else outcome.backend),
            ("held", (", ".join(held) or "nothing") + (" (not free: forced)" if outcome.forced else "")),
            ("GPU memory", _vram(outcome)),
            ("started", time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(outcome.started_at))),
            ("waited", format_duration(outcome.waited_s)),
            ("ended", code),
            ("wall time", format_duration(outcome.wall_s)),
            ("paused", _paused(outcome)),
            (
                "CPU time",
                f"{_time(used.cpu_s)} (user {_time(used.cpu_user_s)}, system {_time(used.cpu_system_s)})",
            ),
            ("throttled", _time(used.throttled_s)),
            ("memory peak", format_size(used.memory_peak_bytes)),
            ("memory kills", "-" if used.oom_kills is None else str(used.oom_kills)),
            ("read", format_size(used.io_read_bytes)),
            ("written", format_size(used.io_write_bytes)),
            ("stalled", _stalled(outcome)),
            ("leftovers", f"{outcome.leftovers} ended" if outcome.leftovers else "none"),
            ("enforced", ", ".join(outcome.enforced) or "nothing"),
            ("not enforced", ", ".join(outcome.not_enforced) or "nothing"),
            ("changed", _changed(outcome)),
            *(sharing_rows(outcome.sharing) if outcome.sharing is not None else ()),
        ]
    )


_BY = {
    "slicer stop": "by slicer stop",
    "slicer cap": "by slicer, because it got past its cap (over_cap)",
    "slicer queue": "by its queue",
    "slicer run": "by a signal to slicer run",
    "terminal": "from the terminal",
    "systemd": "from outside (systemctl stop or kill)",
    "shutdown": "at the machine's shutdown, or the user's last logout",
    "outside": "from outside, together with its keeper",
    "caller": "with the call of the wrapped program, which was killed",
}


_AT_TERMINAL = {
    int(signal.SIGHUP): "it was closed", int(signal.SIGINT): "Ctrl-C", int(signal.SIGQUIT): "Ctrl-\\",
}  # fmt: skip


def _paused(outcome: Outcome) -> str:
    if outcome.paused_s is None:
        return "-"
    return f"for {format_duration(outcome.paused_s)} of it" if outcome.paused_s >= 0.001 else "never"


def _changed(outcome: Outcome) -> str:
    """What was set while it ran, and by whom."""
    parts = []
    if outcome.changed:
        parts.append(f"{', '.join(outcome.changed)} (slicer set)")
    if outcome.changed_outside:
        parts.append(f"{', '.join(outcome.changed_outside)} (from outside)")
    return "; ".join(parts) or "nothing"


def _user(uid: int) -> str:
    from slicer.kernel.users import user_name

    return f"{user_name(uid)} ({uid})"


def _vram(outcome: Outcome) -> str:
    """What was declared for each GPU, and the most that was seen in use on each."""
    if not outcome.gpus:
        return "-"
    declared = "not declared"
    if outcome.vram_mib is not None:
        declared = f"{format_size(outcome.vram_mib << 20)} declared"
    peaks = ", ".join(format_size(mib << 20) for mib in outcome.vram_peak_mib) or "-"
    return f"{declared}, peak {peaks}"


def _stalled(outcome: Outcome) -> str:
    """Pressure: how long some process of the job waited for what."""
    used = outcome.usage
    waits = (("CPU", used.pressure_cpu_s), ("memory", used.pressure_memory_s), ("IO", used.pressure_io_s))
    return ", ".join(f"{_time(seconds)} for {what}" for what, seconds in waits)
