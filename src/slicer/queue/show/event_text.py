"""The events of a queue as lines of text, one line an event; and the summary at the end.

All functions are pure. No line contains control characters, whatever commands, names and errors it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from slicer.quantity import format_cpus, format_duration, short_mib
from slicer.queue.model import NEVER, Event, EventKind, JobRow, Status
from slicer.queue.show.words import (
    advice,
    command_of,
    counts,
    deviation,
    ended,
    enough_vram,
    gpus,
    left,
    used,
    who,
)
from slicer.record import replace
from slicer.text import but_numbers, counted, one_line, quote

# "bad": a job did not succeed. "warning": something may go wrong, or somebody has to act.
Level = Literal["info", "good", "warning", "bad"]

_STATUS_LEVELS: dict[Status, Level] = {"ok": "good", "cancelled": "info"}


def _log(event: Event) -> str:
    """The log's path, quoted for a shell, and the log's last line."""
    log = event.data.get("log_path") or event.data.get("log")
    last = _text(event, "last_line")
    return (f" (log: {quote(str(log))})" if log else "") + (f", last line: {last}" if last else "")


def _text(event: Event, key: str) -> str:
    found = event.data.get(key)
    return "" if found is None else one_line(str(found))


def _because(said: str, event: Event, key: str = "why") -> str:
    why = _text(event, key)
    return f"{said}: {why}" if why else said


def _figure(event: Event, key: str) -> int:
    return round(event.data.get(key) or 0)


def _mib(event: Event, key: str) -> str:
    """A size from the event's data; "" if it is missing."""
    return short_mib(_figure(event, key)) if event.data.get(key) is not None else ""


# -- the queue as a whole -----------------------------------------------------------------------------------


def _opened(event: Event) -> str:
    done = _figure(event, "done")
    parts = [f"{_figure(event, 'pending')} of {counted(_figure(event, 'total'), 'job')} to run"]
    if done:
        parts.append(f"{done} ended before")
    if event.data.get("resumed"):
        parts.append("resumed")
    where = f"; logs and status.txt in {_text(event, 'log_dir')}" if event.data.get("log_dir") else ""
    return ", ".join(parts) + where


def _file_changed(event: Event) -> str | None:
    told = [f"{_figure(event, key)} {key}" for key in ("added", "removed") if _figure(event, key)]
    return f"jobs file changed: {', '.join(told)}" if told else None


def _skipped(event: Event) -> str | None:
    number = _figure(event, "count")
    if not number:
        return None
    ended_as = event.data.get("counts", {})
    is_well = ended_as.keys() <= {"ok", "cancelled"}
    again = "--fresh runs all again" if is_well else "slicer queue retry runs failed ones again, --fresh all"
    return f"{counted(number, 'job')} ended in an earlier run: {counts(ended_as)} ({again})"


def _drained(event: Event) -> str:
    more = "; new lines in the jobs file are started as they come (Ctrl-C ends)"
    held = _figure(event, "held")
    but = f", but {counted(held, 'job')} held back" if held else ""
    return f"nothing is left to do{but}" + (more if event.data.get("watch") else "")


def _stopping(event: Event) -> str:
    running = _figure(event, "running")
    if not running:
        return "stopping: nothing new is started"
    verb, they = ("runs", "it is") if running == 1 else ("run", "they are")
    still = f"{counted(running, 'job')} still {verb}"
    return f"stopping: nothing new is started, {still}; asked once more, {they} ended"


_OF_THE_QUEUE: dict[EventKind, tuple[Level, Callable[[Event], str | None]]] = {
    "opened": ("info", _opened),
    "file-changed": ("info", _file_changed),
    "file-kept": (
        "warning",
        lambda event: _because("jobs file cannot be used, the last good one stays", event, "error"),
    ),
    "file-good": ("info", lambda event: "jobs file can be used again"),
    "skipped": ("info", _skipped),
    "waiting": ("info", lambda event: _because("waiting", event)),
    "drained": ("info", _drained),
    "stopping": ("info", _stopping),
    "ending": ("info", lambda event: "the running jobs are being ended"),
    "held-back": (
        "warning",
        lambda event: f"{_text(event, 'text')}; to start them: {_of_this(event, 'retry')}",
    ),
    "released": ("info", lambda event: f"jobs of {_text(event, 'group')} are no longer held back"),
    "stalled": ("warning", lambda event: _because("nothing is started for now", event)),
    "resumed": ("info", lambda event: "jobs are started again"),
    "warning": ("warning", lambda event: _text(event, "text") or "something is wrong"),
    "notice": ("info", lambda event: _text(event, "text") or None),
    "summary": ("info", lambda event: None),  # has lines of its own: summary_lines
}


# -- one job; the line begins with its name -----------------------------------------------------------------


