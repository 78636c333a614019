"""``slicer status`` for people: sections of lines, in 80 columns if the names allow it."""

from __future__ import annotations

import time

from slicer import moments
from slicer.cli import output
from slicer.cli.queue.rows import table
from slicer.cli.status_gpus import gpu_lines, marks_of
from slicer.cli.status_why import indices, reason
from slicer.columns import FAINT, WARNING, Line
from slicer.job.words import MARKS, remaining
from slicer.kernel.users import user_name
from slicer.model import CPU, GroupStanding, Lease, Reservation, Ticket, UserStanding
from slicer.quantity import format_duration, format_estimate, short_mib
from slicer.record import record
from slicer.share.details import standing_words
from slicer.state.statedir import SYSTEM_DIR
from slicer.text import command_text, counted, quote, slot_words, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from slicer.ledger.status import LedgerStatus, SlotState
    from slicer.outcome.job_files import DetachedJob
    from slicer.queue.control.messages import RunningQueue
    from slicer.state.standings import ServerStanding

_SLOTS_NAMED = 6  # jobs on the line of a slot


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
    return [*found, *beside(status, servers, queues), _machine(status), *people(status)]


def beside(
    status: LedgerStatus, servers: tuple[ServerStanding, ...], queues: tuple[RunningQueue, ...]
) -> list[Section]:
    """The sections beside jobs, requests and GPUs: reservations, queues, servers, slots of several kinds."""
    found = []
    if status.reservations:
        numbers = {state.gpu.uuid: state.gpu.index for state in status.gpus}
        head, *rows = reservations(status.reservations, numbers, time.time())
        found.append(Section((head,), tuple((row,) for row in rows), "reservations"))
    if queues:
        head, entries = table(queues, time.time())
        found.append(Section((head,), tuple(entries), "queues"))
    if servers:
        found.append(servers_section(servers, time.time()))
    return [*found, _slots(status)] if len(status.slots) > 1 else found


def reservations(found: Sequence[Reservation], numbers: Mapping[str, int], now: float) -> list[Line]:
    """A heading and one line a reservation. ``numbers``: of the GPUs, by UUID."""
    rows = [
        (
            each.id, user_name(each.uid), ", ".join(str(numbers.get(uuid, uuid)) for uuid in each.gpus),
            "now" if each.from_at <= now else moments.words(each.from_at, now),
            moments.words(each.until_at, now), format_duration(round(each.until_at - each.from_at)),
        )
        for each in found
    ]  # fmt: skip
    return output.table("RESERVED | FOR USER | GPUS | FROM | UNTIL | LENGTH>", rows)


def people(status: LedgerStatus) -> list[Section]:
    """The users and the groups; or that only the jobs of one user are known."""
    if status.users is None:
        if status.directory in ("", SYSTEM_DIR):
            return []
        return [Section((Line(f"Jobs of this user only ({status.directory}).", FAINT),))]
    found = [_users(status.users)] if status.users else []
    return [*found, _groups(status.groups)] if status.groups else found


# -- jobs ---------------------------------------------------------------------------------------------------


def _jobs(status: LedgerStatus) -> Section:
    marks = [", ".join(marks_of(lease, status, status.gpus)) for lease in status.leases]
    rows = [
        (
            lease.job, lease.name or "-", (f"{marked}: " if marked else "") + held_text(lease, status),
            user_name(lease.uid), str(lease.pid), whole_seconds(status.now_s - lease.since_s),
            left_text(lease, status.now_s),
        )
        for lease, marked in zip(status.leases, marks, strict=True)
    ]  # fmt: skip
    head, *found = output.table("JOB | NAME<18 | HOLDS<24 | USER<8 | PID> | FOR> | LEFT>", rows)
    entries = tuple(
        (Line(row.text, WARNING if marked else ""), *below_job(lease, status))
        for row, lease, marked in zip(found, status.leases, marks, strict=True)
    )
    return Section((head,), entries, "jobs")


