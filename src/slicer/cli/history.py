"""``slicer history``: how jobs ended and what they used."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click

from slicer.broker import accounts
from slicer.broker.accounts import AccountRow
from slicer.cli import common, drawing, history_plot, output, say
from slicer.cli.history_plot import Plotted
from slicer.cli.job_register import JobRegister, settle
from slicer.cli.job_register import filters as filters_of
from slicer.cli.usage import show_sums, waited
from slicer.columns import Line
from slicer.errors import UsageError
from slicer.job.find import UnknownJob
from slicer.job.words import ENDED_BY
from slicer.kernel.signals import signal, signal_name
from slicer.kernel.users import group_name, user_name
from slicer.model import GAVE_WAY, Git, Outcome, PastAttempt
from slicer.outcome import samples
from slicer.outcome.history import default_path, read
from slicer.outcome.outcome_file import outcome_json
from slicer.outcome.sums import BY, Sum, count, last_indices, sums
from slicer.quantity import format_cpus, format_duration, format_mib, format_size
from slicer.record import as_dict, record
from slicer.share.details import details as sharing_rows
from slicer.text import command_text, one_line, slots_words, visible

_SHORT_ID = 8
_HASH = 12  # of the digits of a commit, which tell it from all others
_MOST_COMMAND = 160
_LAST, _LAST_LINES = "last lines", 3
_COMMAND = 32  # columns of a terminal for the command, before other figures have room
_TAIL = "CPU>!3 | MEMORY>!2 | VRAM>!1 | WAITED>!4 | NAME: COMMAND"
_FULL_DATE_S = 300 * 86400


@click.command(
    "history",
    epilog="""\
\b
Examples:
  slicer history -n 5
      The last five jobs.
  slicer history train
      Every figure about the job of that name.
  slicer history --since yesterday --failed
      What went wrong since yesterday's midnight.
  slicer history --since monday --by profile
      Runs, hours, waits and GPU memory of each profile this week.
  sudo slicer history --all-users --since 1d
      Everybody's jobs of the last 24 hours, if there is a broker.
  slicer history --json -n 0 --failed | jq '.outcomes[].job'
      All jobs that failed, for a script.

\b
CPU is CPU time; MEMORY the most that was in use at once, VRAM the same on one
GPU; WAITED the time from the start of slicer until the lease. "-": unknown.
A narrow terminal shows fewer columns.

\b
TIME counts back from now (2h, 7d), or is a local time: today, yesterday,
monday, 2026-11-20, "2026-11-20 14:00". A day means its beginning.

\b
With --by, GPU HOURS are hours that jobs held a GPU, times their GPUs; WAITED
is the median; OF VRAM is the most of its declared GPU memory that a job used:
far below 100%, --vram may be smaller.
docs/json.md describes the output of --json.""",
)
@click.argument("job", required=False)
@click.option(
    "-n", "--number", type=click.IntRange(min=0), metavar="N", default=20, show_default=True,
    help="Show the last N jobs, or N lines of --by; 0: all.",
)  # fmt: skip
@click.option("--name", metavar="PATTERN", help="Only jobs with this name; a shell pattern such as 'train*'.")
@click.option("--since", metavar="TIME", help="Only jobs that began then or later.")
@click.option("--until", metavar="TIME", help="Only jobs that began before that.")
@click.option("--failed", is_flag=True, help="Only jobs that failed; not those that you stopped.")
@click.option("--by", type=click.Choice(BY), help="Sum the jobs up, with one line for each.")
@click.option("--all-users", is_flag=True, help="For root: everybody's jobs, as the broker recorded them.")
@click.option(
    "--plot", metavar="[FILE]", is_flag=False, flag_value="",
    help="Draw what JOB used over time: here, or into an .svg or .png.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    job: str | None, number: int, name: str | None, since: str | None, until: str | None, failed: bool,
    by: str | None, all_users: bool, plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show how the last jobs ended and what they used, the newest last.

    With JOB, as in `slicer logs`: every figure about it, or a list if several jobs have that name.
    """
    if plot is not None:
        _check_plot(job, plot, as_json)
    began = {"since": common.since(since), "until": common.since(until, "--until")}
    filters = {"name": name, **began, "failed": failed}
    source = _source(all_users=all_users)
    if not all_users:
        settle()
    if by is not None:
        if job is not None:
            raise UsageError("sums up many jobs, not one", where="--by", hint=f"--name {shlex.quote(job)}")
        indices = last_indices(default_path()) if by == "gpu" else {}
        show_sums(*source.sums(source.path, by, **filters), by, number, indices, as_json=as_json)
        return
    filters = filters_of(partial(source.read, source.path), job, filters)
    found = source.read(source.path, limit=number + 1 if number else None, **filters)
    if job is not None and not found:
        hint = "leave out the other options" if since or until or failed or name else ""
        if hint or all_users:
            raise UnknownJob(f"no ended job {job!r}", where=source.path, hint=hint)
        found = [JobRegister().ended(job)]
    has_more = 0 < number < len(found)
    found = found[: number or None]
    found.reverse()  # the newest goes right above the prompt
    if plot is not None:
        history_plot.show(source.plotted(found[-1]), plot)
        return
    if as_json:
        data = {source.word: [source.data(each) for each in found], "has_more": has_more}
        if job is not None and len(found) == 1:
            data["samples"] = source.plotted(found[0]).series
        output.show_json(data)
        return
    if job is not None and len(found) == 1:
        output.show(source.details(found[0]), cuts=all_users)
    else:
        none = "No such jobs." if any(filters.values()) else "No jobs yet."
        output.show(source.table(found, time.time()) if found else [Line(none)])
    if has_more:
        say.cut(f"the last {number} of {source.count(source.path, **filters)}")


