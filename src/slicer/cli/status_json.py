"""``slicer status`` as data. docs/json.md is the contract."""

from __future__ import annotations

import time

from slicer.cli import say
from slicer.cli.output import picked
from slicer.cli.queue.rows import queue_json
from slicer.cli.status_rows import reason
from slicer.kernel.users import user_name
from slicer.model import CPU, Busy, Gpu, GpuLoad, Lease, Ticket
from slicer.placement.lengths import likely_s
from slicer.placement.refusal import refusal
from slicer.record import as_dict
from slicer.text import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.ledger.status import GpuState, LedgerStatus
    from slicer.outcome.job_files import DetachedJob
    from slicer.queue.control.messages import RunningQueue
    from slicer.share.arena import SharingNow
    from slicer.state.standings import ServerStanding


def status_json(
    status: LedgerStatus, servers: tuple[ServerStanding, ...] = (), queues: tuple[RunningQueue, ...] = ()
) -> dict[str, Any]:
    held = {uuid for lease in status.leases for uuid in lease.gpus}
    lock, slots, users, now_s = status.plain_lock, status.slots, status.users, time.time()
    return {
        "state": {"directory": status.directory or None},
        "jobs": [job_json(lease, status) for lease in status.leases],
        "waiting": [ticket_json(ticket, status) for ticket in status.tickets],
        "later": [_later(file, now_s) for file in status.later],
        "queues": [queue_json(each) for each in queues],
        "servers": [server_json(each, now_s) for each in servers],
        "gpus": {
            "total": len(status.gpus),
            "free": [_gpu(each.gpu) for each in status.gpus if not (each.gpu.uuid in held or each.out)],
            "all": [_state(state, status) for state in status.gpus],
            "why_none": status.no_gpus or None,
        },
        "cpu_slots": {"total": slots[CPU].total, "free": slots[CPU].free},
        "slots": {name: as_dict(slot) for name, slot in slots.items()},
        "plain_lock": {"path": lock.path, "pid": lock.pid or None} if lock else None,
        "reservations": None if users is None else [as_dict(each) for each in status.reservations],
        "users": None if users is None else [{"user": user_name(one.uid), **as_dict(one)} for one in users],
        "groups": None if users is None else [as_dict(one) for one in status.groups],
    }


# What never rests: clocks, the text of a reason (it has the time left), sensors of GPUs, and who has a turn
# and how many are ahead (of a request, too: then the requests themselves change).
_RESTLESS = frozenset((
    "held_for", "halted_for", "expected_remaining", "waited", "starts_in", "state_for", "idle_for", "left",
    "text", *as_dict(GpuLoad()), "charged_mib", "turn", "turn_for", "turns", "held_s", "waits", "waited_s",
    "ahead",
))  # fmt: skip


def without_clocks(document: Any) -> Any:
    """The document without the fields that change only because time passes."""
    if isinstance(document, dict):
        return {name: without_clocks(each) for name, each in document.items() if name not in _RESTLESS}
    return list(map(without_clocks, document)) if isinstance(document, list) else document


def server_json(server: ServerStanding, now_s: float) -> dict[str, Any]:
    idle_s = server.idle_since_s
    return {
        "server": server.name,
        **picked(server, "kind listen state"),
        "state_for": max(0.0, round(now_s - server.since_s, 1)),
        **picked(server, "requests served"),
        "idle_for": None if idle_s is None else max(0.0, round(now_s - idle_s, 1)),
        **picked(server, "job? trouble? pid"),
    }