def _reason(row: JobRow) -> str:
    """Why nothing is known of the job's command, in a sentence; "" if something is."""
    return row.reason if row.status in (*NEVER, "lost") else ""


def _where(row: JobRow) -> str:
    return f" on {gpus(row.gpu_indices)}" if row.gpu_indices else ""


def _started(event: Event, row: JobRow) -> str:
    again = f" again (attempt {row.attempt})" if row.attempt > 1 else ""
    # Without a declaration a job has its GPU to itself.
    declared = f" (declared {short_mib(row.declared_mib)})" if row.declared_mib else " (alone)"
    return f"started{again}{_where(row)}{declared if row.gpu_indices else ''}: {command_of(row)}"


def _adopted(event: Event, row: JobRow) -> str:
    return f"found running{_where(row)} for {format_duration(row.wall_s)}, taken over: {command_of(row)}"


def _usage(event: Event, row: JobRow) -> str | None:
    if not row.now_mib:
        return None
    now = ", ".join(map(short_mib, row.now_mib))
    declared = f", declared {short_mib(row.declared_mib)}" if row.declared_mib else ""
    peak = f" (peak {', '.join(map(short_mib, row.peak_mib))})" if row.peak_mib > row.now_mib else ""
    return f"uses {now} of {gpus(row.gpu_indices)}{declared}{peak}"


def _exceeds(event: Event, row: JobRow) -> str:
    used_mib, declared_mib = _figure(event, "used_mib"), _figure(event, "declared_mib")
    more = f" ({round((used_mib / declared_mib - 1) * 100)}% more)" if declared_mib else ""
    what = f"{short_mib(used_mib)} of GPU {_figure(event, 'gpu')}, declared {short_mib(declared_mib)}{more}"
    return f"uses {what}: what shares the GPU may run out of memory"


def _finished(event: Event, row: JobRow) -> str:
    attempts = f" (attempt {row.attempt})" if row.attempt > 1 or row.status == "oom" else ""
    behind = left(row) if row.status == "ok" and row.leftovers else ""
    facts = [fact for fact in (one_line(_reason(row)), behind, used(row), advice(row)) if fact]
    if row.status != "ok":
        facts.append(command_of(row) + _log(event))
    told = f": {'; '.join(facts)}" if facts else ""
    return f"{ended(row)}{attempts} after {format_duration(row.wall_s)}{told}"


def _retry(event: Event, row: JobRow) -> str:
    before, following = _mib(event, "declared_mib"), _mib(event, "next_mib")
    attempt = f" (attempt {_figure(event, 'attempt')} of {_figure(event, 'attempts')})"
    changed = following and before and before != following
    again = (f" with {following}" if following else "") + (f" instead of {before}" if changed else "")
    pause_s = event.data.get("again_in_s")
    again += f" in {format_duration(pause_s)}{_log(event)}" if pause_s else ""
    return f"{ended(replace(row, status=event.data.get('status', 'oom')))}{attempt}: again{again}"


_OF_A_JOB: dict[EventKind, tuple[Level, Callable[[Event, JobRow], str | None]]] = {
    "started": ("info", _started),
    "adopted": ("info", _adopted),
    "usage": ("info", _usage),
    "exceeds": ("warning", _exceeds),
    "idle": ("warning", lambda event, row: _text(event, "text") or None),
    "finished": ("info", _finished),
    "retry": ("warning", _retry),
    "infeasible": (
        "bad",
        lambda event, row: f"can never run here: {_text(event, 'reason')}; {command_of(row)}",
    ),
    "cancelling": ("info", lambda event, row: 'is being ended: its line says "cancel"'),
    "cancelled": ("info", lambda event, row: f"cancelled before it started: {command_of(row)}"),
    "requeued": ("warning", lambda event, row: _because("is to be started again", event)),
    "lost": ("bad", lambda event, row: f"lost: {one_line(row.reason)}; {command_of(row)}{_log(event)}"),
    "unrunnable": ("bad", lambda event, row: f"skipped: {_text(event, 'why')}; {command_of(row)}"),
}


def level(event: Event) -> Level:
    if event.kind == "finished" and event.job is not None:
        found = _STATUS_LEVELS.get(event.job.status, "bad")
        return "warning" if found == "good" and event.job.leftovers else found
    if event.kind == "summary":
        failed = event.data.get("failed") or event.data.get("earlier")
        is_odd = any(event.data.get(key) for key in ("under", "left", "held"))
        return "bad" if failed else "warning" if is_odd else "info"
    return (_OF_THE_QUEUE.get(event.kind) or _OF_A_JOB[event.kind])[0]


def line(event: Event, *, verbose: bool) -> str | None:
    """The event in one line, without the time; None: not shown. Raises ValueError if it lacks a job."""
    if event.kind == "usage" and not verbose:
        return None
    of_queue = _OF_THE_QUEUE.get(event.kind)
    if of_queue is not None:
        told = of_queue[1](event)
    elif event.job is None:
        raise ValueError(f"an event {event.kind!r} needs a job")
    else:
        told = _OF_A_JOB[event.kind][1](event, event.job)
        told = told and f"{who(event.job)} {told}"
    return f"WARN {told}" if told is not None and level(event) == "warning" else told


