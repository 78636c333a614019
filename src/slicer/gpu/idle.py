"""Decides whether a job uses its GPUs, and what follows if it does not. Pure.

A job that only waits for its CPU does not use its GPU. What cannot be told counts as use: nobody is warned
because of a figure that the driver does not have.
"""

from __future__ import annotations

from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Literal

    from slicer.gpu.snapshot import ProcessOnGpu
    from slicer.model import Lease, OnIdle

    Owned = Collection[tuple[ProcessOnGpu, Lease | None]]
    Turn = Literal["", "warned", "used", "ends"]

WARNING_S = 300.0  # from the warning to the end; with a shorter idle_timeout that
LONGEST_S = 30.0  # between two looks: nobody saw the rest of a longer time, so it does not count


def idle_limits(timeout_s: float | None, on_idle: OnIdle) -> tuple[float | None, float | None]:
    """After which idle times a job is warned, and ended. None: never."""
    if timeout_s is None:
        return None, None
    return timeout_s, timeout_s + min(WARNING_S, timeout_s) if on_idle == "stop" else None


@record
class IdleTime:
    """A job's time without use, on one clock. Time that does not count moves all of it forward."""

    at_s: float  # the last look
    since_s: float  # when it was last in use
    warned_s: float | None = None
    is_over: bool = False  # it was to be ended


def begun(at_s: float, lease: Lease) -> IdleTime:
    """The time when a watcher begins, perhaps in place of another one that has warned the job."""
    since_s = lease.idle_since_s
    return IdleTime(at_s, at_s) if since_s is None else IdleTime(at_s, min(at_s, since_s), at_s)


def step(
    before: IdleTime, at_s: float, *, is_used: bool, stands_still: bool, warn_s: float, end_s: float | None
) -> tuple[IdleTime, Turn]:
    """The time after a look, and what has come of it. ``warn_s`` and ``end_s`` as in :func:`idle_limits`."""
    if is_used:
        is_news = before.warned_s is not None and not before.is_over
        return IdleTime(at_s, at_s, is_over=before.is_over), "used" if is_news else ""
    unseen_s = at_s - before.at_s if stands_still else max(0.0, at_s - before.at_s - LONGEST_S)
    warned_s = None if before.warned_s is None else before.warned_s + unseen_s
    now = IdleTime(at_s, before.since_s + unseen_s, warned_s, before.is_over)
    idle_s = at_s - now.since_s
    if stands_still or now.is_over or idle_s < warn_s:
        return now, ""
    if warned_s is None:
        return replace(now, warned_s=at_s), "warned"
    if end_s is not None and idle_s >= end_s and at_s - warned_s >= min(WARNING_S, warn_s):
        return replace(now, is_over=True), "ends"
    return now, ""


def is_in_use(
    lease: Lease, owned: Owned, leases: Iterable[Lease], busy: Mapping[str, frozenset[int] | None],
    percent: Mapping[str, int | None],
) -> bool | None:  # fmt: skip
    """Whether the lease's job has used any of its GPUs; None: nobody can tell.

    ``owned``: the processes on the GPUs, with their leases. ``busy``: the pids that used each GPU since the
    last look, if the driver says so. ``percent``: the GPUs' own utilisation, which is that of all jobs.
    """
    shared = {uuid for each in leases if each.job != lease.job for uuid in each.gpus}
    found: set[bool | None] = set()
    for uuid in lease.gpus:
        pids, now = busy.get(uuid), percent.get(uuid)
        if pids is not None:
            # A busy process counts unless it is known to be another's: it may have ended since.
            found.add(not pids <= _strangers(owned, lease, uuid))
        else:
            found.add(None if now is None or (now and uuid in shared) else now > 0)
    return True if True in found else None if None in found else False


def _strangers(owned: Owned, lease: Lease, uuid: str) -> set[int]:
    """The processes on a GPU that are known to be others'. One that /proc does not show may be the job's."""
    return {
        process.pid
        for process, owner in owned
        if process.gpu_uuid == uuid and (process.started if owner is None else owner.job != lease.job)
    }
