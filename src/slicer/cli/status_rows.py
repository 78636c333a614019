"""The rows of a status: GPUs, jobs and who waits and why, and what is said of each. Pure, but for names."""

from __future__ import annotations

from slicer import moments
from slicer.cli import output
from slicer.columns import FAINT, WARNING, Line
from slicer.job.words import MARKS, describe_holders, gives_way, left, remaining
from slicer.kernel.users import user_name
from slicer.ledger.status import GpuState
from slicer.model import CPU, PREEMPTIBLE, Lease, Ticket
from slicer.placement.refusal import refusal
from slicer.quantity import format_duration, format_estimate, format_mib, short_mib
from slicer.record import record
from slicer.share.details import standing_words
from slicer.text import a_slot, command_text, counted, quote, slot_words, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Literal

    from slicer.ledger.status import ForeignProcess, LedgerStatus
    from slicer.model import Busy
    from slicer.outcome.job_files import DetachedJob

    Kind = Literal["gpu", "job", "waiting"]
    Entry = GpuState | Lease | Ticket | DetachedJob

_ID = 8  # characters of a job's id, where there is little room
_WORTH_A_LINE_MIB = 200  # of unexplained memory: every driver uses some
_HALTED_BY = {
    "paused": "paused by slicer pause",
    "frozen": "frozen from outside (systemctl freeze)",
    "stopped": "stopped (Ctrl-Z)",
}


@record
class Row:
    """A GPU, a job, or one that waits."""

    kind: Kind
    key: str  # a job's id, or a GPU's UUID
    entry: Entry
    uid: int = -1  # the job's owner
    for_s: float = 0.0  # how long it runs, or waits
    begins: str = ""  # after what, or when, if it has not asked for anything yet

    @property
    def name(self) -> str:
        entry = self.entry
        return f"GPU {entry.gpu.index}" if isinstance(entry, GpuState) else visible(entry.name) or entry.job

    def has(self, text: str) -> bool:
        """Whether the job's id, name, command or user contains the text."""
        entry = self.entry
        if isinstance(entry, GpuState):
            return True
        words = (entry.job, entry.name, command_of(entry), user_name(self.uid))
        return any(text.lower() in word.lower() for word in words)


def rows(status: LedgerStatus, uid: int, at: float) -> tuple[Row, ...]:
    """The rows in their order. The jobs that begin later are those of ``uid``. ``at`` is the wall clock's."""
    now_s = status.now_s
    return (
        *(Row("gpu", state.gpu.uuid, state) for state in status.gpus),
        *(Row("job", each.job, each, each.uid, now_s - each.since_s) for each in status.leases),
        *(Row("waiting", each.job, each, each.uid, now_s - each.arrived_s) for each in status.tickets),
        *later_rows(status, uid, at),
    )


def later_rows(status: LedgerStatus, uid: int, at: float) -> Iterator[Row]:
    """Those of the jobs that begin later, as in :func:`rows`."""
    jobs: tuple[Lease | Ticket | DetachedJob, ...] = (*status.leases, *status.tickets, *status.later)
    names = {each.job: each.name for each in jobs} if status.later else {}
    for each in status.later:
        yield Row("waiting", each.job, each, uid, at - each.began_at, _begins(each, names, at))


def command_of(entry: Lease | Ticket | DetachedJob) -> str:
    return command_text(entry.command) if isinstance(entry.command, tuple) else entry.command


def whole_seconds(seconds: float) -> str:
    """A duration in whole seconds: fractions would be out of date when read."""
    return format_duration(float(max(0, round(seconds))))


# -- GPUs ---------------------------------------------------------------------------------------------------


def users(state: GpuState, status: LedgerStatus) -> Iterator[tuple[str, str, str]]:
    """Why a GPU is out of service; who uses it: the holders, and foreign processes.

    Of each a text, why or how much, and a style.
    """
    device = state.device
    if state.out:
        yield "out of service:", state.out, WARNING
    elif state.is_suspect:
        yield "placed last:", "the last jobs failed at once, and end well elsewhere", WARNING
    for lease in holders(state, status):
        marks = marks_of(lease, status, (state,))
        used = format_mib(device.used_by.get(lease.job, 0)) if device else "-"
        of = "" if lease.vram_mib is None else f" of {short_mib(lease.vram_mib)}"
        peak = f", peak {format_mib(mib)}" if (mib := _peak_mib(lease, state)) else ""
        name = f"{lease.name or lease.job[:_ID]} ({', '.join((user_name(lease.uid), *marks))})"
        yield name, f"{used}{of}{peak}", WARNING if marks else ""
    for one in state.foreign:
        peak = f", peak {format_mib(one.peak_mib)}" if one.peak_mib else ""
        yield _foreign_text(one), f"{format_mib(one.used_mib)}{peak}", WARNING
    if state.unexplained_mib > _WORTH_A_LINE_MIB:
        yield "no visible process", format_mib(state.unexplained_mib), WARNING