_EARLIER = 10  # named jobs among those that failed in an earlier run


# -- the summary --------------------------------------------------------------------------------------------


def summary_lines(event: Event) -> list[str]:
    """The lines of a "summary": the jobs that failed, those that fail alike in one, advice, and last the sum.

    Its data are ``counts`` (of each status), the rows ``failed``, ``earlier`` (failed in an earlier run),
    ``left`` (ok, but their processes were ended), ``under`` and ``over``, ``held`` (what is held back, in
    words), ``exit_code``, ``wall_s``, ``jobs_file`` and ``log_dir``; ``logs`` and ``last_lines`` (the number
    of a job to its log file's name, and to the last line in it).
    """
    data = event.data
    numbers: dict[Status, int] = data.get("counts", {})
    earlier: list[JobRow] = data.get("earlier", [])
    total = sum(numbers.values())
    duration = format_duration(data["wall_s"]) if "wall_s" in data else "unknown time"
    summed = f"{counted(total, 'job')} in {duration}: {counts(numbers)}" if total else "nothing left"
    summed += _failed_earlier(earlier)
    if data.get("exit_code") and (total or len(earlier) != 1):
        summed += f"; exit code {data['exit_code']}"
    if earlier and not total:
        them = "it" if len(earlier) == 1 else "them"
        summed += f"; to run {them} again: {_of_this(event, 'retry')}"
    said = _failed(data.get("failed", ()), data)
    said += [f"  WARN {who(row)} {left(row)}: {command_of(row)}" for row in data.get("left", ())]
    said += [f"  WARN {text}" for text in data.get("held", ())]
    said += [f"    to start them: {_of_this(event, 'retry')}"] if data.get("held") else []
    said += _declared(data.get("under", ()), "more") + _declared(data.get("over", ()), "less")
    if data.get("under") or data.get("over"):
        said.append(f"corrected declarations: {_of_this(event, 'suggest')}")
    return [*said, summed]


def _failed(rows: Sequence[JobRow], data: Mapping[str, Any]) -> list[str]:
    """The failed jobs, and why each failed: the last line of its log, or the queue's reason.

    Those whose ends are the same but for numbers (times, seeds, line numbers) share the first one's lines.
    """
    alike: dict[tuple[str, str], list[JobRow]] = {}
    for row in rows:
        alike.setdefault((ended(row), but_numbers(_why(row, data))), []).append(row)
    said: list[str] = []
    for (how, _), (row, *others) in alike.items():
        log = data.get("logs", {}).get(row.no)
        path = f"{data['log_dir']}/{log}" if data.get("log_dir") else log
        numbers = one_line(format_cpus(each.no for each in (row, *others)), 40)
        jobs = f"{len(others) + 1} jobs ({numbers}) {how}, as {who(row)}" if others else f"{who(row)} {how}"
        said.append(f"  {jobs}: {command_of(row)}" + (f" (log: {quote(path)})" if log else ""))
        why = _why(row, data)
        said += [f"    {one_line(why)}"] if why else []
    return said


def _why(row: JobRow, data: Mapping[str, Any]) -> str:
    return str(data.get("last_lines", {}).get(row.no) or _reason(row))


def _failed_earlier(rows: list[JobRow]) -> str:
    """As in "; job 1 failed earlier (143)"."""
    if not rows:
        return ""
    if len(rows) == 1:
        return f"; {who(rows[0])} failed earlier ({rows[0].exit_code})"
    shown = ", ".join(f"{row.no} ({row.exit_code})" for row in rows[:_EARLIER])
    more = f" and {len(rows) - _EARLIER} more" if len(rows) > _EARLIER else ""
    return f"; {len(rows)} jobs failed earlier: {shown}{more}"


def _of_this(event: Event, command: str) -> str:
    """The command line of ``slicer queue COMMAND`` for this queue."""
    names = (str(event.data.get(key, "")) for key in ("jobs_file", "log_dir"))
    return "slicer queue {} {} --log-dir {}".format(command, *map(quote, names))


def _declared(rows: Sequence[JobRow], how: str) -> list[str]:
    """The jobs that used ``how`` ("more" or "less") than declared."""
    if not rows:
        return []
    said = [f"{counted(len(rows), 'job')} used {how} than declared:"]
    for row in rows:
        percent = deviation(row)
        by = "" if percent is None else f" ({abs(percent)}% {how})"
        enough = f", {enough_vram(row)}" if row.peak_mib else ""
        said.append(f"  {who(row)}: {used(row) or 'use unknown'}{by}{enough}: {command_of(row)}")
    return said
