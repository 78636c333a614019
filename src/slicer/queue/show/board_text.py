"""The queue at one moment as lines of text, for ``status.txt`` and the live board.

All functions are pure, except that they show times in the user's time zone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import repeat

from slicer import columns
from slicer.columns import (
    GAP,
    HEADING,
    UNICODE,
    WARNING,
    Glyphs,
    Line,
    Section,
    aligned,
    clip,
    shares,
    told_apart,
)
from slicer.kernel.signals import signal_name
from slicer.quantity import format_cpus, format_duration, format_estimate, format_mib, short_mib
from slicer.queue.model import GPU_FAILED, LEFT, Board, BoardState, GpuRow, JobRow
from slicer.queue.show import words
from slicer.text import clock, one_line, without_middle

_GPU_BAR = 10  # cells
_QUEUE_BAR = 30
_GPU_NAME = 16  # characters
_PENDING_SHOWN = 20
_PENDING_ON_PAGE = 10
_SPACIOUS = 16  # lines of a page, from which on empty lines separate the parts
_DONE_SHOWN = 20
_COMMAND = 200  # columns of a command where the width is unlimited
_OTHERS = 18  # columns beside a pending command and why it waits
_COMMAND_MOST = 2000  # characters of a command that are considered; it may have 131,072
_STATES: dict[BoardState, str] = {
    "running": "",
    "stopping": "stopping: nothing new is started",
    "ending": "ending: nothing new is started",
    "drained": "all done",
    "paused": "paused: nothing new is started",
    "stalled": "stalled: nothing is started",
    "ended": "ended",
}


def render(board: Board, width: int | None) -> str:
    """The whole board as text, at most ``width`` columns wide (None: any width). Ends with a newline."""
    glyphs = UNICODE
    parts = (
        _gpus(board.gpus, glyphs), _running(board.running, width, glyphs),
        _pending(board, _PENDING_SHOWN, width, glyphs), _done(board.done[-_DONE_SHOWN:], width, glyphs),
    )  # fmt: skip
    blocks = [[*_header(board, width, glyphs), Line(_written(board))]]
    blocks += [part.cut(glyphs) for part in parts]
    texts = ("\n".join(clip(line.text, width, glyphs) for line in block) for block in blocks if block)
    return "\n\n".join(texts) + "\n"


def page(board: Board, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The board in at most ``height`` lines of ``width`` columns. Rows that do not fit are counted."""
    shown = _header(board, width, glyphs)
    if height <= len(shown):
        shown = [Line(progress(board, width, glyphs))][: max(0, height)]
    parts = [
        _gpus(board.gpus, glyphs), _running(board.running[:height], width, glyphs, len(board.running)),
        _pending(board, min(height, _PENDING_ON_PAGE), width, glyphs),
    ]  # fmt: skip
    parts = [part for part in parts if part.entries] if height > len(shown) else []
    gap = [Line("")] if height >= _SPACIOUS else []
    room = height - len(shown) - len(gap) * len(parts)
    for part, size in zip(parts, shares([len(part.cut(glyphs)) for part in parts], room), strict=True):
        found = part.cut(glyphs, size)
        shown += [*gap, *found] if found else []
    return [Line(clip(line.text, width, glyphs), line.style) for line in shown]


# -- parts --------------------------------------------------------------------------------------------------


def _header(board: Board, width: int | None, glyphs: Glyphs) -> list[Line]:
    """The jobs file, the time, the counts, the progress, and the queue's problem."""
    since = f"for {format_duration(max(0, round(board.at - board.began_at)))}"
    is_held = board.state == "drained" and board.counts.get("pending")  # what is left is held back
    state = "" if is_held else _STATES[board.state]
    title = glyphs.dot.join(filter(None, (one_line(board.title), clock(board.at), since, state)))
    shown = [
        Line(title, HEADING),
        Line(words.counts(board.counts) or "no jobs"),
        Line(progress(board, width, glyphs)),
    ]
    if board.warning:
        shown.append(Line(f"! {one_line(board.warning)}", WARNING))
    return shown


def _written(board: Board) -> str:
    """The time and the process of the writing, and how to see whether the process still lives."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(board.at))
    told = f"written {at} by pid {board.pid}, "
    if board.state == "ended":
        return told + "which has ended"
    every = format_duration(board.every_s)
    return told + f"again every {every} while jobs run; killed, if ps {board.pid} shows no slicer"


def progress(board: Board, width: int | None, glyphs: Glyphs) -> str:
    """As in "[█████▒▒░░░░]  5 of 12 done (41%), about 1h20m left"."""
    total = sum(board.counts.values())
    runs = board.counts.get("running", 0)
    done = total - runs - board.counts.get("pending", 0)
    told = f"{done} of {total} done ({done * 100 // total}%)" if total else "nothing to do"
    if board.eta_s is not None and done < total and board.state != "ended":
        told += f", about {format_estimate(board.eta_s)} left"
    cells = _QUEUE_BAR if width is None else min(_QUEUE_BAR, width - len(told) - 4)
    if cells < 5 or not total:
        return told
    return f"{columns.bar(cells, total, done, done + runs, glyphs)}{GAP}{told}"


def _gpus(rows: Sequence[GpuRow], glyphs: Glyphs) -> Section:
    """The GPUs, each with its memory in use and the queue's jobs on it."""
    cells = [
        (
            f"GPU {gpu.index}",
            clip(one_line(gpu.name).removeprefix("NVIDIA "), _GPU_NAME, glyphs),
            columns.bar(_GPU_BAR, gpu.total_mib, gpu.used_mib, 0, glyphs),
            f"{format_mib(gpu.used_mib)} of {short_mib(gpu.total_mib)}",
            "" if gpu.utilisation is None else f"{gpu.utilisation}%",
            f"job{'s' if len(gpu.jobs) > 1 else ''} {', '.join(map(str, gpu.jobs))}" if gpu.jobs else "",
        )
        for gpu in rows
    ]
    return Section((), tuple((Line(text),) for text in aligned(cells, "lllrrl")), "GPUs")


