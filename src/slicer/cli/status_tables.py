"""The rows of a status as tables: a line for each GPU, job and waiting job, in some columns. Pure."""

from __future__ import annotations

from slicer import columns
from slicer.cli.status_rows import (
    command_of,
    held_text,
    holders,
    left_text,
    starts_text,
    state_text,
    users,
    wants_text,
    whole_seconds,
    why_text,
)
from slicer.columns import GOOD, HEADING, WARNING, Glyphs, Line
from slicer.kernel.users import user_name
from slicer.ledger.status import GpuState
from slicer.model import Lease, Ticket
from slicer.quantity import format_mib, short_mib
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicer.cli.status_rows import Kind, Row
    from slicer.ledger.status import LedgerStatus

_WIDE, _WIDEST = 120, 180  # columns from which more is shown
_NAME = 12  # the least columns of a name: the number of rows stands above
_MEMORY = len("20.0G of 24G")  # at least: the number of GPUs stands above, too
_ID = 8  # characters of a job's id, where there is little room
_TITLES = {"gpu": "GPUs", "job": "JOBS", "waiting": "WAITING"}


@record
class Frame:
    """Where tables are shown."""

    status: LedgerStatus
    width: int | None  # columns; None: no cell is cut
    mark: Glyphs
    is_whole: bool = False  # each row has its details below it, and so lacks its last cell

    @property
    def size(self) -> int:
        """0, 1 or 2: how much is shown."""
        return 2 if self.width is None else (self.width >= _WIDE) + (self.width >= _WIDEST)


@record
class Part:
    kind: Kind
    rows: tuple[Row, ...]
    total: int  # without the filter


def parts(found: Sequence[Row], status: LedgerStatus) -> list[Part]:
    """GPUs, jobs and, if there are any, those that wait. ``found``: the rows that a filter leaves."""
    totals: dict[Kind, int] = {
        "gpu": len(status.gpus), "job": len(status.leases), "waiting": len(status.tickets) + len(status.later)
    }  # fmt: skip
    made = [Part(kind, tuple(row for row in found if row.kind == kind), totals[kind]) for kind in totals]
    return [part for part in made if part.total or part.kind != "waiting"]


def table(part: Part, start: int, size: int, frame: Frame, indent: str = "") -> list[Line]:
    """A heading with the number of rows, and a line for ``size`` of the rows from ``start`` on.

    ``indent``: of the rows, which only their columns' heads have here.
    """
    if not part.total:
        none = f"No GPUs: {frame.status.no_gpus}" if part.kind == "gpu" else "No jobs are running."
        return [Line(none)]
    title, seen = _title(part, start, size, frame.status), part.rows[start : start + size]
    if not seen:
        return [Line(title, HEADING)]
    heads, least = _heads(part.kind, frame)
    cells = [_cells(row, frame) for row in seen]
    head, *lines = columns.table(heads, cells, frame.width, frame.mark, least=least)
    rest = _after(indent + head.text, len(title))
    styled = (Line(line.text, _style(row, frame.status)) for row, line in zip(seen, lines, strict=True))
    return [Line(title + rest, HEADING), *styled]


def _title(part: Part, start: int, size: int, status: LedgerStatus) -> str:
    """Text such as "JOBS 3-6/50", and with a filter "JOBS 1-4/7 of 50"; of GPUs how many are free."""
    count = len(part.rows)
    words = [f"{start + 1}-{start + size}/{count}" if size < count else str(count)]
    words += [f"of {part.total}"] if count < part.total else []
    if part.kind == "gpu":
        free = sum(state.is_idle for state in status.gpus)
        return f"GPUs {words[0]}: {free} free" if size < count else f"GPUs: {free} of {count} free"
    return " ".join((_TITLES[part.kind], *words, ""))


def _after(heads: str, place: int) -> str:
    """The column heads from a place on. One that begins before it is blank."""
    rest = heads[place:]
    cut = 0 if heads[place - 1 : place].isspace() else rest.find(" ") if " " in rest else len(rest)
    return " " * cut + rest[cut:]


