"""What happens in a queue, said in lines of text: one an event, and those of the summary at the end.

All functions are pure. No line has a control character, whatever the commands, names and errors in it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Literal

from slicer.quantity import format_duration, format_size, size_text
from slicer.queue.model import Event, EventKind, Row, Status
from slicer.queue.suggest import STEP_MIB
from slicer.scope import quote

# "bad": a job did not end well. "warning": something may go wrong, or waits for somebody to act.
Level = Literal["info", "good", "warning", "bad"]

_COMMAND = 120  # characters of a command in a line
_TEXT = 500  # of an error or a reason
_ROOM_PERCENT = 105  # of the peak, as "slicer queue suggest" counts

_LEVELS: dict[EventKind, Level] = {
    "file-kept": "warning",
    "exceeds": "warning",
    "retry": "warning",
    "infeasible": "bad",
    "requeued": "warning",
    "lost": "bad",
    "unrunnable": "bad",
    "stalled": "warning",
    "warning": "warning",
}
_STATUS_LEVELS: dict[Status, Level] = {"ok": "good", "cancelled": "info"}
# The order in which counts are told, and the words where they are not the status itself.
COUNTED: dict[Status, str] = {
    "running": "running",
    "pending": "pending",
    "ok": "ok",
    "failed": "failed",
    "timeout": "timed out",
    "oom": "out of GPU memory",
    "infeasible": "infeasible",
    "lost": "lost",
    "cancelled": "cancelled",
}


# -- parts of a line ----------------------------------------------------------------------------------------


def visible(text: str, most: int = _TEXT) -> str:
    """One line of at most ``most`` characters; what is not printable is escaped."""
    cut = text[: most + 1]
    if not cut.isprintable():
        cut = "".join(
            c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut
        )
    return cut if len(cut) <= most else cut[: most - 1] + "…"


def size(mib: int) -> str:
    """As in "8G" and "1.5G"."""
    return format_size(mib << 20).replace(".0", "") if mib else "0"


def gpus(indices: Sequence[int]) -> str:
    """As in "GPU 0" and "GPUs 0,1"."""
    return f"GPU{'s' if len(indices) > 1 else ''} {','.join(map(str, indices))}"


def who(row: Row) -> str:
    """As in "job 3" and "job 3 (train-a)"."""
    return f"job {row.no}" + (f" ({visible(row.name, 40)})" if row.name else "")


def level(event: Event) -> Level:
    """How much it matters."""
    if event.kind == "finished" and event.job is not None:
        return _STATUS_LEVELS.get(event.job.status, "bad")
    if event.kind == "summary":
        return "bad" if event.data.get("failed") else "warning" if event.data.get("under") else "info"
    return _LEVELS.get(event.kind, "info")


def count(number: int, what: str) -> str:
    """As in "1 job" and "3 jobs"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def counts(numbers: dict[Status, int]) -> str:
    """As in "3 running, 12 pending, 4 ok"; what there is none of is left out."""
    return ", ".join(f"{numbers[status]} {word}" for status, word in COUNTED.items() if numbers.get(status))