def _running(rows: Sequence[JobRow], width: int | None, glyphs: Glyphs, total: int = 0) -> Section:
    """The running jobs, with their GPUs, their ages, and their memory beside their declaration."""
    cells = [
        (
            glyphs.running, str(row.no), format_cpus(row.gpu_indices) or "-",
            format_duration(round(row.wall_s)), _most(row, row.now_mib), _most(row, row.peak_mib),
            _declared(row), _busy(row), f"({one_line(row.note)}) {what}" if row.note else what,
        )
        for row, what in zip(rows, _whats(rows, width, glyphs), strict=True)
    ]  # fmt: skip
    heads = " | JOB> | GPU | FOR> | NOW> | PEAK> | OF> | BUSY> | RUNNING"
    return _table(heads, cells, width, glyphs, "running", total, [*map(_running_style, rows)])


def _pending(board: Board, most: int, width: int | None, glyphs: Glyphs) -> Section:
    """The next ``most`` pending jobs, why they wait, and the number of further ones."""
    rows = board.pending[:most]
    has_reasons = any(row.waits_for for row in rows)
    whats = _whats(rows, width, glyphs, of=2 if has_reasons else 1)
    cells = [
        (glyphs.again if row.attempt > 1 else glyphs.pending, str(row.no), _declared(row), what)
        + ((one_line(row.waits_for),) if has_reasons else ())
        for row, what in zip(rows, whats, strict=True)
    ]
    heads = " | JOB> | WANTS> | PENDING" + " | WAITS FOR" * has_reasons
    total = max(board.counts.get("pending", 0), len(board.pending))
    return _table(heads, cells, width, glyphs, "pending", total)


def _done(rows: Sequence[JobRow], width: int | None, glyphs: Glyphs) -> Section:
    marks = {"ok": glyphs.ok, "cancelled": glyphs.cancelled}
    cells = [
        (
            marks.get(row.status, glyphs.bad), str(row.no), _result(row),
            format_duration(round(row.wall_s, 1)), _most(row, row.peak_mib), _declared(row),
            _deviation(row), _busy(row), what,
        )
        for row, what in zip(rows, _whats(rows, width, glyphs), strict=True)
    ]  # fmt: skip
    return _table(" | JOB> | ENDED | AFTER> | PEAK> | OF> | > | BUSY> | DONE", cells, width, glyphs, "done")


def _table(
    heads: str, cells: Sequence[Sequence[str]], width: int | None, glyphs: Glyphs, what: str, total: int = 0,
    styles: Sequence[str] = (),
) -> Section:  # fmt: skip
    """A part of the board; an empty one without rows."""
    if not cells:
        return Section()
    head, *lines = columns.table(heads, cells, width, glyphs, least=1)
    styled = map(Line, (line.text for line in lines), styles or repeat(""))
    return Section((head,), tuple((line,) for line in styled), what, total)


# -- cells --------------------------------------------------------------------------------------------------


def _result(row: JobRow) -> str:
    if row.status != "failed":
        return f"{row.status}, left {row.leftovers}" if row.leftovers else row.status
    if row.reason == LEFT:
        return f"left {row.leftovers}"
    if row.reason in ("oom-kill", GPU_FAILED):
        return "host OOM" if row.reason == "oom-kill" else "GPU failed"
    return signal_name(row.exit_code - 128) if row.reason == "signal" else f"exit {row.exit_code}"


def _running_style(row: JobRow) -> str:
    over = bool(row.declared_mib and row.peak_mib and row.verdict == "under-declared")
    return WARNING if over or row.note else ""


def _whats(rows: Sequence[JobRow], width: int | None, glyphs: Glyphs, of: int = 1) -> list[str]:
    """The names and commands; the table shortens them if they are its last cells (``of`` 1) in a width."""
    found = [
        f"{f'{one_line(row.name, 40)}: ' if row.name else ''}{without_middle(row.command, _COMMAND_MOST)}"
        for row in rows
    ]
    if width is None or of > 1:
        return told_apart(found, _COMMAND if width is None else max(8, (width - _OTHERS) // of), glyphs)
    return found


def _declared(row: JobRow) -> str:
    return short_mib(row.declared_mib) if row.declared_mib else "-"


def _deviation(row: JobRow) -> str:
    percent = words.deviation(row)
    wrong = row.verdict in ("under-declared", "over-declared")
    return f"{percent:+d}%" if wrong and percent is not None else ""


def _busy(row: JobRow) -> str:
    return _unknown(row) if row.utilisation is None else f"{round(row.utilisation)}%"


def _most(row: JobRow, mib: Sequence[int]) -> str:
    """The largest figure: the declaration holds for each GPU."""
    return format_mib(max(mib)) if mib else _unknown(row)


def _unknown(row: JobRow) -> str:
    """The text for a figure that was not measured, or that does not exist without a GPU."""
    return "n/a" if row.gpu_indices else "-"