_HALTED_BY = {
    "paused": "paused by slicer pause",
    "frozen": "frozen from outside (systemctl freeze)",
    "stopped": "stopped (Ctrl-Z)",
}


def below_job(lease: Lease, status: LedgerStatus) -> Iterator[Line]:
    """The lines below a job's own: why it is halted, how it shares its GPUs, its unit and command."""
    if lease.job in status.not_begun:
        yield Line("  has not begun: its queue runs other jobs first")
    halt = status.halt(lease.job)
    if halt is not None:
        since = "" if halt.since_s is None else f", {whole_seconds(status.now_s - halt.since_s)} ago"
        goes_on = f"slicer resume {quote(lease.name or lease.job)}"
        yield Line(visible(f"  {_HALTED_BY[halt.how]}{since}; {goes_on}"), WARNING)
    if lease.idle_since_s is not None:
        idle_s = status.now_s - lease.idle_since_s
        ends = "" if lease.idle_end_s is None else f", ended after {whole_seconds(lease.idle_end_s)} of that"
        yield Line(f"  has not used its GPU for {whole_seconds(idle_s)}{ends}", WARNING)
    now = status.shared(lease.job)
    if now is not None:
        style = WARNING if now.got_past_cap or now.troubles else FAINT
        yield Line(f"  {output.dotted(standing_words(now))}", style)
    unit = f"{lease.unit}{' (--user)' * (lease.manager == 'user')}" if lease.unit else "no scope"
    yield _below(f"{unit}: {lease.command}" if lease.command else unit)


def _below(text: str) -> Line:
    """A faint line for text that is too long for a column."""
    return Line(f"  {visible(text)}", FAINT)


def held_text(lease: Lease, status: LedgerStatus) -> str:
    """Text such as "8G of GPU 0, 1 CPU slot"."""
    parts = []
    if lease.gpus:
        share = "" if lease.vram_mib is None else f"{short_mib(lease.vram_mib)} of "
        parts.append(f"{share}GPU {indices(lease.gpus, status)}")
    parts += _slot_cells(lease.slots)
    return ", ".join(parts) or "-"


def _slot_cells(slots: dict[str, int]) -> list[str]:
    """Texts such as "1 CPU slot" or "2 whisper-gpu"."""
    return [
        slot_words(name, slots[name]) if name == CPU else f"{slots[name]} {name}" for name in sorted(slots)
    ]


def left_text(lease: Lease, now_s: float) -> str:
    left_s, is_said = remaining(lease, now_s)
    if left_s is None:
        return "-"
    if is_said:
        return whole_seconds(left_s) if left_s else "overdue"
    return f"{MARKS.get(lease.est_from, '')}{whole_seconds(left_s)}"


def whole_seconds(seconds: float) -> str:
    """A duration in whole seconds: fractions would be out of date when read."""
    return format_duration(float(max(0, round(seconds))))


# -- who waits ----------------------------------------------------------------------------------------------


def _waiting(status: LedgerStatus) -> Section:
    rows = [(ticket.job, ticket.name or "-", *request_cells(ticket, status)) for ticket in status.tickets]
    head, *found = output.table("WAITING | NAME<18 | WANTS<26 | USER<8 | FOR> | STARTS>", rows)
    entries = []
    for row, ticket in zip(found, status.tickets, strict=True):
        priority = f"priority {ticket.priority:+d}" if ticket.priority else ""
        why = output.dotted(filter(None, (priority, reason(ticket, status), ticket.command)))
        entries.append((row, _below(why)))
    return Section((head,), tuple(entries), "waiting")