def enough_mib(peak_mib: int) -> int:
    """What to declare for a job that was seen to use ``peak_mib``, as ``slicer queue suggest`` has it."""
    return -(-peak_mib * _ROOM_PERCENT // (100 * STEP_MIB)) * STEP_MIB


def deviation(row: Row) -> int | None:
    """By how many percent its greatest peak is above (below: negative) the declaration; None: unknown."""
    if not row.declared_mib or not row.peak_mib:
        return None
    return round((max(row.peak_mib) / row.declared_mib - 1) * 100)


def used(row: Row) -> str:
    """As in "GPU 0 peak 17.2G of 18G declared, 96% busy"; "" where nothing is known."""
    facts = []
    if row.gpu_indices and row.peak_mib:
        peaks = ", ".join(size(mib) for mib in row.peak_mib)
        declared = f" of {size(row.declared_mib)} declared" if row.declared_mib else ""
        facts.append(f"{gpus(row.gpu_indices)} peak {peaks}{declared}")
    elif row.gpu_indices:
        facts.append(f"{gpus(row.gpu_indices)}, use unknown")
    if row.utilisation is not None:
        facts.append(f"{round(row.utilisation)}% busy")
    return ", ".join(facts)


def advice(row: Row) -> str:
    """What its declaration should have been, where it was wrong; "" where it was not."""
    percent = deviation(row)
    if percent is None or row.verdict not in ("under-declared", "over-declared"):
        return ""
    enough = enough_mib(max(row.peak_mib))
    vram = f"[vram={size_text(enough << 20)}]"
    if row.verdict == "under-declared":
        return f"{percent}% more than declared: {vram} is needed"
    less = enough < (row.declared_mib or 0)
    return f"{-percent}% less than declared" + (f": {vram} would do" if less else "")


def ended(row: Row) -> str:
    """How it ended, as in "ok", "failed with exit code 3", "killed by SIGSEGV"."""
    if row.status == "failed":
        if row.reason == "signal" and row.exit_code > 128:
            return f"killed by {signal_name(row.exit_code - 128)}"
        if row.reason == "oom-kill":
            return "failed: the kernel ended it, out of host memory"
        if row.reason == "stopped":
            return f"stopped (exit code {row.exit_code})"
        return f"failed with exit code {row.exit_code}"
    words: dict[Status, str] = {"timeout": "timed out", "oom": "ran out of GPU memory"}
    return words.get(row.status, row.status)


def signal_name(number: int) -> str:
    """As in "SIGKILL", or "signal 40" where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _command(row: Row) -> str:
    return visible(row.command, _COMMAND)


def _log(event: Event) -> str:
    log = _text(event, "log")
    return f" (log: {log})" if log else ""


def _text(event: Event, key: str) -> str:
    found = event.data.get(key)
    return "" if found is None else visible(str(found))


def _because(said: str, event: Event, key: str = "why") -> str:
    why = _text(event, key)
    return f"{said}: {why}" if why else said


def _number(event: Event, key: str) -> int:
    found = event.data.get(key)
    return round(found) if isinstance(found, (int, float)) else 0


def _mib(event: Event, key: str) -> str:
    """A size among the event's data; "" where there is none."""
    return size(_number(event, key)) if event.data.get(key) is not None else ""


def _rows(event: Event, key: str) -> list[Row]:
    found = event.data.get(key)
    return [row for row in found if isinstance(row, Row)] if isinstance(found, (list, tuple)) else []


# -- the queue as a whole -----------------------------------------------------------------------------------


def _opened(event: Event) -> str:
    done = _number(event, "done")
    parts = [f"{_number(event, 'pending')} of {count(_number(event, 'total'), 'job')} to run"]
    if done:
        parts.append(f"{done} done before")
    if event.data.get("resumed"):
        parts.append("resumed")
    where = f"; logs and status.txt in {_text(event, 'log_dir')}" if event.data.get("log_dir") else ""
    detail = f"; {_text(event, 'detail')}" if event.data.get("detail") else ""
    return ", ".join(parts) + where + detail


def _file_changed(event: Event) -> str | None:
    told = [f"{_number(event, key)} {key}" for key in ("added", "removed") if _number(event, key)]
    return f"jobs file changed: {', '.join(told)}" if told else None


def _skipped(event: Event) -> str | None:
    number = _number(event, "count")
    if not number:
        return None
    return f"{count(number, 'job')} done in an earlier run: skipped (--fresh runs everything again)"


def _waiting(event: Event) -> str:
    return _because(f"{who(event.job)} waits" if event.job else "waiting", event)


def _drained(event: Event) -> str:
    more = "; new lines in the jobs file are started as they come (Ctrl-C ends)"
    return "nothing is left to do" + (more if event.data.get("watch") else "")


def _stopping(event: Event) -> str:
    running = _number(event, "running")
    if not running:
        return "stopping: nothing new is started"
    verb = "runs" if running == 1 else "run"
    return f"stopping: nothing new is started, {count(running, 'job')} still {verb} (asked again: ended)"


_OF_THE_QUEUE: dict[EventKind, Callable[[Event], str | None]] = {
    "opened": _opened,
    "file-changed": _file_changed,
    "file-kept": lambda event: _because("jobs file cannot be used, the last good one stays", event, "error"),
    "file-good": lambda event: "jobs file can be used again",
    "skipped": _skipped,
    "waiting": _waiting,
    "drained": _drained,
    "stopping": _stopping,
    "ending": lambda event: "the running jobs are being ended",
    "stalled": lambda event: _because("nothing is started for now", event),
    "resumed": lambda event: "jobs are started again",
    "warning": lambda event: _because("warning", event, "text"),
    "notice": lambda event: _text(event, "text") or None,
    "summary": lambda event: summary(event)[0],
}


# -- one job ------------------------------------------------------------------------------------------------


def _started(event: Event, row: Row) -> str:
    again = f" again (attempt {row.attempt})" if row.attempt > 1 else ""
    where = f" on {gpus(row.gpu_indices)}" if row.gpu_indices else ""
    declared = ""
    if row.gpu_indices:
        # Without a declaration a job has its GPU to itself.
        declared = f" (declared {size(row.declared_mib)})" if row.declared_mib else " (alone)"
    return f"{who(row)} started{again}{where}{declared}: {_command(row)}"


def _adopted(event: Event, row: Row) -> str:
    where = f" on {gpus(row.gpu_indices)}" if row.gpu_indices else ""
    return f"{who(row)} found running{where} for {format_duration(row.wall_s)}, taken over: {_command(row)}"


def _usage(event: Event, row: Row) -> str | None:
    if not row.now_mib:
        return None
    now = ", ".join(size(mib) for mib in row.now_mib)
    declared = f", declared {size(row.declared_mib)}" if row.declared_mib else ""
    peak = f" (peak {', '.join(size(mib) for mib in row.peak_mib)})" if row.peak_mib > row.now_mib else ""
    return f"{who(row)} uses {now} of {gpus(row.gpu_indices)}{declared}{peak}"


def _exceeds(event: Event, row: Row) -> str:
    used_mib, declared_mib = _number(event, "used_mib"), _number(event, "declared_mib")
    more = f" ({round((used_mib / declared_mib - 1) * 100)}% more)" if declared_mib else ""
    what = f"{size(used_mib)} of GPU {_number(event, 'gpu')}, declared {size(declared_mib)}{more}"
    return f"{who(row)} uses {what}: what shares the GPU may run out of memory"


def _finished(event: Event, row: Row) -> str:
    attempts = f" (attempt {row.attempt})" if row.attempt > 1 or row.status == "oom" else ""
    reason = row.reason if row.status in ("infeasible", "lost") else ""
    facts = [fact for fact in (visible(reason), used(row), advice(row)) if fact]
    if row.status != "ok":
        facts.append(_command(row) + _log(event))
    told = f": {'; '.join(facts)}" if facts else ""
    return f"{who(row)} {ended(row)}{attempts} after {format_duration(row.wall_s)}{told}"


def _retry(event: Event, row: Row) -> str:
    before, following = _mib(event, "declared_mib"), _mib(event, "next_mib")
    attempt = f" (attempt {_number(event, 'attempt')} of {_number(event, 'attempts')})"
    changed = following and before and before != following
    again = (f" with {following}" if following else "") + (f" instead of {before}" if changed else "")
    return f"{who(row)} ran out of GPU memory{attempt}: again{again}"


def _infeasible(event: Event, row: Row) -> str:
    reason = _text(event, "reason") or visible(row.reason)
    return f"{who(row)} can never run here: {reason}; {_command(row)}"


def _lost(event: Event, row: Row) -> str:
    how = visible(row.reason) or "it ended together with its supervisor, how is not known"
    return f"{who(row)} lost: {how}; {_command(row)}{_log(event)}"


def _unrunnable(event: Event, row: Row) -> str:
    why = _text(event, "why") or visible(row.waits_for)
    return f"{who(row)} will not be started: {why}; {_command(row)}"


_OF_A_JOB: dict[EventKind, Callable[[Event, Row], str | None]] = {
    "started": _started,
    "adopted": _adopted,
    "usage": _usage,
    "exceeds": _exceeds,
    "finished": _finished,
    "retry": _retry,
    "infeasible": _infeasible,
    "cancelling": lambda event, row: f'{who(row)} is being ended: its line says "cancel"',
    "cancelled": lambda event, row: f"{who(row)} cancelled before it started: {_command(row)}",
    "requeued": lambda event, row: _because(f"{who(row)} is to be started again", event),
    "lost": _lost,
    "unrunnable": _unrunnable,
}
_VERBOSE: frozenset[EventKind] = frozenset({"usage"})


def line(event: Event, *, verbose: bool) -> str | None:
    """The event in one line without the time; None when it is not worth one.

    Raises ValueError where the event is about a job and names none.
    """
    if event.kind in _VERBOSE and not verbose:
        return None
    say = _OF_THE_QUEUE.get(event.kind)
    if say is not None:
        return say(event)
    if event.job is None:
        raise ValueError(f"an event {event.kind!r} needs a job")
    return _OF_A_JOB[event.kind](event, event.job)


# -- the end ------------------------------------------------------------------------------------------------


def summary(event: Event) -> list[str]:
    """The lines of a "summary": what became of the jobs, and what to do about it.

    Its data are ``counts`` (of each status), ``failed``, ``under`` and ``over`` (rows), ``exit_code``,
    ``wall_s``, ``jobs_file`` and ``log_dir``, and ``logs`` (the number of a job to its log file's name).
    """
    numbers = event.data.get("counts")
    told: dict[Status, int] = numbers if isinstance(numbers, dict) else {}
    wall_s = event.data.get("wall_s")
    duration = format_duration(wall_s) if isinstance(wall_s, (int, float)) else "unknown time"
    code = _number(event, "exit_code")
    tail = f"; exit code {code}" if code else ""
    lines = [f"{count(sum(told.values()), 'job')} in {duration}: {counts(told) or 'nothing to do'}{tail}"]
    logs = event.data.get("logs")
    log_of = logs if isinstance(logs, dict) else {}
    for row in _rows(event, "failed"):
        log = log_of.get(row.no)
        where = f" (log: {visible(str(log))})" if log else ""
        lines.append(f"  {who(row)} {ended(row)}: {_command(row)}{where}")
    under, over = _rows(event, "under"), _rows(event, "over")
    lines += _declared(under, "used more than declared", lambda row: f"{deviation(row)}% more")
    lines += _declared(over, "used less than declared", lambda row: f"{-(deviation(row) or 0)}% less")
    if under or over:
        command = f"slicer queue suggest {quote(str(event.data.get('jobs_file', '')))}"
        command += f" --log-dir {quote(str(event.data.get('log_dir', '')))}"
        lines.append(f"corrected declarations: {command}")
    return lines


def _declared(rows: list[Row], what: str, by: Callable[[Row], str]) -> list[str]:
    if not rows:
        return []
    lines = [f"{count(len(rows), 'job')} {what}:"]
    for row in rows:
        percent = f" ({by(row)})" if deviation(row) is not None else ""
        suggested = f", [vram={size_text(enough_mib(max(row.peak_mib)) << 20)}]" if row.peak_mib else ""
        lines.append(f"  {who(row)}: {used(row) or 'use unknown'}{percent}{suggested}: {_command(row)}")
    return lines