def _style(row: Row, status: LedgerStatus) -> str:
    entry = row.entry
    if isinstance(entry, GpuState):
        is_odd = any(style for _, _, style in users(entry, status))
        return WARNING if is_odd else GOOD if entry.is_idle else ""
    return WARNING if isinstance(entry, Lease) and state_text(entry, status) else ""


# -- heads and cells ----------------------------------------------------------------------------------------


def _heads(kind: Kind, frame: Frame) -> tuple[str, int]:
    """The heads of a kind's columns, and how many terminal columns the last one needs."""
    is_whole = frame.is_whole
    if kind == "gpu":
        heads = "> | <60 | VRAM> | RESERVED>!4 | FREE>!3 | BUSY> | TEMP>!2 | POWER>!1"
        return f"{heads} | {'' if is_whole else 'USED BY'}", 0 if is_whole else 24
    size = 0 if is_whole else frame.size
    name, what, user = ((18, 24, 8) if is_whole else (14, 14, 8), (24, 30, 12), (40, 40, 16))[size]
    if kind == "job":
        heads = f"JOB | NAME<{name} | STATE<18 | HOLDS<{what} | USER<{user} | FOR>!2 | LEFT>!1"
        return f"{heads} | {'PID' if is_whole else 'COMMAND'}", 5 if is_whole else 10
    heads = f"WAITING | NAME<{name} | WANTS<{what} | USER<{user} | FOR>!2 | STARTS>"
    if is_whole:
        return heads, 0
    return f"{heads} | WHY" + (f"<{(frame.width or 0) // 3} | COMMAND" if size else ""), 24


def _cells(row: Row, frame: Frame) -> tuple[str, ...]:
    entry, status, is_whole = row.entry, frame.status, frame.is_whole
    if isinstance(entry, GpuState):
        return _gpu_cells(entry, frame)
    is_short = not (frame.size or is_whole)
    # The number of rows stands above, so that a short id needs a long name beside it.
    name = entry.name or "-"
    who = (entry.job[:_ID], name.ljust(_NAME)) if is_short else (entry.job, name)
    whose = user_name(row.uid), whole_seconds(row.for_s)
    if isinstance(entry, Lease):
        what = state_text(entry, status) or "running", held_text(entry, status)
        last = str(entry.pid) if is_whole else entry.command
        return (*who, *what, *whose, left_text(entry, status.now_s), last)
    wants, starts = "-", "later"
    if isinstance(entry, Ticket):
        wants, starts = wants_text(entry, status), starts_text(entry, status)
    found = (*who, wants, *whose, starts)
    if is_whole:
        return found
    return (*found, why_text(row, status), *((command_of(entry),) if frame.size else ()))


def _gpu_cells(state: GpuState, frame: Frame) -> tuple[str, ...]:
    load, device, name = state.load, state.device, state.gpu.name.removeprefix("NVIDIA ")
    is_wide = bool(frame.size)
    limit = f"/{load.power_limit_w}" if load.power_limit_w and is_wide else ""
    size = short_mib((device.total_mib if device else state.gpu.memory_mib) or None)
    used = format_mib(device.used_mib if device else None)
    drawn, cells = "", 6 if frame.is_whole else (8, 20, 30)[frame.size]
    if device is not None and device.total_mib:
        drawn = columns.bar(cells, device.total_mib, device.used_mib, state.reserved_mib, frame.mark)
    return (
        str(state.gpu.index), f"{drawn}  {name}" if is_wide and not frame.is_whole else drawn,
        (used if size == "-" else f"{used} of {size}").rjust(_MEMORY),
        format_mib(state.reserved_mib if device else None), format_mib(state.free_mib),
        "-" if load.utilisation is None else f"{load.utilisation}%",
        "-" if load.temperature_c is None else f"{load.temperature_c}C",
        "-" if load.power_w is None else f"{load.power_w}{limit}W",
        name if frame.is_whole else ", ".join(_used_by(state, frame)),
    )  # fmt: skip


def _used_by(state: GpuState, frame: Frame) -> Iterator[str]:
    if state.device is None:
        yield "the driver does not answer"
    elif state.is_idle:
        yield "free"
    if (count := len(holders(state, frame.status))) > 2:
        yield f"{count} jobs"
    for who, how, _ in users(state, frame.status):
        yield f"{who} {how}" if frame.size else who