def holders(state: GpuState, status: LedgerStatus) -> list[Lease]:
    return [lease for lease in status.leases if state.gpu.uuid in lease.gpus]


def _foreign_text(one: ForeignProcess) -> str:
    """Text such as "no job: pid 4711 python (alice)"."""
    who = f"pid {one.pid} {one.name}".rstrip() if one.pid else "processes of others"
    user = "" if one.uid is None else f" ({user_name(one.uid)})"
    return f"{f'of job {one.job[:_ID]}' if one.job else 'no job'}: {who}{user}"


# -- jobs ---------------------------------------------------------------------------------------------------


def marks_of(lease: Lease, status: LedgerStatus, gpus: Iterable[GpuState]) -> list[str]:
    """Marks for what is unusual about a job on these GPUs."""
    halt = status.halt(lease.job)
    marks: list[str] = [halt.how] if halt else []
    marks += ["gives way"] if lease.gives_way_by_s is not None else []
    marks += ["idle"] if lease.idle_since_s is not None else []
    marks += ["over"] if any(_is_over(lease, state) for state in gpus) else []
    return [*marks, "forced"] if lease.forced else marks


def _is_over(lease: Lease, state: GpuState) -> bool:
    """Whether the job was seen to use more of this GPU than it declared."""
    if lease.vram_mib is None or state.gpu.uuid not in lease.gpus:
        return False
    now_mib = state.device.used_by.get(lease.job, 0) if state.device else 0
    return max(now_mib, _peak_mib(lease, state) or 0) > lease.vram_mib


def _peak_mib(lease: Lease, state: GpuState) -> int | None:
    """The highest use of this GPU seen for a holder, in MiB; None if it was never measured."""
    place = lease.gpus.index(state.gpu.uuid)
    return lease.vram_peak_mib[place] if place < len(lease.vram_peak_mib) else None


def state_text(lease: Lease, status: LedgerStatus) -> str:
    """How the job deviates from one that simply runs: "paused", "idle 8m, over"; "" if it does not."""
    words = marks_of(lease, status, status.gpus)
    if lease.idle_since_s is not None:
        idle = f"idle {whole_seconds(status.now_s - lease.idle_since_s)}"
        words = [idle if word == "idle" else word for word in words]
    words = [gives_way(lease, status.now_s) if word == "gives way" else word for word in words]
    return ", ".join(["not begun"] * (lease.job in status.not_begun) + words)


def held_text(lease: Lease, status: LedgerStatus) -> str:
    """Text such as "8G of GPU 0, 1 CPU slot"."""
    gpus = f"GPU {indices(lease.gpus, status)}" if lease.gpus else ""
    return _amounts(gpus, "of", lease.vram_mib, lease.slots)


def wants_text(ticket: Ticket, status: LedgerStatus) -> str:
    """Text such as "8G on 2 GPUs (0,1), 1 CPU slot"."""
    choice = f" ({indices(ticket.gpu_choice, status)})" if ticket.gpu_choice else ""
    gpus = f"{counted(ticket.gpus, 'GPU')}{choice}" if ticket.gpus else ""
    return _amounts(gpus, "on", ticket.vram_mib, ticket.slots)


def _amounts(gpus: str, on: str, vram_mib: int | None, slots: dict[str, int]) -> str:
    parts = [gpus if vram_mib is None else f"{short_mib(vram_mib)} {on} {gpus}"] if gpus else []
    parts += [slot_words(CPU, n) if name == CPU else f"{n} {name}" for name, n in sorted(slots.items())]
    return ", ".join(parts) or "-"


def left_text(lease: Lease, now_s: float) -> str:
    left_s, is_said = remaining(lease, now_s)
    if left_s is None:
        return "-"
    if is_said:
        return whole_seconds(left_s) if left_s else "overdue"
    return f"{MARKS.get(lease.est_from, '')}{whole_seconds(left_s)}"


# -- those that wait ----------------------------------------------------------------------------------------


def starts_text(ticket: Ticket, status: LedgerStatus) -> str:
    starts_s = status.waits[ticket.job].starts_in_s
    return "-" if starts_s is None else f"~{format_estimate(starts_s)}" if starts_s >= 1 else "now"


def why_text(row: Row, status: LedgerStatus) -> str:
    if not isinstance(row.entry, Ticket):
        return f"begins {row.begins}"
    priority = f"priority {row.entry.priority:+d}, " if row.entry.priority else ""
    if row.entry.priority == PREEMPTIBLE:
        priority = "preemptible, "
    return priority + reason(row.entry, status)


def _begins(file: DetachedJob, names: Mapping[str, str], now_s: float) -> str:
    """What it waits for, as in "after train:ok, after 3f2a9c01b7de:any". ``names``: of jobs, by their ids."""
    words = [word.partition(":") for word in file.after]
    begins = [f"after {names.get(job) or job}:{condition}" for job, _, condition in words]
    begins += [moments.words(file.begins_at, now_s)] if file.begins_at is not None else []
    return ", ".join(begins) + (f" ({file.again})" if file.again else "")


