"""The board that browsers get, as data. Pure, but for the names of users.

It has what every user may know: no command, no path, no process. So it is written field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slicer.broker.protocol.messages import PastLease
from slicer.job.words import MARKS
from slicer.kernel.users import user_name
from slicer.ledger.status import GpuState, LedgerStatus
from slicer.model import CPU, Lease, Outcome, Ticket
from slicer.outcome.job_files import DetachedJob
from slicer.placement.lengths import likely_s
from slicer.queue.control.messages import RunningQueue
from slicer.record import as_dict
from slicer.state.standings import ServerStanding
from slicer.text import but_numbers, one_line

VERSION = 1
DAY_S = 86400
_GAP_S = 60.0  # of a user's bars on a GPU that become one: a minute is a pixel
_MOST_TEXT = 300


def board(
    status: LedgerStatus, servers: Iterable[ServerStanding], queues: Iterable[RunningQueue], zero_s: float,
    why: Callable[[Ticket], str], marks: Callable[[Lease], list[str]], begins: Callable[[DetachedJob], str],
    uid: int,
) -> dict[str, Any]:  # fmt: skip
    """The present state. ``zero_s``: when the ledger's clock began, in seconds since 1970.

    ``begins``: after what, or when, a job of ``uid`` begins that has not asked for anything yet.
    """

    def at(at_s: float) -> int:
        return round(zero_s + at_s)

    return {
        "all_users": status.users is not None,
        "gpus": [_gpu(state, status) for state in status.gpus],
        "no_gpus": one_line(status.no_gpus),
        "slots": [
            {"slot": one_line(name), "total": each.total, "held": each.held}
            for name, each in status.slots.items()
        ],
        "jobs": [
            {
                **_who(lease, lease.uid), **_what(lease.slots, lease.vram_mib),
                "gpus": _indices(lease.gpus, status), "since": at(lease.since_s), "marks": marks(lease),
                "ends": None if (length_s := likely_s(lease)) is None else at(lease.since_s + length_s),
                "by": "" if lease.expect_s is not None else MARKS.get(lease.est_from, ""),
            }
            for lease in status.leases
        ],
        "waiting": [
            {
                **_who(ticket, ticket.uid), **_what(ticket.slots, ticket.vram_mib), "gpus": ticket.gpus,
                "since": at(ticket.arrived_s), "why": one_line(why(ticket), _MOST_TEXT),
                "starts": None if (in_s := status.waits[ticket.job].starts_in_s) is None
                else at(status.now_s + in_s),
            }
            for ticket in status.tickets
        ],
        "later": [
            {**_who(each, uid), "since": round(each.began_at), "begins": one_line(begins(each), _MOST_TEXT)}
            for each in status.later
        ],
        "reservations": [
            {
                "user": user_name(each.uid), "gpus": _indices(each.gpus, status), "from": round(each.from_at),
                "until": round(each.until_at),
            }
            for each in status.reservations
        ],
        "queues": [
            {
                "file": one_line(each.file.rpartition("/")[2]), "state": each.state, "counts": each.counts,
                "warning": one_line(each.warning, _MOST_TEXT),
            }
            for each in queues
        ],
        "servers": [
            {"server": one_line(each.name), "state": each.state, "since": round(each.since_s),
             "requests": each.requests}
            for each in servers
        ],
        "users": [
            {
                "user": user_name(each.uid), "gpus": each.gpus, "max_gpus": each.max_gpus,
                "waiting": each.waiting, "share": round(each.share, 2), "due": round(each.due, 2),
            }
            for each in status.users or ()
        ],
    }  # fmt: skip


def _who(entry: Lease | Ticket | DetachedJob | Outcome, uid: int) -> dict[str, Any]:
    return {
        "job": entry.job, "name": one_line(entry.name), "user": user_name(uid),
        "profile": one_line(entry.profile),
    }  # fmt: skip


def _what(slots: Mapping[str, int], vram_mib: int | None) -> dict[str, Any]:
    names = {name: "CPU" if name == CPU else one_line(name) for name in slots}
    return {"vram_mib": vram_mib, "slots": {names[name]: count for name, count in slots.items()}}


def _indices(uuids: Iterable[str], status: LedgerStatus) -> list[int]:
    return [state.gpu.index for uuid in uuids if (state := status.gpu(uuid))]


def _gpu(state: GpuState, status: LedgerStatus) -> dict[str, Any]:
    device = state.device
    return {
        "index": state.gpu.index, "name": one_line(state.gpu.name).removeprefix("NVIDIA "),
        "memory_mib": state.gpu.memory_mib, "used_mib": device.used_mib if device else None,
        "reserved_mib": state.reserved_mib if device else None, "idle": bool(device and state.is_idle),
        "out_of_service": one_line(state.out),
        **as_dict(state.load),
        "holders": [
            {
                **_who(lease, lease.uid), "declared_mib": lease.vram_mib,
                "used_mib": device.used_by.get(lease.job, 0) if device else None,
            }
            for lease in status.leases if state.gpu.uuid in lease.gpus
        ],
        "foreign": [
            {"user": None if one.uid is None else user_name(one.uid), "used_mib": one.used_mib}
            for one in state.foreign
        ],
    }  # fmt: skip


def timeline(
    past: Iterable[PastLease], failed: Iterable[tuple[Outcome, str]], status: LedgerStatus, now: float
) -> dict[str, Any]:
    """The last day: who held which GPU, as bars of user, begin and end, and which jobs failed, and how.

    Times are whole seconds since 1970. Bars of one user with a short gap in between are one, so that their
    number is bounded.
    """
    found: dict[int, dict[str, list[list[float]]]] = {state.gpu.index: {} for state in status.gpus}
    for lease in sorted(past, key=lambda each: each.granted_at):
        began, ended = max(lease.granted_at, now - DAY_S), lease.granted_at + lease.held_s
        for index in _indices(lease.gpus, status) if ended > began else ():
            bars = found[index].setdefault(user_name(lease.uid), [])
            if bars and began - bars[-1][1] < _GAP_S:
                bars[-1][1] = max(bars[-1][1], ended)
            else:
                bars.append([began, ended])
    return {
        "gpus": [
            {
                "index": index,
                "bars": [[user, *map(round, bar)] for user, bars in by_user.items() for bar in bars],
            }
            for index, by_user in found.items()
        ],
        "failed": _failed(failed),
    }  # fmt: skip


def _failed(jobs: Iterable[tuple[Outcome, str]]) -> list[dict[str, Any]]:
    """One row for the jobs of a user that failed in one way, and whose names differ in numbers only."""
    found: dict[tuple[int, str, str], dict[str, Any]] = {}
    for each, how in jobs:
        row = {**_who(each, each.uid), "how": how, "ended": round(each.started_at + each.wall_s), "jobs": 0}
        found.setdefault((each.uid, how, but_numbers(each.name or each.job)), row)["jobs"] += 1
    return list(found.values())
