"""The events of a queue as lines of text, one line an event. slicer.queue.show.summary writes the summary.

All functions are pure. No line contains control characters, whatever commands, names and errors it shows.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Literal

from slicer.quantity import format_duration, format_size, size_text
from slicer.queue.file.suggest import enough_mib
from slicer.queue.model import ENOUGH_LOOKS, Event, EventKind, Row, Status
from slicer.text import one_line, quote, without_middle

# "bad": a job did not end well. "warning": something may go wrong, or somebody has to act.
Level = Literal["info", "good", "warning", "bad"]

_COMMAND = 120  # characters of a command in a line

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
# How counts are shown: in this order, with these words.
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


def size(mib: int) -> str:
    """As in "8G" and "1.5G"."""
    return format_size(mib << 20).replace(".0", "") if mib else "0"


def gpus(indices: Sequence[int]) -> str:
    """As in "GPU 0" and "GPUs 0,1"."""
    return f"GPU{'s' if len(indices) > 1 else ''} {','.join(map(str, indices))}"


def who(row: Row) -> str:
    """As in "job 3" and "job 3 (train-a)"."""
    return f"job {row.no}" + (f" ({one_line(row.name, 40)})" if row.name else "")


def level(event: Event) -> Level:
    """How much it matters."""
    if event.kind == "finished" and event.job is not None:
        return _STATUS_LEVELS.get(event.job.status, "bad")
    if event.kind == "summary":
        failed = event.data.get("failed") or event.data.get("earlier")
        return "bad" if failed else "warning" if event.data.get("under") else "info"
    return _LEVELS.get(event.kind, "info")


def count(number: int, what: str) -> str:
    """As in "1 job" and "3 jobs"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def counts(numbers: dict[Status, int]) -> str:
    """As in "3 running, 12 pending, 4 ok". Zeros are left out."""
    return ", ".join(f"{numbers[status]} {word}" for status, word in COUNTED.items() if numbers.get(status))


def deviation(row: Row) -> int | None:
    """How far its largest peak is above the declaration, in percent. Negative: below. None: unknown."""
    if not row.declared_mib or not row.peak_mib:
        return None
    return round((max(row.peak_mib) / row.declared_mib - 1) * 100)


def used(row: Row) -> str:
    """As in "GPU 0 peak 17.2G of 18G declared, 96% busy"; "" without GPUs."""
    if not row.gpu_indices:
        return ""
    peak = ", ".join(size(mib) for mib in row.peak_mib) or "n/a"
    if row.peak_mib:
        peak += f" of {size(row.declared_mib)} declared" if row.declared_mib else ""
        peak += f" in {count(row.looks, 'look')}" if is_seldom_seen(row) else ""
    busy = "busy n/a" if row.utilisation is None else f"{round(row.utilisation)}% busy"
    return f"{gpus(row.gpu_indices)} peak {peak}, {busy}"


def is_seldom_seen(row: Row) -> bool:
    """Whether there were too few looks at its GPUs to know its peak."""
    return row.looks < ENOUGH_LOOKS


def advice(row: Row) -> str:
    """How its declaration should be corrected; "" if it was right."""
    percent = deviation(row)
    if percent is None or row.verdict not in ("under-declared", "over-declared"):
        return ""
    enough = enough_mib(max(row.peak_mib))
    vram = f"[vram={size_text(enough << 20)}]"
    if row.verdict == "under-declared":
        least = "at least " if is_seldom_seen(row) else ""
        return f"{percent}% more than declared: {least}{vram} is needed"
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


def command_of(row: Row) -> str:
    return without_middle(row.command, _COMMAND)


def _log(event: Event) -> str:
    """Where the log is, in a form that can be pasted, and its last line."""
    log = event.data.get("log_path") or event.data.get("log")
    last = _text(event, "last_line")
    return (f" (log: {quote(str(log))})" if log else "") + (f", last line: {last}" if last else "")


def _text(event: Event, key: str) -> str:
    found = event.data.get(key)
    return "" if found is None else one_line(str(found))


def _because(said: str, event: Event, key: str = "why") -> str:
    why = _text(event, key)
    return f"{said}: {why}" if why else said


def figure(event: Event, key: str) -> int:
    found = event.data.get(key)
    return round(found) if isinstance(found, (int, float)) else 0


def _mib(event: Event, key: str) -> str:
    """A size among the event's data; "" where there is none."""
    return size(figure(event, key)) if event.data.get(key) is not None else ""


# -- the queue as a whole -----------------------------------------------------------------------------------


def _opened(event: Event) -> str:
    done = figure(event, "done")
    parts = [f"{figure(event, 'pending')} of {count(figure(event, 'total'), 'job')} to run"]
    if done:
        parts.append(f"{done} ended before")
    if event.data.get("resumed"):
        parts.append("resumed")
    where = f"; logs and status.txt in {_text(event, 'log_dir')}" if event.data.get("log_dir") else ""
    detail = f"; {_text(event, 'detail')}" if event.data.get("detail") else ""
    return ", ".join(parts) + where + detail


def _file_changed(event: Event) -> str | None:
    told = [f"{figure(event, key)} {key}" for key in ("added", "removed") if figure(event, key)]
    return f"jobs file changed: {', '.join(told)}" if told else None


def _skipped(event: Event) -> str | None:
    number = figure(event, "count")
    if not number:
        return None
    ended_as = event.data.get("counts")
    told = f": {counts(ended_as)}" if isinstance(ended_as, dict) and ended_as else ""
    has_failures = isinstance(ended_as, dict) and not ended_as.keys() <= {"ok", "cancelled"}
    again = (
        "slicer queue retry runs failed ones again, --fresh all" if has_failures else "--fresh runs all again"
    )
    return f"{count(number, 'job')} skipped, ended in an earlier run{told} ({again})"


