"""``slicer status`` for people: sections of lines, in 80 columns if the names allow it."""

from __future__ import annotations

import time

from slicer import moments
from slicer.cli import output
from slicer.cli.queue.rows import table
from slicer.cli.status_why import indices, reason
from slicer.columns import FAINT, HEADING, WARNING, Line, aligned, clip
from slicer.kernel.users import user_name
from slicer.model import CPU
from slicer.placement.decision import expected_remaining
from slicer.quantity import format_duration, format_estimate, format_mib, short_mib
from slicer.record import record
from slicer.share.words import standing_words
from slicer.state.statedir import SYSTEM_DIR
from slicer.text import command_text, counted, quote, slot_words, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from slicer.ledger.status import GpuState, LedgerStatus, SlotState
    from slicer.model import GroupStanding, Lease, Ticket, UserStanding
    from slicer.queue.control.messages import RunningQueue
    from slicer.serve.model import ServerStanding

    _Row = tuple[tuple[str, ...], str]  # cells and style of a row of the GPUs' table

_BAR = 10  # cells
_GPU_NAME = 14  # characters of a GPU's name on a terminal
_SLOTS_NAMED = 6  # jobs on the line of a slot
_WORTH_A_LINE_MIB = 200  # of unexplained memory: every driver uses some


@record
class Section:
    """A section of the status."""

    head: tuple[Line, ...]
    entries: tuple[tuple[Line, ...], ...] = ()  # the lines of each entry, the most important one first
    what: str = ""  # the noun for the entries, as in "3 more waiting"

    @property
    def lines(self) -> list[Line]:
        return [*self.head, *(line for entry in self.entries for line in entry)]


def lines(
    status: LedgerStatus, servers: tuple[ServerStanding, ...] = (), queues: tuple[RunningQueue, ...] = ()
) -> list[Line]:
    return joined([section.lines for section in sections(status, servers, queues)])


def joined(parts: list[list[Line]]) -> list[Line]:
    """The parts, with empty lines between them."""
    shown: list[Line] = []
    for part in parts:
        shown += [Line(""), *part] if shown else part
    return shown


def sections(
    status: LedgerStatus, servers: tuple[ServerStanding, ...] = (), queues: tuple[RunningQueue, ...] = ()
) -> list[Section]:
    """The sections: jobs, waiting requests, queues, servers of ``slicer serve``, the machine."""
    found = [_jobs(status) if status.leases else Section((Line("No jobs are running."),))]
    if status.tickets:
        found.append(_waiting(status))
    if status.later:
        found.append(_later(status, time.time()))
    if queues:
        head, entries = table(queues, time.time())
        found.append(Section((head,), tuple(entries), "queues"))
    if servers:
        found.append(servers_section(servers, time.time()))
    if len(status.slots) > 1:
        found.append(_slots(status))
    found.append(_machine(status))
    if status.users is not None:
        found += [_users(status.users)] if status.users else []
        found += [_groups(status.groups)] if status.groups else []
    elif status.directory not in ("", SYSTEM_DIR):
        found.append(Section((Line(f"Jobs of this user only ({status.directory}).", FAINT),)))
    return found


# -- jobs ---------------------------------------------------------------------------------------------------


def _jobs(status: LedgerStatus) -> Section:
    rows = [
        (
            lease.job, lease.name or "-", _held(lease, status), user_name(lease.uid), str(lease.pid),
            _seconds(status.now_s - lease.since_s), _left(lease, status.now_s),
        )
        for lease in status.leases
    ]  # fmt: skip
    head, *found = output.table("JOB | NAME<18 | HOLDS<24 | USER<8 | PID> | FOR> | LEFT>", rows)
    entries = tuple(
        (Line(row.text, WARNING if _marks(lease, status, status.gpus) else ""), *_below_job(lease, status))
        for row, lease in zip(found, status.leases, strict=True)
    )
    return Section((head,), entries, "jobs")


_HALTED_BY = {
    "paused": "paused by slicer pause",
    "frozen": "frozen from outside (systemctl freeze)",
    "stopped": "stopped (Ctrl-Z)",
}