@record
class _Source:
    """Where jobs that have ended are found, and how to show them."""

    word: str  # for them in JSON
    path: str
    read: Callable[..., list[Any]]  # the newest first; arguments as of slicer.outcome.history.read
    count: Callable[..., int]
    sums: Callable[..., tuple[list[Sum], Sum]]
    data: Callable[[Any], dict[str, Any]]
    details: Callable[[Any], list[Line]]
    table: Callable[[list[Any], float], list[Line]]
    plotted: Callable[[Any], Plotted]


def _check_plot(job: str | None, path: str, as_json: bool) -> None:
    if as_json:
        raise click.UsageError("--plot and --json exclude each other: --json has the samples of one JOB")
    if path:
        drawing.check(path, "JOB comes first: slicer history JOB --plot FILE.svg")
    if job is None:
        raise click.UsageError("--plot draws one job: name it")


def _source(*, all_users: bool) -> _Source:
    """The user's own history, or everybody's jobs, as the broker recorded them."""
    if not all_users:
        return _Source("outcomes", default_path(), read, count, sums, outcome_json, details, table, plotted)
    if os.geteuid():
        hint = "slicer usage shows what your own jobs used"
        raise UsageError("only root may see the jobs of all users", where="--all-users", hint=hint)

    def counted(path: str, **filters: Any) -> int:
        return accounts.sums(path, "user", **filters)[1].runs

    return _Source(
        "jobs", accounts.PATH, accounts.jobs, counted, accounts.sums, row_json, row_details, row_table,
        row_plotted,
    )  # fmt: skip


def table(outcomes: list[Outcome], now: float) -> list[Line]:
    """One line a job. ``now`` is in seconds since the epoch."""
    rows = [
        (
            _when(outcome.started_at, now),
            outcome.job[:_SHORT_ID],
            ended(outcome),
            format_duration(outcome.wall_s) if outcome.wall_s or outcome.reason != "unknown" else "-",
            format_cpus(outcome.gpu_indices) or "-",
            _time(outcome.usage.cpu_s),
            format_size(outcome.usage.memory_peak_bytes),
            format_mib(max(outcome.vram_peak_mib, default=None)),
            waited(outcome.waited_s),
            f"{outcome.name}: " * bool(outcome.name) + command_text(outcome.command),
        )
        for outcome in outcomes
    ]
    return output.table(f"STARTED | JOB | ENDED | WALL> | GPU!5 | {_TAIL}", rows, least=_COMMAND)


def plotted(outcome: Outcome) -> Plotted:
    """What the job used over time, to be drawn. Raises StateError."""
    series = samples.read(default_path(), (outcome.job,)).get(outcome.job)
    title = _plot_title(outcome.job, outcome.name, ended(outcome), outcome.wall_s)
    names = tuple(f"GPU {index}" for index in outcome.gpu_indices)
    return Plotted(title, series, names or _short(outcome.gpus), outcome.vram_mib)


def _short(gpus: Iterable[str]) -> tuple[str, ...]:
    return tuple(uuid[:_SHORT_ID] for uuid in gpus)


def _plot_title(job: str, name: str, how: str, length_s: float) -> str:
    called = f"{name} ({job[:_SHORT_ID]})" if name else job[:_SHORT_ID]
    return f"{called}: {how} after {format_duration(length_s)}"


def ended(outcome: Outcome | PastAttempt) -> str:
    """How a job ended, in a word or two."""
    if outcome.ended_by == GAVE_WAY:
        return GAVE_WAY
    if outcome.reason in ("oom-kill", "timeout", "stopped"):
        return outcome.reason
    if outcome.signal is not None:
        return signal_name(outcome.signal)
    if outcome.reason == "unknown":
        return "unknown" if outcome.wall_s else "lost"
    return "ok" if outcome.exit_code == 0 else f"exit {outcome.exit_code}"