def _later(status: LedgerStatus, now_s: float) -> Section:
    """Jobs that wait for others to end, or for their time. ``now_s`` is the wall clock's."""
    rows = [
        (file.job, file.name or "-", begins_text(file, status, now_s), whole_seconds(now_s - file.began_at))
        for file in status.later
    ]
    head, *found = output.table("LATER | NAME<18 | BEGINS<40 | FOR>", rows)
    commands = [_below(command_text(file.command)) for file in status.later]
    return Section((head,), tuple(zip(found, commands, strict=True)), "to begin later")


def begins_text(file: DetachedJob, status: LedgerStatus, now_s: float) -> str:
    """What it waits for, as in "after train:ok, after 3f2a9c01b7de:any". ``now_s`` is the wall clock's."""
    entries: tuple[Lease | Ticket | DetachedJob, ...] = (*status.leases, *status.tickets, *status.later)
    names = {each.job: each.name for each in entries}
    words = [word.partition(":") for word in file.after]
    begins = [f"after {names.get(job) or job}:{condition}" for job, _, condition in words]
    begins += [moments.words(file.begins_at, now_s)] if file.begins_at is not None else []
    return ", ".join(begins)


def request_cells(ticket: Ticket, status: LedgerStatus) -> tuple[str, str, str, str]:
    """What it wants, whose it is, how long it waits, and when it should start."""
    starts_s = status.waits[ticket.job].starts_in_s
    starts = "-" if starts_s is None else f"~{format_estimate(starts_s)}" if starts_s >= 1 else "now"
    waited = whole_seconds(status.now_s - ticket.arrived_s)
    return _wants(ticket, status), user_name(ticket.uid), waited, starts


def _wants(ticket: Ticket, status: LedgerStatus) -> str:
    """Text such as "8G on 2 GPUs (0,1), 1 CPU slot"."""
    parts = []
    if ticket.gpus:
        share = "" if ticket.vram_mib is None else f"{short_mib(ticket.vram_mib)} on "
        choice = f" ({indices(ticket.gpu_choice, status)})" if ticket.gpu_choice else ""
        parts.append(f"{share}{counted(ticket.gpus, 'GPU')}{choice}")
    parts += _slot_cells(ticket.slots)
    return ", ".join(parts) or "-"


# -- slicer serve -------------------------------------------------------------------------------------------


def servers_section(servers: tuple[ServerStanding, ...], now_s: float) -> Section:
    """The state, times and trouble of each server. ``now_s`` is wall-clock time."""
    rows = [
        (
            each.name, each.state, whole_seconds(now_s - each.since_s), str(each.requests), str(each.served),
            "-" if each.idle_since_s is None else whole_seconds(now_s - each.idle_since_s), each.job or "-",
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
    head = [Line(slot_line(CPU, slots[CPU], status))] if len(slots) == 1 else []
    head += lock_lines(status)
    if status.no_gpus:
        return Section((*head, Line(f"No GPUs: {visible(status.no_gpus)}")))
    heading, entries = gpu_lines(status)
    return Section((*head, heading), entries, "GPUs")


def lock_lines(status: LedgerStatus) -> list[Line]:
    """Who holds the lock of scripts, if somebody does."""
    lock = status.plain_lock
    if lock is None or not lock.pid:
        return []
    return [Line(f"GPU lock of scripts: {lock.path} is held by pid {lock.pid}", WARNING)]


def _slots(status: LedgerStatus) -> Section:
    """The CPU slots, each other slot that is used or wanted, and all the rest on one line."""
    wanted = {name for ticket in status.tickets for name in ticket.slots}
    busy, idle = [], []
    for name, slot in status.slots.items():
        if name != CPU and not slot.held and name not in wanted:
            idle.append(f"{name} {slot.total}")
        elif name != CPU:
            busy.append(slot_line(name, slot, status))
    if idle:
        busy.append(f"Slots all free: {', '.join(idle)}")
    head = slot_line(CPU, status.slots[CPU], status)
    return Section((Line(head),), tuple((Line(text),) for text in busy), "slots")


def slot_line(name: str, slot: SlotState, status: LedgerStatus) -> str:
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