def _waiting(event: Event) -> str:
    return _because(f"{who(event.job)} waits" if event.job else "waiting", event)


def _drained(event: Event) -> str:
    more = "; new lines in the jobs file are started as they come (Ctrl-C ends)"
    return "nothing is left to do" + (more if event.data.get("watch") else "")


def _stopping(event: Event) -> str:
    running = figure(event, "running")
    if not running:
        return "stopping: nothing new is started"
    verb, they = ("runs", "it is") if running == 1 else ("run", "they are")
    still = f"{count(running, 'job')} still {verb}"
    return f"stopping: nothing new is started, {still}; asked once more, {they} ended"


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
    "warning": lambda event: _text(event, "text") or "something is wrong",
    "notice": lambda event: _text(event, "text") or None,
    "summary": lambda event: None,  # has lines of its own: slicer.queue.show.summary
}


# -- one job ------------------------------------------------------------------------------------------------


def _started(event: Event, row: Row) -> str:
    again = f" again (attempt {row.attempt})" if row.attempt > 1 else ""
    where = f" on {gpus(row.gpu_indices)}" if row.gpu_indices else ""
    declared = ""
    if row.gpu_indices:
        # Without a declaration a job has its GPU to itself.
        declared = f" (declared {size(row.declared_mib)})" if row.declared_mib else " (alone)"
    return f"{who(row)} started{again}{where}{declared}: {command_of(row)}"


def _adopted(event: Event, row: Row) -> str:
    where = f" on {gpus(row.gpu_indices)}" if row.gpu_indices else ""
    return f"{who(row)} found running{where} for {format_duration(row.wall_s)}, taken over: {command_of(row)}"


def _usage(event: Event, row: Row) -> str | None:
    if not row.now_mib:
        return None
    now = ", ".join(size(mib) for mib in row.now_mib)
    declared = f", declared {size(row.declared_mib)}" if row.declared_mib else ""
    peak = f" (peak {', '.join(size(mib) for mib in row.peak_mib)})" if row.peak_mib > row.now_mib else ""
    return f"{who(row)} uses {now} of {gpus(row.gpu_indices)}{declared}{peak}"


def _exceeds(event: Event, row: Row) -> str:
    used_mib, declared_mib = figure(event, "used_mib"), figure(event, "declared_mib")
    more = f" ({round((used_mib / declared_mib - 1) * 100)}% more)" if declared_mib else ""
    what = f"{size(used_mib)} of GPU {figure(event, 'gpu')}, declared {size(declared_mib)}{more}"
    return f"{who(row)} uses {what}: what shares the GPU may run out of memory"


def _finished(event: Event, row: Row) -> str:
    attempts = f" (attempt {row.attempt})" if row.attempt > 1 or row.status == "oom" else ""
    reason = row.reason if row.status in ("infeasible", "lost") else ""
    facts = [fact for fact in (one_line(reason), used(row), advice(row)) if fact]
    if row.status != "ok":
        facts.append(command_of(row) + _log(event))
    told = f": {'; '.join(facts)}" if facts else ""
    return f"{who(row)} {ended(row)}{attempts} after {format_duration(row.wall_s)}{told}"


def _retry(event: Event, row: Row) -> str:
    before, following = _mib(event, "declared_mib"), _mib(event, "next_mib")
    attempt = f" (attempt {figure(event, 'attempt')} of {figure(event, 'attempts')})"
    changed = following and before and before != following
    again = (f" with {following}" if following else "") + (f" instead of {before}" if changed else "")
    return f"{who(row)} ran out of GPU memory{attempt}: again{again}"


def _infeasible(event: Event, row: Row) -> str:
    reason = _text(event, "reason") or one_line(row.reason)
    return f"{who(row)} can never run here: {reason}; {command_of(row)}"


def _lost(event: Event, row: Row) -> str:
    how = one_line(row.reason) or "it ended together with its keeper, how is not known"
    return f"{who(row)} lost: {how}; {command_of(row)}{_log(event)}"


def _unrunnable(event: Event, row: Row) -> str:
    why = _text(event, "why") or one_line(row.waits_for)
    return f"{who(row)} skipped: {why}; {command_of(row)}"


_OF_A_JOB: dict[EventKind, Callable[[Event, Row], str | None]] = {
    "started": _started,
    "adopted": _adopted,
    "usage": _usage,
    "exceeds": _exceeds,
    "finished": _finished,
    "retry": _retry,
    "infeasible": _infeasible,
    "cancelling": lambda event, row: f'{who(row)} is being ended: its line says "cancel"',
    "cancelled": lambda event, row: f"{who(row)} cancelled before it started: {command_of(row)}",
    "requeued": lambda event, row: _because(f"{who(row)} is to be started again", event),
    "lost": _lost,
    "unrunnable": _unrunnable,
}
_VERBOSE: frozenset[EventKind] = frozenset({"usage"})


def line(event: Event, *, verbose: bool) -> str | None:
    """The event in one line, without the time; None if it is not worth a line.

    A warning begins with "WARN". Raises ValueError if the event needs a job and has none.
    """
    if event.kind in _VERBOSE and not verbose:
        return None
    told = _told(event)
    return f"WARN {told}" if told is not None and level(event) == "warning" else told


def _told(event: Event) -> str | None:
    say = _OF_THE_QUEUE.get(event.kind)
    if say is not None:
        return say(event)
    if event.job is None:
        raise ValueError(f"an event {event.kind!r} needs a job")
    return _OF_A_JOB[event.kind](event, event.job)
