"""The rows of the live view: one line for each GPU, job and waiting job, in the columns of a page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slicer.cli import output
from slicer.cli.live.view import Content, Row
from slicer.cli.status_gpus import WORTH_A_LINE_MIB, bar, foreign_text, load_text, marks_of
from slicer.cli.status_text import (
    begins_text,
    below_job,
    held_text,
    left_text,
    request_cells,
    whole_seconds,
)
from slicer.cli.status_why import reason
from slicer.columns import FAINT, GOOD, WARNING, Glyphs, Line
from slicer.kernel.users import user_name
from slicer.ledger.status import GpuState, LedgerStatus
from slicer.model import Lease, Ticket
from slicer.outcome.job_files import DetachedJob
from slicer.quantity import format_mib, short_mib
from slicer.text import command_text, visible

_Maker = Callable[[Sequence[Any], Content, int, Glyphs], list[Line]]

_WIDE, _WIDEST = 120, 180  # columns from which more is shown
_NAME = 12  # the least columns of a name: the number of rows stands above
_ID = 8  # characters of a job's id, where there is little room


def table(kind: str, shown: Sequence[Row], content: Content, width: int, mark: Glyphs) -> list[Line]:
    """The heading of a kind of rows, and a line for each of those shown."""
    makers: dict[str, _Maker] = {"gpu": _gpus, "job": _jobs, "waiting": _waiting}
    return makers[kind]([row.entry for row in shown], content, width, mark)


# -- GPUs ---------------------------------------------------------------------------------------------------


def _gpus(states: Sequence[GpuState], content: Content, width: int, mark: Glyphs) -> list[Line]:
    status = content.status
    cells = [_gpu_cells(state, status, width, mark) for state in states]
    heads = "> | <60 | MEMORY> | BUSY> | TEMP> | POWER> | USED BY"
    head, *lines = output.table_in(width, heads, cells, least=1, mark=mark)
    styles = [_gpu_style(state, status) for state in states]
    found = [Line(line.text, style) for line, style in zip(lines, styles, strict=True)]
    return [head, *found]


def _gpu_cells(state: GpuState, status: LedgerStatus, width: int, mark: Glyphs) -> tuple[str, ...]:
    load, device = state.load, state.device
    name = state.gpu.name.removeprefix("NVIDIA ") if width >= _WIDE else ""
    limit = f"/{load.power_limit_w}" if load.power_limit_w is not None and width >= _WIDE else ""
    size = format_mib((device.total_mib if device else state.gpu.memory_mib) or None)
    return (
        str(state.gpu.index),
        f"{bar(state, 10 if width < _WIDE else 20 if width < _WIDEST else 30, mark)}  {name}".rstrip(),
        f"{format_mib(device.used_mib if device else None)}/{size}",
        "-" if load.utilisation is None else f"{load.utilisation}%",
        "-" if load.temperature_c is None else f"{load.temperature_c}C",
        "-" if load.power_w is None else f"{load.power_w}{limit}W",
        ", ".join(_users(state, status, with_sizes=width >= _WIDE)),
    )  # fmt: skip


def _gpu_style(state: GpuState, status: LedgerStatus) -> str:
    if state.foreign or state.unexplained_mib > WORTH_A_LINE_MIB:
        return WARNING
    marked = any(marks_of(lease, status, (state,)) for lease in _holders(state, status))
    return WARNING if marked else GOOD if state.is_idle else ""


def _holders(state: GpuState, status: LedgerStatus) -> list[Lease]:
    return [lease for lease in status.leases if state.gpu.uuid in lease.gpus]


def _users(state: GpuState, status: LedgerStatus, *, with_sizes: bool) -> Iterator[str]:
    """The holders of a GPU, and the foreign processes on it."""
    device = state.device
    if device is None:
        yield "the driver does not answer"
    elif state.is_idle:
        yield "free"
    holders = _holders(state, status)
    if len(holders) > 2:
        yield f"{len(holders)} jobs"
    for lease in holders:
        who = (user_name(lease.uid), *marks_of(lease, status, (state,)))
        used = format_mib(device.used_by.get(lease.job, 0)) if device else "-"
        of = "" if lease.vram_mib is None else f" of {short_mib(lease.vram_mib)}"
        yield f"{lease.name or lease.job[:_ID]} ({', '.join(who)})" + (f" {used}{of}" if with_sizes else "")
    for one in state.foreign:
        yield foreign_text(one) + (f" {format_mib(one.used_mib)}" if with_sizes else "")
    if state.unexplained_mib > WORTH_A_LINE_MIB:
        yield f"no visible process: {format_mib(state.unexplained_mib)}"


# -- jobs ---------------------------------------------------------------------------------------------------


def _jobs(leases: Sequence[Lease], content: Content, width: int, mark: Glyphs) -> list[Line]:
    status = content.status
    marks = [_state(lease, status) for lease in leases]
    cells = [
        (
            _id(lease.job, width), _name(lease.name), marked or "running", held_text(lease, status),
            user_name(lease.uid), whole_seconds(status.now_s - lease.since_s),
            left_text(lease, status.now_s), lease.command,
        )
        for lease, marked in zip(leases, marks, strict=True)
    ]  # fmt: skip
    name, what, user = _caps(width)
    heads = f"JOB | NAME<{name} | STATE<18 | HOLDS<{what} | USER<{user} | FOR>!2 | LEFT>!1 | COMMAND"
    head, *lines = output.table_in(width, heads, cells, least=10, mark=mark)
    styles = [WARNING if marked else "" for marked in marks]
    return [head, *(Line(line.text, style) for line, style in zip(lines, styles, strict=True))]


def _state(lease: Lease, status: LedgerStatus) -> str:
    """How the job deviates from one that simply runs: "paused", "idle 8m, over"."""
    words = marks_of(lease, status, status.gpus)
    if lease.idle_since_s is not None:
        idle = f"idle {whole_seconds(status.now_s - lease.idle_since_s)}"
        words = [idle if word == "idle" else word for word in words]
    return ", ".join(["not begun"] * (lease.job in status.not_begun) + words)


def _id(job: str, width: int) -> str:
    return job if width >= _WIDE else job[:_ID]


def _name(name: str) -> str:
    return (name or "-").ljust(_NAME)


def _caps(width: int) -> tuple[int, int, int]:
    """The most columns of a name, of what is held or wanted, and of a user."""
    return (14, 14, 8) if width < _WIDE else (24, 30, 12) if width < _WIDEST else (40, 40, 16)


# -- those that wait ----------------------------------------------------------------------------------------


def _waiting(
    entries: Sequence[Ticket | DetachedJob], content: Content, width: int, mark: Glyphs
) -> list[Line]:
    cells = [_waiting_cells(each, content, width) for each in entries]
    name, what, user = _caps(width)
    heads = f"WAITING | NAME<{name} | WANTS<{what} | USER<{user} | FOR>!2 | STARTS> | WHY"
    heads += f"<{width // 3} | COMMAND" if width >= _WIDE else ""
    return output.table_in(width, heads, cells, least=24, mark=mark)


def _waiting_cells(entry: Ticket | DetachedJob, content: Content, width: int) -> tuple[str, ...]:
    status, job = content.status, _id(entry.job, width)
    if isinstance(entry.command, tuple):  # a detached job: it has no request yet
        why, command = f"begins {begins_text(entry, status, content.at)}", command_text(entry.command)
        waited = whole_seconds(content.at - entry.began_at)
        cells = (job, _name(entry.name), "-", user_name(content.uid), waited, "later")
    else:
        why, command = _why(entry, status), entry.command
        cells = (job, _name(entry.name), *request_cells(entry, status))
    return (*cells, why, command) if width >= _WIDE else (*cells, why)


def _why(ticket: Ticket, status: LedgerStatus) -> str:
    priority = f"priority {ticket.priority:+d}, " if ticket.priority else ""
    return priority + reason(ticket, status)


# -- the chosen one -----------------------------------------------------------------------------------------


def details(row: Row, content: Content) -> list[Line]:
    """What the row itself has no room for, the most important line first."""
    entry, status = row.entry, content.status
    if isinstance(entry, GpuState):
        return _gpu_details(entry, status)
    if isinstance(entry, Lease):
        *notes, unit = below_job(entry, status)
        return [unit, *notes]
    *_, why, command = _waiting_cells(entry, content, _WIDE)
    return [Line(visible(f"  {text}"), FAINT) for text in (why, command) if text]


def _gpu_details(state: GpuState, status: LedgerStatus) -> list[Line]:
    room = f"reserved {format_mib(state.reserved_mib)}, free {format_mib(state.free_mib)}"
    about = (state.gpu.name, state.gpu.uuid, room, load_text(state.load))
    texts = [", ".join(filter(None, about)), *_users(state, status, with_sizes=True)]
    return [Line(visible(f"  {text}"), FAINT) for text in texts]