def _below_job(lease: Lease, status: LedgerStatus) -> Iterator[Line]:
    """The lines below a job's own: why it is halted, how it shares its GPUs, its unit and command."""
    if lease.job in status.not_begun:
        yield Line("  has not begun: its queue runs other jobs first")
    halt = status.halt(lease.job)
    if halt is not None:
        since = "" if halt.since_s is None else f", {_seconds(status.now_s - halt.since_s)} ago"
        goes_on = f"slicer resume {quote(lease.name or lease.job)}"
        yield Line(visible(f"  {_HALTED_BY[halt.how]}{since}; {goes_on}"), WARNING)
    if lease.idle_since_s is not None:
        idle_s = status.now_s - lease.idle_since_s
        ends = "" if lease.idle_end_s is None else f", ended after {_seconds(lease.idle_end_s)} of that"
        yield Line(f"  has not used its GPU for {_seconds(idle_s)}{ends}", WARNING)
    now = status.shared(lease.job)
    if now is not None:
        style = WARNING if now.got_past_cap or now.troubles else FAINT
        yield Line(f"  {output.dotted(standing_words(now))}", style)
    unit = f"{lease.unit}{' (--user)' * (lease.manager == 'user')}" if lease.unit else "no scope"
    yield _below(f"{unit}: {lease.command}" if lease.command else unit)


def _marks(lease: Lease, status: LedgerStatus, gpus: Iterable[GpuState]) -> list[str]:
    """Marks for what is unusual about a job on these GPUs."""
    halt = status.halt(lease.job)
    marks: list[str] = [halt.how] if halt else []
    marks += ["idle"] if lease.idle_since_s is not None else []
    marks += ["over"] if any(_is_over(lease, state) for state in gpus) else []
    return [*marks, "forced"] if lease.forced else marks


def _is_over(lease: Lease, state: GpuState) -> bool:
    """Whether the job was seen to use more of this GPU than it declared."""
    if lease.vram_mib is None or state.gpu.uuid not in lease.gpus:
        return False
    now_mib = state.device.used_by.get(lease.job, 0) if state.device else 0
    return max(now_mib, _peak(lease, state) or 0) > lease.vram_mib


def _peak(lease: Lease, state: GpuState) -> int | None:
    """The highest use of this GPU seen for a holder, in MiB; None if it was never measured."""
    place = lease.gpus.index(state.gpu.uuid)
    return lease.vram_peak_mib[place] if place < len(lease.vram_peak_mib) else None


def _below(text: str) -> Line:
    """A faint line for text that is too long for a column."""
    return Line(f"  {visible(text)}", FAINT)


def _held(lease: Lease, status: LedgerStatus) -> str:
    parts = []
    if lease.gpus:
        share = "" if lease.vram_mib is None else f"{short_mib(lease.vram_mib)} of "
        parts.append(f"{share}GPU {indices(lease.gpus, status)}")
    parts += _slot_cells(lease.slots)
    marks = ", ".join(_marks(lease, status, status.gpus))
    return (f"{marks}: " if marks else "") + (", ".join(parts) or "-")


def _slot_cells(slots: dict[str, int]) -> list[str]:
    """Texts such as "1 CPU slot" or "2 whisper-gpu"."""
    return [
        slot_words(name, slots[name]) if name == CPU else f"{slots[name]} {name}" for name in sorted(slots)
    ]


def _left(lease: Lease, now_s: float) -> str:
    left = expected_remaining(lease, now_s)
    if left is None and lease.est_s is not None:  # slicer's own estimate, which nobody promised
        left = lease.since_s + lease.est_s - now_s
        return f"~{_seconds(left)}" if left > 0 else "-"
    return "-" if left is None else _seconds(left) if left else "overdue"


def _seconds(seconds: float) -> str:
    """A duration in whole seconds: fractions would be out of date when read."""
    return format_duration(float(max(0, round(seconds))))


# -- who waits ----------------------------------------------------------------------------------------------


def _waiting(status: LedgerStatus) -> Section:
    rows = [
        (
            ticket.job, ticket.name or "-", _wants(ticket, status), user_name(ticket.uid),
            _seconds(status.now_s - ticket.arrived_s), _starts(status.waits[ticket.job].starts_in_s),
        )
        for ticket in status.tickets
    ]  # fmt: skip
    head, *found = output.table("WAITING | NAME<18 | WANTS<26 | USER<8 | FOR> | STARTS>", rows)
    entries = []
    for row, ticket in zip(found, status.tickets, strict=True):
        priority = f"priority {ticket.priority:+d}" if ticket.priority else ""
        why = output.dotted(filter(None, (priority, reason(ticket, status), ticket.command)))
        entries.append((row, _below(why)))
    return Section((head,), tuple(entries), "waiting")


