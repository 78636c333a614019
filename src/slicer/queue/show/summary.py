"""The summary at the end of a queue as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Callable

from slicer.quantity import format_duration, size_text
from slicer.queue.file.suggest import enough_mib
from slicer.queue.model import Event, Row, Status
from slicer.queue.show.words import command_of, count, counts, deviation, ended, figure, used, who
from slicer.text import one_line, quote

_EARLIER = 10  # jobs that failed in an earlier run, and are named


def summary_lines(event: Event) -> list[str]:
    """The lines of a "summary": what became of the jobs, and what to do about it.

    Its data are ``counts`` (of each status), the rows ``failed``, ``earlier`` (failed in an earlier run),
    ``under`` and ``over``, ``exit_code``, ``wall_s``, ``jobs_file`` and ``log_dir``; ``logs`` and
    ``last_lines`` (the number of a job to its log file's name, and to the last line in it).
    """
    numbers = event.data.get("counts")
    told: dict[Status, int] = numbers if isinstance(numbers, dict) else {}
    wall_s = event.data.get("wall_s")
    duration = format_duration(wall_s) if isinstance(wall_s, (int, float)) else "unknown time"
    total = sum(told.values())
    said = [f"{count(total, 'job')} in {duration}: {counts(told)}" if total else "nothing left"]
    earlier = _rows(event, "earlier")
    said[0] += _failed_earlier(earlier)
    code = figure(event, "exit_code")
    if code and (total or len(earlier) != 1):
        said[0] += f"; exit code {code}"
    if earlier and not total:
        them = "it" if len(earlier) == 1 else "them"
        said[0] += f"; to run {them} again: {_of_this(event, 'retry')}"
    for row in _rows(event, "failed"):
        log, last = _of_job(event, "logs", row), _of_job(event, "last_lines", row)
        directory = event.data.get("log_dir")
        path = f"{directory}/{log}" if directory else log
        said.append(
            f"  {who(row)} {ended(row)}: {command_of(row)}" + (f" (log: {quote(path)})" if log else "")
        )
        if last:
            said.append(f"    {one_line(last)}")
    under, over = _rows(event, "under"), _rows(event, "over")
    said += _declared(under, "used more than declared", lambda row: f"{deviation(row)}% more")
    said += _declared(over, "used less than declared", lambda row: f"{-(deviation(row) or 0)}% less")
    if under or over:
        said.append(f"corrected declarations: {_of_this(event, 'suggest')}")
    return said


def _failed_earlier(rows: list[Row]) -> str:
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


def _of_job(event: Event, key: str, row: Row) -> str:
    """The event's data ``key`` map job numbers to texts; the one of this job, or ""."""
    found = event.data.get(key)
    return str(found.get(row.no) or "") if isinstance(found, dict) else ""


def _declared(rows: list[Row], what: str, by: Callable[[Row], str]) -> list[str]:
    if not rows:
        return []
    said = [f"{count(len(rows), 'job')} {what}:"]
    for row in rows:
        percent = f" ({by(row)})" if deviation(row) is not None else ""
        suggested = f", [vram={size_text(enough_mib(max(row.peak_mib)) << 20)}]" if row.peak_mib else ""
        said.append(f"  {who(row)}: {used(row) or 'use unknown'}{percent}{suggested}: {command_of(row)}")
    return said


def _rows(event: Event, key: str) -> list[Row]:
    found = event.data.get(key)
    return [row for row in found if isinstance(row, Row)] if isinstance(found, (list, tuple)) else []