# -- below a row --------------------------------------------------------------------------------------------


def details(row: Row, status: LedgerStatus) -> list[Line]:
    """What a row has no room for, the most important line first."""
    entry = row.entry
    if isinstance(entry, GpuState):
        room = f"reserved {format_mib(entry.reserved_mib)}, free {format_mib(entry.free_mib)}"
        used = [Line(visible(f"  {who} {how}"), style) for who, how, style in users(entry, status)]
        return [_below(f"{entry.gpu.name}, {entry.gpu.uuid}, {room}"), *used]
    if isinstance(entry, Lease):
        return list(_below_job(entry, status))
    return [_below(text) for text in (why_text(row, status), command_of(entry)) if text]


def _below_job(lease: Lease, status: LedgerStatus) -> Iterator[Line]:
    """Its unit and command, why it is halted, and how it shares its GPUs."""
    unit = f"{lease.unit}{' (--user)' * (lease.manager == 'user')}" if lease.unit else "no scope"
    yield _below(f"{unit}: {lease.command}" if lease.command else unit)
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


def _below(text: str) -> Line:
    """A faint line for text that is too long for a column."""
    return Line(f"  {visible(text)}", FAINT)


# -- why one waits ------------------------------------------------------------------------------------------


def reason(ticket: Ticket, status: LedgerStatus) -> str:
    """The reason, such as "held by train (about 3m left) and 1 other, behind 2 others"."""
    wait = status.waits[ticket.job]
    if wait.never is not None:
        return f"can never be served: {refusal(wait.never, ticket).message}"
    busy = wait.busy
    if wait.held_back:
        return wait.held_back
    if busy is None:
        return "about to start"
    parts = ["next, with a reservation"] if wait.is_reserving else []
    blocked = _blocked(ticket, busy, status)
    parts += blocked
    if not blocked and busy.reserved_for:
        names = (other.name for other in status.tickets if other.job == busy.reserved_for)
        name = next(names, "") or busy.reserved_for
        parts.append(f"what is free is kept for {name}, which waits longest")
    elif busy.ahead:
        parts.append(f"behind {counted(busy.ahead, 'other')}")
    return ", ".join(parts)


def _blocked(ticket: Ticket, busy: Busy, status: LedgerStatus) -> list[str]:
    """What would still be in the way if nobody else waited."""
    if busy.kind == "gpu" and ticket.gpus and not any(state.device for state in _pool(ticket, status)):
        return ["the GPUs cannot be examined"]
    parts = []
    if busy.holders and busy.slot and len(ticket.slots) > 1:
        parts.append(f"lacks {a_slot(busy.slot)}")
    if busy.holders:
        parts.append(f"held by {_holders(busy.holders, status)}")
    if busy.why:
        parts.append(busy.why)
    if busy.foreign:
        gpus = f"GPU{'s' if len(busy.foreign) > 1 else ''} {indices(busy.foreign, status)}"
        parts.append(f"processes outside slicer use {gpus}")
    if busy.kind == "gpu" and ticket.need_mib is not None and (busy.holders or busy.foreign):
        parts.insert(0, _short_of(ticket, ticket.need_mib, status))
    return parts


def _pool(ticket: Ticket, status: LedgerStatus) -> list[GpuState]:
    return [state for state in status.gpus if not ticket.gpu_choice or state.gpu.uuid in ticket.gpu_choice]


def _short_of(ticket: Ticket, need_mib: int, status: LedgerStatus) -> str:
    """Text such as "needs 40.5G free, GPU 1 has most: 23.1G"."""
    rooms = [
        (state.free_mib, state.gpu.index) for state in _pool(ticket, status) if state.free_mib is not None
    ]
    if ticket.gpus > 1 or not rooms:
        enough = sum(free_mib >= need_mib for free_mib, _ in rooms)
        have = f"only {enough} {'has' if enough == 1 else 'have'} that" if enough else "none has that"
        return f"needs {short_mib(need_mib)} free on {ticket.gpus} GPUs, {have}"
    most_mib, index = max(rooms, key=lambda room: (room[0], -room[1]))
    return f"needs {short_mib(need_mib)} free, GPU {index} has most: {short_mib(most_mib)}"


def _holders(holders: tuple[Lease, ...], status: LedgerStatus) -> str:
    def facts(lease: Lease) -> Iterable[str]:
        halt = status.halt(lease.job)
        return (halt.how if halt is not None else left(lease, status.now_s),)

    return describe_holders(holders, status.now_s, facts) or "nobody"


def indices(uuids: Iterable[str], status: LedgerStatus) -> str:
    """Text such as "0,2"; a question mark for a GPU that the driver does not list."""
    known = [status.gpu(uuid) for uuid in uuids]
    return ",".join(str(state.gpu.index) if state else "?" for state in known)