def _later(status: LedgerStatus, now_s: float) -> Section:
    """Jobs that wait for others to end, or for their time. ``now_s`` is the wall clock's."""
    names = {lease.job: lease.name for lease in status.leases}
    names |= {ticket.job: ticket.name for ticket in status.tickets}
    names |= {file.job: file.name for file in status.later}
    rows = []
    for file in status.later:
        words = [word.partition(":") for word in file.after]
        begins = [f"after {names.get(job) or job}:{condition}" for job, _, condition in words]
        begins += [moments.words(file.begins_at, now_s)] if file.begins_at is not None else []
        rows.append((file.job, file.name or "-", ", ".join(begins), _seconds(now_s - file.began_at)))
    head, *found = output.table("LATER | NAME<18 | BEGINS<40 | FOR>", rows)
    commands = [_below(command_text(file.command)) for file in status.later]
    return Section((head,), tuple(zip(found, commands, strict=True)), "to begin later")


def _wants(ticket: Ticket, status: LedgerStatus) -> str:
    """Text such as "8G on 2 GPUs (0,1), 1 CPU slot"."""
    parts = []
    if ticket.gpus:
        share = "" if ticket.vram_mib is None else f"{short_mib(ticket.vram_mib)} on "
        choice = f" ({indices(ticket.gpu_choice, status)})" if ticket.gpu_choice else ""
        parts.append(f"{share}{counted(ticket.gpus, 'GPU')}{choice}")
    parts += _slot_cells(ticket.slots)
    return ", ".join(parts) or "-"


def _starts(seconds: float | None) -> str:
    return "-" if seconds is None else f"~{format_estimate(seconds)}" if seconds >= 1 else "now"


# -- slicer serve -------------------------------------------------------------------------------------------


def servers_section(servers: tuple[ServerStanding, ...], now_s: float) -> Section:
    """The state, times and trouble of each server. ``now_s`` is wall-clock time."""
    rows = [
        (
            each.name, each.state, _seconds(now_s - each.since_s), str(each.requests), str(each.served),
            "-" if each.idle_since_s is None else _seconds(now_s - each.idle_since_s), each.job or "-",
        )
        for each in servers
    ]  # fmt: skip
    head, *found = output.table("SERVER<18 | STATE | FOR> | REQUESTS> | SERVED> | IDLE> | JOB", rows)
    entries = []
    for row, each in zip(found, servers, strict=True):
        shown = Line(row.text, WARNING if each.state == "stuck" else "")
        below = _below(output.dotted((each.kind, *each.listen, f"pid {each.pid}")))
        trouble = (Line(f"  {visible(each.trouble)}", WARNING),) if each.trouble else ()
        entries.append((shown, below, *trouble))
    return Section((head,), tuple(entries), "servers")


# -- all users ----------------------------------------------------------------------------------------------


def _users(users: tuple[UserStanding, ...]) -> Section:
    """Each user's holdings and caps, and the share of the GPUs that they used and that is due to them."""
    rows = [
        (user_name(one.uid), *_held_and_most(one), str(one.waiting), f"{one.share:.2f}", f"{one.due:.2f}")
        for one in users
    ]
    return _plain("USER<16 | GPUS> | GPU MEMORY> | CPU SLOTS> | WAITING> | SHARE> | DUE>", rows, "users")


def _groups(groups: tuple[GroupStanding, ...]) -> Section:
    """The holdings and caps of a group's members together."""
    rows = [(visible(each.name), *_held_and_most(each)) for each in groups]
    return _plain("GROUP<16 | GPUS> | GPU MEMORY> | CPU SLOTS>", rows, "groups")


def _plain(heads: str, rows: Iterable[tuple[str, ...]], what: str) -> Section:
    head, *found = output.table(heads, rows)
    return Section((head,), tuple((row,) for row in found), what)


def _held_and_most(each: UserStanding | GroupStanding) -> tuple[str, str, str]:
    return (
        _of(each.gpus, each.max_gpus), _of(each.vram_mib, each.max_vram_mib, short_mib),
        _of(each.slots, each.max_slots),
    )  # fmt: skip


def _of(held: int, most: int | None, text: Callable[[int], str] = str) -> str:
    """Text such as "2 of 4", or "2" without a cap."""
    return f"{text(held) if held else 0} of {text(most)}" if most is not None else text(held) if held else "0"


# -- the machine --------------------------------------------------------------------------------------------