def _later(file: DetachedJob, now_s: float) -> dict[str, Any]:
    return {
        **picked(file, "job name? pid after begins_at again?"),
        "waited": max(0.0, round(now_s - file.began_at, 1)),
        "command": command_text(file.command),
        **picked(file, "log?"),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return picked(gpu, "index uuid name memory_mib")


def _state(state: GpuState, status: LedgerStatus) -> dict[str, Any]:
    device = state.device
    return {
        **_gpu(state.gpu),
        "used_mib": device.used_mib if device else None,
        "reserved_mib": state.reserved_mib if device else None,
        "free_mib": state.free_mib,
        "unexplained_mib": state.unexplained_mib if device else None,
        "idle": state.is_idle if device else None,
        "out_of_service": state.out or None,
        "placed_last": state.is_suspect,
        **as_dict(state.load),
        "jobs": [lease.job for lease in status.leases if state.gpu.uuid in lease.gpus],
        "foreign": [
            {
                **picked(one, "pid name? used_mib peak_mib job?"),
                "user": None if one.uid is None else user_name(one.uid),
            }
            for one in state.foreign
        ],
    }  # fmt: skip


def job_json(lease: Lease, status: LedgerStatus) -> dict[str, Any]:
    halt = status.halt(lease.job)
    return {
        "job": lease.job,
        **say.holder_dict(lease, status.now_s),
        **picked(lease, "uid backend manager cgroup? priority"),
        "gpus": [_held(lease, place, status) for place in range(len(lease.gpus))],
        "vram_mib": lease.vram_mib,
        "cpu_slots": lease.slots.get(CPU, 0),
        "slots": lease.slots,
        "estimate": _estimate(lease),
        "forced": bool(lease.forced),
        "begun": lease.job not in status.not_begun,
        "halted": halt.how if halt else None,
        "halted_for": round(status.now_s - halt.since_s, 1) if halt and halt.since_s is not None else None,
        "idle_for": None if (since_s := lease.idle_since_s) is None else round(status.now_s - since_s, 1),
        "idle_timeout": lease.idle_warn_s,
        "idle_end": lease.idle_end_s,
        "preemptible": lease.min_run_s is not None,
        "gives_way_to": lease.gives_way_to or None,
        "gives_way_in": None if (by_s := lease.gives_way_by_s) is None else round(by_s - status.now_s, 1),
        "sharing": _sharing(status.shared(lease.job)),
    }


def _estimate(entry: Lease | Ticket) -> dict[str, Any] | None:
    """How long decisions take the job to run, and where they know it from."""
    if entry.est_s is None:
        return None
    return {"seconds": entry.est_s, "from": entry.est_from, "likely": likely_s(entry)}


def _sharing(now: SharingNow | None) -> dict[str, Any] | None:
    if now is None:
        return None
    turn = now.turn
    return {
        **picked(now, "wants gpus limit_mib charged_mib processes"),
        "limit_mib": [mib or None for mib in now.limit_mib],
        "turn": turn.doing if turn else None,
        "turn_for": round(turn.for_s, 3) if turn else None,
        "ahead": turn.ahead if turn else None,
        **picked(now, "turns held_s waits waited_s refused got_past_cap troubles"),
        "held_s": round(now.held_s, 3),
        "waited_s": round(now.waited_s, 3),
    }


def _held(lease: Lease, place: int, status: LedgerStatus) -> dict[str, Any]:
    uuid = lease.gpus[place]
    state = status.gpu(uuid)
    known = _gpu(state.gpu) if state else {"index": None, "uuid": uuid, "name": None, "memory_mib": None}
    device = state.device if state else None
    return {
        **known,
        "used_mib": device.used_by.get(lease.job, 0) if device else None,
        "peak_mib": lease.vram_peak_mib[place] if place < len(lease.vram_peak_mib) else None,
    }


def ticket_json(ticket: Ticket, status: LedgerStatus) -> dict[str, Any]:
    wait = status.waits[ticket.job]
    starts_in_s = wait.starts_in_s
    return {
        **picked(ticket, "job name pid uid"),
        "name": ticket.name or ticket.command,
        "user": user_name(ticket.uid),
        **picked(ticket, "priority gpus gpu_choice vram_mib margin_mib"),
        "cpu_slots": ticket.slots.get(CPU, 0),
        **picked(ticket, "slots inside"),
        "waited": round(status.now_s - ticket.arrived_s, 1),
        "expected": ticket.expect_s,
        "estimate": _estimate(ticket),
        "starts_in": None if starts_in_s is None else round(starts_in_s, 1),
        "reserving": wait.is_reserving,
        "why": _why(ticket, status),
        "command": ticket.command,
    }


def _why(ticket: Ticket, status: LedgerStatus) -> dict[str, Any] | None:
    wait = status.waits[ticket.job]
    if wait.busy is None and wait.never is None and not wait.held_back:
        return None
    busy = wait.busy or Busy("gpu", (), 0, (), "")
    return {
        "text": reason(ticket, status),
        "lacks": wait.busy.kind if wait.busy else None,
        "slot": busy.slot or None,
        "holders": [lease.job for lease in busy.holders],
        "ahead": busy.ahead,
        "foreign": list(busy.foreign),
        "reserved_for": busy.reserved_for or None,
        "never": refusal(wait.never, ticket).message if wait.never else None,
        "policy": wait.held_back or None,
    }
