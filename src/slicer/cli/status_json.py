"""``slicer status`` as data: the contract in docs/json.md."""

from __future__ import annotations

import time

from slicer.cli import say
from slicer.cli.status_servers import server_json
from slicer.cli.status_why import never_text, reason
from slicer.kernel.users import user_name
from slicer.model import CPU
from slicer.record import as_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.ledger.status import ForeignProcess, GpuState, Status
    from slicer.model import Gpu, Lease, Ticket, UserStanding
    from slicer.serve.model import Standing
    from slicer.share.standing import SharingNow


def status_json(status: Status, servers: tuple[Standing, ...] = ()) -> dict[str, Any]:
    """The state of things for scripts."""
    held = {uuid for lease in status.leases for uuid in lease.gpus}
    lock = status.plain_lock
    slots = status.slots
    return {
        "state": {"directory": status.directory or None},
        "jobs": [_job(lease, status) for lease in status.leases],
        "waiting": [_ticket(ticket, status) for ticket in status.tickets],
        "servers": [server_json(each, time.time()) for each in servers],
        "gpus": {
            "total": len(status.gpus),
            "free": [_gpu(state.gpu) for state in status.gpus if state.gpu.uuid not in held],
            "all": [_state(state, status) for state in status.gpus],
            "why_none": status.no_gpus or None,
        },
        "cpu_slots": {"total": slots[CPU].total, "free": slots[CPU].free},
        "slots": {name: as_dict(slot) for name, slot in slots.items()},
        "plain_lock": {"path": lock.path, "pid": lock.pid or None} if lock else None,
        "users": None if status.users is None else [_user(each) for each in status.users],
        "groups": None if status.users is None else [as_dict(each) for each in status.groups],
    }


def _user(each: UserStanding) -> dict[str, Any]:
    return {"user": user_name(each.uid), **as_dict(each)}


# What goes on many times a second while jobs take turns.
_TURNING = ("charged_mib", "turn", "turn_for", "ahead", "turns", "held_s", "waits", "waited_s")


def without_clocks(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what changes by itself as time goes by."""
    clocks = {
        "held_for", "halted_for", "expected_remaining", "waited", "starts_in", "state_for", "idle_for",
    }  # fmt: skip

    def rest(item: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in item.items() if name not in clocks}
        if kept.get("why"):
            # Its text says how much time is left.
            kept["why"] = {name: value for name, value in kept["why"].items() if name != "text"}
        return kept

    def still(job: dict[str, Any]) -> dict[str, Any]:
        if job["sharing"] is None:
            return job
        kept = {name: value for name, value in job["sharing"].items() if name not in _TURNING}
        return {**job, "sharing": kept}

    document = {**document, "jobs": [still(job) for job in document["jobs"]]}
    changed = {folder: [rest(item) for item in document[folder]] for folder in ("jobs", "waiting", "servers")}
    return {**document, **changed}


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_mib": gpu.memory_mib}


def _state(state: GpuState, status: Status) -> dict[str, Any]:
    device = state.device
    return {
        **_gpu(state.gpu),
        "used_mib": device.used_mib if device else None,
        "reserved_mib": state.reserved_mib if device else None,
        "free_mib": state.free_mib,
        "unexplained_mib": state.unexplained_mib if device else None,
        "idle": state.is_idle if device else None,
        "jobs": [lease.job for lease in status.leases if state.gpu.uuid in lease.gpus],
        "foreign": [_foreign(one) for one in state.foreign],
    }


def _foreign(one: ForeignProcess) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "name": one.name or None,
        "used_mib": one.used_mib,
        "peak_mib": one.peak_mib,
        "job": one.job or None,
    }


def _job(lease: Lease, status: Status) -> dict[str, Any]:
    halt = status.halt(lease.job)
    return {
        "job": lease.job,
        **say.holder_dict(lease, status.now_s),
        "uid": lease.uid,
        "user": user_name(lease.uid),
        "backend": lease.backend,
        "manager": lease.manager,
        "cgroup": lease.cgroup or None,
        "priority": lease.priority,
        "gpus": [_held(lease, place, status) for place in range(len(lease.gpus))],
        "vram_mib": lease.vram_mib,
        "cpu_slots": lease.slots.get(CPU, 0),
        "slots": lease.slots,
        "forced": bool(lease.forced),
        "begun": lease.job not in status.not_begun,
        "halted": halt.how if halt else None,
        "halted_for": round(status.now_s - halt.since_s, 1) if halt and halt.since_s is not None else None,
        "sharing": _sharing(status.shared(lease.job)),
    }


def _sharing(now: SharingNow | None) -> dict[str, Any] | None:
    if now is None:
        return None
    turn = now.turn
    return {
        "wants": now.wants,
        "gpus": list(now.gpus),
        "limit_mib": [mib or None for mib in now.limit_mib],
        "charged_mib": list(now.charged_mib),
        "processes": now.processes,
        "turn": turn.doing if turn else None,
        "turn_for": round(turn.for_s, 3) if turn else None,
        "ahead": turn.ahead if turn else None,
        "turns": now.turns,
        "held_s": round(now.held_s, 3),
        "waits": now.waits,
        "waited_s": round(now.waited_s, 3),
        "refused": now.refused,
        "got_past_cap": now.got_past_cap,
        "troubles": list(now.troubles),
    }


def _held(lease: Lease, place: int, status: Status) -> dict[str, Any]:
    uuid = lease.gpus[place]
    state = status.gpu(uuid)
    known = _gpu(state.gpu) if state else {"index": None, "uuid": uuid, "name": None, "memory_mib": None}
    device = state.device if state else None
    return {
        **known,
        "used_mib": device.used_by.get(lease.job, 0) if device else None,
        "peak_mib": lease.vram_peak_mib[place] if place < len(lease.vram_peak_mib) else None,
    }


def _ticket(ticket: Ticket, status: Status) -> dict[str, Any]:
    wait = status.waits[ticket.job]
    starts_in_s = wait.starts_in_s
    return {
        "job": ticket.job,
        "name": ticket.name or ticket.command,
        "pid": ticket.pid,
        "uid": ticket.uid,
        "user": user_name(ticket.uid),
        "priority": ticket.priority,
        "gpus": ticket.gpus,
        "gpu_choice": list(ticket.gpu_choice),
        "vram_mib": ticket.vram_mib,
        "margin_mib": ticket.margin_mib,
        "cpu_slots": ticket.slots.get(CPU, 0),
        "slots": ticket.slots,
        "inside": list(ticket.inside),
        "waited": round(status.now_s - ticket.arrived_s, 1),
        "expected": ticket.expect_s,
        "starts_in": None if starts_in_s is None else round(starts_in_s, 1),
        "reserving": wait.is_reserving,
        "why": _why(ticket, status),
        "command": ticket.command,
    }


def _why(ticket: Ticket, status: Status) -> dict[str, Any] | None:
    wait = status.waits[ticket.job]
    busy = wait.busy
    if busy is None and wait.never is None and not wait.held_back:
        return None
    return {
        "text": reason(ticket, status),
        "lacks": busy.kind if busy else None,
        "slot": (busy.slot or None) if busy else None,
        "holders": [lease.job for lease in busy.holders] if busy else [],
        "ahead": busy.ahead if busy else 0,
        "foreign": list(busy.foreign) if busy else [],
        "reserved_for": (busy.reserved_for or None) if busy else None,
        "never": never_text(wait.never, ticket) if wait.never else None,
        "policy": wait.held_back or None,
    }