def _machine(status: LedgerStatus) -> Section:
    slots = status.slots
    head = [Line(_slot_line(CPU, slots[CPU], status))] if len(slots) == 1 else []
    if status.plain_lock and status.plain_lock.pid:
        lock = status.plain_lock
        head.append(Line(f"GPU lock of scripts: {lock.path} is held by pid {lock.pid}", WARNING))
    if status.no_gpus:
        return Section((*head, Line(f"No GPUs: {visible(status.no_gpus)}")))
    heading, entries = _gpus(status)
    return Section((*head, heading), entries, "GPUs")


def _slots(status: LedgerStatus) -> Section:
    """The CPU slots, each other slot that is used or wanted, and all the rest on one line."""
    wanted = {name for ticket in status.tickets for name in ticket.slots}
    busy, idle = [], []
    for name, slot in status.slots.items():
        if name != CPU and not slot.held and name not in wanted:
            idle.append(f"{name} {slot.total}")
        elif name != CPU:
            busy.append(_slot_line(name, slot, status))
    if idle:
        busy.append(f"Slots all free: {', '.join(idle)}")
    head = _slot_line(CPU, status.slots[CPU], status)
    return Section((Line(head),), tuple((Line(text),) for text in busy), "slots")


def _slot_line(name: str, slot: SlotState, status: LedgerStatus) -> str:
    what = "CPU slots" if name == CPU else f"{name} slots"
    text = f"{what}: {slot.free} of {slot.total} free"
    if slot.total is None:
        is_read = status.slot_limits is not None
        text = f"{what}: {'not in the configuration any more' if is_read else 'unknown'}"
    holders = [lease for lease in status.leases if name in lease.slots]
    named = []
    for lease in holders[:_SLOTS_NAMED]:
        marks = [f"{lease.slots[name]} slots"] * (lease.slots[name] > 1) + ["forced"] * bool(lease.forced)
        named.append(visible(lease.name or lease.job) + (f" ({', '.join(marks)})" if marks else ""))
    if len(holders) > _SLOTS_NAMED:
        named.append(f"{len(holders) - _SLOTS_NAMED} more")
    return f"{text}; held by {', '.join(named)}" if named else text


def _gpus(status: LedgerStatus) -> tuple[Line, tuple[tuple[Line, ...], ...]]:
    """The GPUs' heading, and for each GPU its line and those of its users."""
    names = [visible(state.gpu.name).removeprefix("NVIDIA ") for state in status.gpus]
    if output.is_terminal():
        names = [clip(name, _GPU_NAME, output.glyphs()) for name in names]
    titles = [
        (name, format_mib(state.gpu.memory_mib or None), _bar(state))
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
    for lease in status.leases:
        if state.gpu.uuid in lease.gpus:
            yield _holder_row(lease, state, status)
    for one in state.foreign:
        who = f"pid {one.pid} {one.name}" if one.pid else "processes of others"
        what = f"  {f'of job {one.job[:8]}' if one.job else 'no job'}: {who}".rstrip()
        peak = format_mib(one.peak_mib) if one.peak_mib else ""
        yield ("", what, format_mib(one.used_mib), "", "", peak, ""), WARNING
    if state.unexplained_mib > _WORTH_A_LINE_MIB:
        yield ("", "  no visible process", format_mib(state.unexplained_mib), "", "", "", ""), WARNING


def _holder_row(lease: Lease, state: GpuState, status: LedgerStatus) -> _Row:
    peak = _peak(lease, state)
    used = state.device.used_by.get(lease.job, 0) if state.device else None
    marks = _marks(lease, status, (state,))
    cells = (
        "", f"  {lease.job} {lease.name}".rstrip(), format_mib(used),
        "whole" if lease.vram_mib is None else format_mib(lease.vram_mib), "",
        format_mib(peak) if peak else "", " ".join(marks),
    )  # fmt: skip
    return cells, WARNING if marks else ""


def _bar(state: GpuState) -> str:
    """The GPU's memory as a bar: used, reserved beyond that, and free."""
    device = state.device
    if device is None or not device.total_mib:
        return ""
    used, reserved, free = ("█", "░", "·") if output.may_draw() else ("#", "=", ".")
    cells = [min(_BAR, round(mib * _BAR / device.total_mib)) for mib in (device.used_mib, state.reserved_mib)]
    kept = max(0, cells[1] - cells[0])
    return f"[{used * cells[0]}{reserved * kept}{free * (_BAR - cells[0] - kept)}]"
