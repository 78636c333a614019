"""``slicer status`` for people: sections of lines, in 80 columns if the names allow it."""

from __future__ import annotations

import os
import time

from slicer import moments
from slicer.cli import output
from slicer.cli.queue import rows as queue_rows
from slicer.cli.status_rows import details, rows, whole_seconds
from slicer.cli.status_tables import Frame, parts, table
from slicer.columns import ASCII, FAINT, UNICODE, WARNING, Line, Section, joined
from slicer.kernel.users import user_name
from slicer.model import CPU, GroupStanding, OutOfService, Reservation, UserStanding
from slicer.quantity import format_duration, short_mib
from slicer.state.statedir import SYSTEM_DIR
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slicer.cli.status_rows import Row
    from slicer.cli.status_tables import Part
    from slicer.ledger.status import LedgerStatus, SlotState
    from slicer.queue.control.messages import RunningQueue
    from slicer.state.standings import ServerStanding

_SLOTS_NAMED = 6  # jobs on the line of a slot
_KINDS = {"gpu": "GPUs", "job": "jobs", "waiting": "waiting"}


def lines(
    status: LedgerStatus, servers: tuple[ServerStanding, ...] = (), queues: tuple[RunningQueue, ...] = ()
) -> list[Line]:
    return joined([section.lines for section in sections(status, servers, queues)])


def sections(
    status: LedgerStatus, servers: tuple[ServerStanding, ...] = (), queues: tuple[RunningQueue, ...] = ()
) -> list[Section]:
    """The sections: jobs, waiting requests, queues, servers of ``slicer serve``, the machine."""
    mark = UNICODE if output.may_draw() else ASCII
    frame = Frame(status, output.width(), mark, is_whole=True)
    gpus, *others = parts(rows(status, os.geteuid(), time.time()), status)
    found = [_section(part, frame) for part in others]
    slots = status.slots
    head = [Line(slot_line(CPU, slots[CPU], status))] if len(slots) == 1 else []
    machine = _section(gpus, frame, (*head, *lock_lines(status)))
    return [*found, *beside(status, servers, queues), machine, *people(status)]


def _section(part: Part, frame: Frame, above: tuple[Line, ...] = ()) -> Section:
    """The table of one kind, with the details of each row below it."""
    head, *lines = table(part, 0, len(part.rows), frame)
    entries = [(line, *_below(row, frame.status)) for row, line in zip(part.rows, lines, strict=True)]
    return Section((*above, head), tuple(entries), _KINDS[part.kind])


def _below(row: Row, status: LedgerStatus) -> list[Line]:
    found = details(row, status)
    if row.kind == "gpu":
        return found[1:]  # the table has the first
    if row.kind == "job":
        return found
    return [Line(f"  {output.dotted(line.text.strip() for line in found)}", FAINT)]


def beside(
    status: LedgerStatus, servers: tuple[ServerStanding, ...], queues: tuple[RunningQueue, ...]
) -> list[Section]:
    """The sections beside jobs, requests and GPUs: reservations, queues, servers, slots of several kinds."""
    found = []
    if status.reservations:
        numbers = {state.gpu.uuid: state.gpu.index for state in status.gpus}
        found.append(reservations(status.reservations, numbers, time.time()))
    if queues:
        found.append(queue_rows.section(queues, time.time()))
    if servers:
        found.append(servers_section(servers, time.time()))
    return [*found, _slots(status)] if len(status.slots) > 1 else found


def reservations(found: Sequence[Reservation], numbers: Mapping[str, int], now: float) -> Section:
    """One line a reservation. ``numbers``: of the GPUs, by UUID."""
    rows = [
        (
            each.id, user_name(each.uid), ", ".join(str(numbers.get(uuid, uuid)) for uuid in each.gpus),
            "now" if each.from_at <= now else moments.words(each.from_at, now),
            moments.words(each.until_at, now), format_duration(round(each.until_at - each.from_at)),
        )
        for each in found
    ]  # fmt: skip
    return output.section("RESERVED | FOR USER | GPUS | BEGINS | ENDS | LENGTH>", rows, "reservations")


def out_of_service(found: Sequence[OutOfService], numbers: Mapping[str, int], now: float) -> Section:
    """One line a GPU that is out of service by hand."""
    rows = [
        (each.gpu, str(numbers.get(each.gpu, "gone")), moments.words(each.since_at, now), each.why)
        for each in found
    ]
    return output.section("OUT OF SERVICE | GPU | WHEN | WHY", rows, "GPUs out of service")


def people(status: LedgerStatus) -> list[Section]:
    """The users and the groups; or that only the jobs of one user are known."""
    if status.users is None:
        if status.directory in ("", SYSTEM_DIR):
            return []
        return [Section((Line(f"Jobs of this user only ({status.directory}).", FAINT),))]
    found = [_users(status.users)] if status.users else []
    return [*found, _groups(status.groups)] if status.groups else found


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
        about = output.dotted((each.kind, *each.listen, f"pid {each.pid}"))
        below = Line(f"  {visible(about)}", FAINT)
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
    heads = "USER<16 | GPUS> | VRAM> | CPU SLOTS> | WAITING> | SHARE> | DUE>"
    return output.section(heads, rows, "users")


def _groups(groups: tuple[GroupStanding, ...]) -> Section:
    """The holdings and caps of a group's members together."""
    rows = [(visible(each.name), *_held_and_most(each)) for each in groups]
    return output.section("GROUP<16 | GPUS> | VRAM> | CPU SLOTS>", rows, "groups")


def _held_and_most(each: UserStanding | GroupStanding) -> tuple[str, str, str]:
    return (
        _of(each.gpus, each.max_gpus), _of(each.vram_mib, each.max_vram_mib, short_mib),
        _of(each.slots, each.max_slots),
    )  # fmt: skip


def _of(held: int, most: int | None, text: Callable[[int], str] = str) -> str:
    """Text such as "2 of 4", or "2" without a cap."""
    return f"{text(held) if held else 0} of {text(most)}" if most is not None else text(held) if held else "0"


# -- the machine --------------------------------------------------------------------------------------------


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