def attempt_rows(attempts: Iterable[PastAttempt]) -> list[tuple[str, str]]:
    """How each of a job's attempts ended, as in "2: exit 3 after 12m, from 2026-11-28 22:00:30 +0100"."""
    return [
        (
            f"attempt {each.number}",
            f"{ended(each)} after {format_duration(each.wall_s)}, from {_precisely(each.started_at)}",
        )
        for each in attempts
    ]


def _when(started_at: float, now: float) -> str:
    form = "%m-%d %H:%M" if now - started_at < _FULL_DATE_S else "%Y-%m-%d"
    return time.strftime(form, time.localtime(started_at))


def _precisely(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def details(outcome: Outcome, more: Iterable[tuple[str, str]] = ()) -> list[Line]:
    """What it was, how it ended, its last words, the figures that there are, and ``more`` rows."""
    from slicer.cli.logs import tail

    used = outcome.usage
    held = [f"GPU {uuid}" for uuid in outcome.gpus]
    if len(outcome.gpu_indices) == len(outcome.gpus):
        held = [f"GPU {no} ({uuid})" for no, uuid in zip(outcome.gpu_indices, outcome.gpus, strict=True)]
    held += slots_words(outcome.slots)
    code = f"{ended(outcome)}, exit code {outcome.exit_code}"
    if outcome.signal is not None and signal_name(outcome.signal) != ended(outcome):
        code += f", {signal_name(outcome.signal)}"
    if outcome.ended_by:
        code += f", {ENDED_BY[outcome.ended_by]}"
        if outcome.ended_by == "terminal":
            code += f" ({_AT_TERMINAL.get(outcome.signal or 0, 'a key')})"
    cpu = f"{_time(used.cpu_s)} (user {_time(used.cpu_user_s)}, system {_time(used.cpu_system_s)})"
    paused = outcome.paused_s is not None and outcome.paused_s >= 0.001
    last = tail(outcome.log, _LAST_LINES) if outcome.log else []
    backend = f"{outcome.backend}, {outcome.manager} manager" if outcome.unit else outcome.backend
    return _told(
        [
            ("job", outcome.job),
            ("name", outcome.name),
            ("command", command_text(outcome.command, limit=100_000)),
            ("ended", code),
            *(("" if number else _LAST, line) for number, line in enumerate(last)),
            *attempt_rows(outcome.attempts),
            ("started", _precisely(outcome.started_at)),
            ("waited", format_duration(outcome.waited_s)),
            ("wall time", format_duration(outcome.wall_s)),
            ("paused", f"for {_time(outcome.paused_s)} of it" if paused else ""),
            ("held", ", ".join(held) + " (not free: forced)" * outcome.forced),
            ("GPU memory", _vram(outcome)),
            ("CPU time", cpu if used.cpu_s is not None else ""),
            ("throttled", _some(format_duration, used.throttled_s)),
            ("memory peak", _some(format_size, used.memory_peak_bytes)),
            ("memory kills", str(used.oom_kills or "")),
            ("read", _some(format_size, used.io_read_bytes)),
            ("written", _some(format_size, used.io_write_bytes)),
            ("stalled", _stalled(outcome)),
            ("leftovers", f"{outcome.leftovers} ended" if outcome.leftovers else ""),
            ("profile", outcome.profile),
            ("user", f"{user_name(outcome.uid)} ({outcome.uid})"),
            ("unit", f"{outcome.unit} in {outcome.slice}" if outcome.unit else ""),
            ("backend", backend),
            ("directory", outcome.directory),
            ("code", _code(outcome.git) if outcome.git is not None else ""),
            ("log", outcome.log),
            ("enforced", ", ".join(outcome.enforced)),
            ("not enforced", ", ".join(outcome.not_enforced)),
            ("changed", _changed(outcome)),
            *(sharing_rows(outcome.sharing) if outcome.sharing is not None else ()), *more,
        ]
    )


def _told(rows: Iterable[tuple[str, str]]) -> list[Line]:
    """The rows that say something; an empty line among the last ones of a log does."""
    return output.rows([row for row in rows if row[1] or row[0] in ("", _LAST)])


def _some(form: Callable[[Any], str], value: Any) -> str:
    return form(value) if value is not None else ""


_AT_TERMINAL = {
    int(signal.SIGHUP): "it was closed", int(signal.SIGINT): "Ctrl-C", int(signal.SIGQUIT): "Ctrl-\\",
}  # fmt: skip


def _changed(outcome: Outcome) -> str:
    """The properties that were changed while the job ran, and the origin of each change."""
    changes = (("slicer set", outcome.changed), ("from outside", outcome.changed_outside))
    return "; ".join(f"{', '.join(names)} ({by})" for by, names in changes if names)


def _code(git: Git) -> str:
    """Which commit ran, and whether that was all: "main at 5a3c9f01d2e4, changed (diff 0c1d2e3f4a5b)"."""
    on = f"{visible(git.branch)} at " * bool(git.branch)
    changed = {None: ", changed or not: not known", 0: "", 1: f", changed (diff {git.diff[:_HASH]})"}
    return f"{on}{git.commit[:_HASH]}{changed[git.dirty]}"


def _vram(outcome: Outcome) -> str:
    if not outcome.gpus:
        return ""
    declared = "not declared"
    if outcome.vram_mib is not None:
        declared = f"{format_mib(outcome.vram_mib)} declared"
    peaks = ", ".join(map(format_mib, outcome.vram_peak_mib)) or "-"
    return f"{declared}, peak {peaks}"


def _stalled(outcome: Outcome) -> str:
    """Pressure: how long processes of the job waited for each resource."""
    used = outcome.usage
    waits = (("CPU", used.pressure_cpu_s), ("memory", used.pressure_memory_s), ("IO", used.pressure_io_s))
    return ", ".join(f"{_time(seconds)} for {what}" for what, seconds in waits if seconds)


# -- of all users, for root ---------------------------------------------------------------------------------


def row_table(found: list[AccountRow], now: float) -> list[Line]:
    """One line a job. ``now`` is in seconds since the epoch."""
    cells = [
        (
            _when(each.granted_at, now), user_name(each.uid), each.job[:_SHORT_ID], row_ended(each),
            format_duration(each.held_s), str(len(each.gpus.split())) if each.gpus else "-",
            _time(each.cpu_s), format_size(each.memory_peak_bytes), format_mib(each.vram_peak_mib),
            waited(each.waited_s), _row_what(each),
        )
        for each in found
    ]  # fmt: skip
    return output.table(f"STARTED | USER | JOB | ENDED | FOR> | GPUS> | {_TAIL}", cells, least=_COMMAND)


def row_plotted(each: AccountRow) -> Plotted:
    """What the job used over time, to be drawn. Raises StateError."""
    series = accounts.samples(accounts.PATH, (each.grant_key,)).get(each.grant_key)
    gpus = _short(each.gpus.split())
    title = _plot_title(each.job, each.name, row_ended(each), each.held_s)
    return Plotted(title, series, gpus, each.vram_mib // len(gpus) if gpus else None)


def row_details(each: AccountRow) -> list[Line]:
    gpus = [f"GPU {uuid}" for uuid in each.gpus.split()]
    code = row_ended(each) if each.exit_code is None else f"{row_ended(each)}, exit code {each.exit_code}"
    return _told(
        [
            ("job", each.job),
            ("name", each.name),
            ("command", visible(each.command)),
            ("profile", each.profile),
            ("user", f"{user_name(each.uid)} ({each.uid})"),
            ("booked for", f"{group_name(each.gid)} ({each.gid})"),
            ("held", ", ".join([*gpus, *each.slots.split()])),
            ("as GPUs", f"{each.gpu_rate:.2f}"),
            ("GPU memory", f"{format_mib(each.vram_mib)} held" if each.vram_mib else ""),
            ("GPU peak", _some(format_mib, each.vram_peak_mib)),
            ("granted", _precisely(each.granted_at)),
            ("waited", format_duration(each.waited_s)),
            ("ended", code),
            ("held for", format_duration(each.held_s)),
            ("CPU time", _some(format_duration, each.cpu_s)),
            ("memory peak", _some(format_size, each.memory_peak_bytes)),
        ]
    )


def row_ended(each: AccountRow) -> str:
    """How a job ended, in a word or two. Unknown if its client was killed with it."""
    if each.reason in ("oom-kill", "timeout", "stopped", "signal"):
        return each.reason
    if each.exit_code is None or each.reason == "unknown":
        return "unknown"
    return "ok" if each.exit_code == 0 else f"exit {each.exit_code}"


def row_json(each: AccountRow) -> dict[str, Any]:
    data = {name: value for name, value in as_dict(each).items() if name != "grant_key"}
    data = {name: round(value, 6) if isinstance(value, float) else value for name, value in data.items()}
    slots = dict(word.rsplit("=", 1) for word in each.slots.split())
    return {
        **data, "user": user_name(each.uid), "group": group_name(each.gid), "gpus": each.gpus.split(),
        "slots": {name: int(count) for name, count in slots.items()},
    }  # fmt: skip


def _row_what(each: AccountRow) -> str:
    command = one_line(each.command, _MOST_COMMAND)
    if each.name == os.path.basename(each.command.partition(" ")[0]):
        return command  # the job has no name of its own
    return f"{each.name}: {command}" if each.name and command else each.name or command or "-"
