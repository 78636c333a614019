"""The summary at the end of a queue as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicer.quantity import format_duration
from slicer.queue.model import Event, Row, Status
from slicer.queue.show.words import command_of, counts, deviation, ended, enough_vram, used, who
from slicer.text import counted, one_line, quote

_EARLIER = 10  # jobs named of those that failed in an earlier run


def summary_lines(event: Event) -> list[str]:
    """The lines of a "summary": what became of the jobs, and what to do about it.

    Its data are ``counts`` (of each status), the rows ``failed``, ``earlier`` (failed in an earlier run),
    ``under`` and ``over``, ``exit_code``, ``wall_s``, ``jobs_file`` and ``log_dir``; ``logs`` and
    ``last_lines`` (the number of a job to its log file's name, and to the last line in it).
    """
    data = event.data
    numbers: dict[Status, int] = data.get("counts", {})
    earlier: list[Row] = data.get("earlier", [])
    total = sum(numbers.values())
    duration = format_duration(data["wall_s"]) if "wall_s" in data else "unknown time"
    first = f"{counted(total, 'job')} in {duration}: {counts(numbers)}" if total else "nothing left"
    first += _failed_earlier(earlier)
    if data.get("exit_code") and (total or len(earlier) != 1):
        first += f"; exit code {data['exit_code']}"
    if earlier and not total:
        them = "it" if len(earlier) == 1 else "them"
        first += f"; to run {them} again: {_of_this(event, 'retry')}"
    said = [first]
    for row in data.get("failed", ()):
        said += _failed(row, data)
    said += _declared(data.get("under", ()), "more") + _declared(data.get("over", ()), "less")
    if data.get("under") or data.get("over"):
        said.append(f"corrected declarations: {_of_this(event, 'suggest')}")
    return said


def _failed(row: Row, data: Mapping[str, Any]) -> list[str]:
    """Which job failed and how, and the last line of its log."""
    log = data.get("logs", {}).get(row.no)
    path = f"{data['log_dir']}/{log}" if data.get("log_dir") else log
    last = data.get("last_lines", {}).get(row.no)
    said = f"  {who(row)} {ended(row)}: {command_of(row)}" + (f" (log: {quote(path)})" if log else "")
    return [said, f"    {one_line(last)}"] if last else [said]


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


def _declared(rows: Sequence[Row], how: str) -> list[str]:
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
