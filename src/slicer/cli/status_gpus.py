"""The GPUs of ``slicer status`` for people, and what marks a job on them."""

from __future__ import annotations

from slicer.cli import output
from slicer.columns import ASCII, FAINT, HEADING, UNICODE, WARNING, Glyphs, Line, aligned, clip
from slicer.kernel.users import user_name
from slicer.quantity import format_mib
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slicer.ledger.status import ForeignProcess, GpuState, LedgerStatus
    from slicer.model import GpuLoad, Lease

    _Row = tuple[tuple[str, ...], str]  # cells and style of a row of the GPUs' table

_BAR = 10  # cells
_GPU_NAME = 14  # characters of a GPU's name on a terminal
WORTH_A_LINE_MIB = 200  # of unexplained memory: every driver uses some


def marks_of(lease: Lease, status: LedgerStatus, gpus: Iterable[GpuState]) -> list[str]:
    """Marks for what is unusual about a job on these GPUs."""
    halt = status.halt(lease.job)
    marks: list[str] = [halt.how] if halt else []
    marks += ["idle"] if lease.idle_since_s is not None else []
    marks += ["over"] if any(is_over(lease, state) for state in gpus) else []
    return [*marks, "forced"] if lease.forced else marks


def is_over(lease: Lease, state: GpuState) -> bool:
    """Whether the job was seen to use more of this GPU than it declared."""
    if lease.vram_mib is None or state.gpu.uuid not in lease.gpus:
        return False
    now_mib = state.device.used_by.get(lease.job, 0) if state.device else 0
    return max(now_mib, peak_mib(lease, state) or 0) > lease.vram_mib


def peak_mib(lease: Lease, state: GpuState) -> int | None:
    """The highest use of this GPU seen for a holder, in MiB; None if it was never measured."""
    place = lease.gpus.index(state.gpu.uuid)
    return lease.vram_peak_mib[place] if place < len(lease.vram_peak_mib) else None


def gpu_lines(status: LedgerStatus) -> tuple[Line, tuple[tuple[Line, ...], ...]]:
    """The GPUs' heading, and for each GPU its line and those of its users."""
    names = [visible(state.gpu.name).removeprefix("NVIDIA ") for state in status.gpus]
    if output.is_terminal():
        names = [clip(name, _GPU_NAME, output.glyphs()) for name in names]
    mark = UNICODE if output.may_draw() else ASCII
    titles = [
        (name, format_mib(state.gpu.memory_mib or None), bar(state, _BAR, mark))
        for name, state in zip(names, status.gpus, strict=True)
    ]
    groups = [
        list(_gpu_rows(state, what, status))
        for state, what in zip(status.gpus, aligned(titles, "lrl"), strict=True)
    ]
    cells = [cells for group in groups for cells, _ in group]
    head, *table = output.table("> | <36 | USED> | RESERVED> | FREE> | PEAK> | ", cells)
    lines = iter(table)
    entries = tuple(tuple(Line(f" {next(lines).text}", style) for _, style in group) for group in groups)
    free = sum(state.is_idle for state in status.gpus)
    title = f"GPUs: {free} of {len(status.gpus)} free"
    return Line(title + f" {head.text}"[len(title) :], HEADING), entries


def _gpu_rows(state: GpuState, what: str, status: LedgerStatus) -> Iterator[_Row]:
    """A GPU, its holders, and others that use it."""
    device = state.device
    used_mib, reserved_mib = (device.used_mib, state.reserved_mib) if device else (None, None)
    figures = (format_mib(used_mib), format_mib(reserved_mib), format_mib(state.free_mib))
    yield (str(state.gpu.index), what, *figures, "", ""), ""
    if not state.is_idle and (load := load_text(state.load)):
        yield ("", f"  {load}", "", "", "", "", ""), FAINT
    for lease in status.leases:
        if state.gpu.uuid in lease.gpus:
            yield _holder_row(lease, state, status)
    for one in state.foreign:
        what = f"  {foreign_text(one)}"
        peak = format_mib(one.peak_mib) if one.peak_mib else ""
        yield ("", what, format_mib(one.used_mib), "", "", peak, ""), WARNING
    if state.unexplained_mib > WORTH_A_LINE_MIB:
        yield ("", "  no visible process", format_mib(state.unexplained_mib), "", "", "", ""), WARNING


def _holder_row(lease: Lease, state: GpuState, status: LedgerStatus) -> _Row:
    peak = peak_mib(lease, state)
    used = state.device.used_by.get(lease.job, 0) if state.device else None
    marks = marks_of(lease, status, (state,))
    cells = (
        "", f"  {lease.job} {lease.name}".rstrip(), format_mib(used),
        "whole" if lease.vram_mib is None else format_mib(lease.vram_mib), "",
        format_mib(peak) if peak else "", " ".join(marks),
    )  # fmt: skip
    return cells, WARNING if marks else ""


def foreign_text(one: ForeignProcess) -> str:
    """Text such as "no job: pid 4711 python (alice)"."""
    who = f"pid {one.pid} {one.name}".rstrip() if one.pid else "processes of others"
    user = "" if one.uid is None else f" ({user_name(one.uid)})"
    return f"{f'of job {one.job[:8]}' if one.job else 'no job'}: {who}{user}"


def load_text(load: GpuLoad) -> str:
    """Text such as "93% busy, 64 C, 412 of 700 W"; "" if nothing is known."""
    parts = [] if load.utilisation is None else [f"{load.utilisation}% busy"]
    parts += [] if load.temperature_c is None else [f"{load.temperature_c} C"]
    limit = "" if load.power_limit_w is None else f"of {load.power_limit_w} "
    return ", ".join(parts if load.power_w is None else [*parts, f"{load.power_w} {limit}W"])


def bar(state: GpuState, cells: int, glyphs: Glyphs) -> str:
    """The GPU's memory as a bar: used, reserved beyond that, and free."""
    device = state.device
    if device is None or not device.total_mib:
        return ""
    used, reserved, free = ("█", "░", "·") if glyphs is UNICODE else ("#", "=", ".")
    mib = device.used_mib, state.reserved_mib
    full = [min(cells, round(each * cells / device.total_mib)) for each in mib]
    kept = max(0, full[1] - full[0])
    return f"[{used * full[0]}{reserved * kept}{free * (cells - full[0] - kept)}]"
