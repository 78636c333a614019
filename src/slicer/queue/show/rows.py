"""The rows of the board, and what is computed for it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from slicer.job.gpu_use import GpuUse
from slicer.queue.model import JobRow, JobState, Status

PENDING_SHOWN = 50
_ENOUGH_S = 10.0  # no estimate before the successful jobs have run for this long in all


def row(
    state: JobState, use: GpuUse | None = None, *, now_s: float = 0.0, declared_mib: int | None = None,
    waits_for: str = "",
) -> JobRow:  # fmt: skip
    """One job. A running job needs its ``use`` and the time ``now_s`` in seconds since the epoch. A pending
    job needs ``declared_mib``, its next declaration.
    """
    is_pending = state.status == "pending" or state.submitted
    is_running = state.status == "running" and not state.submitted
    # Somebody may set the clock back while a job runs.
    wall_s = max(0.0, now_s - state.started_at) if is_running else state.wall_s
    return JobRow(
        no=state.no,
        name=state.name,
        command=state.command,
        status="pending" if is_pending else state.status,
        attempt=state.attempts + (is_pending and not state.submitted),
        declared_mib=declared_mib if is_pending and not state.submitted else state.vram_mib,
        gpu_indices=() if is_pending else state.gpu_indices,
        now_mib=use.now_mib if use is not None else (),
        peak_mib=use.peak_mib if use is not None else () if is_pending else state.vram_peak_mib,
        utilisation=use.utilisation if use is not None else state.utilisation,
        looks=use.looks if use is not None else 0 if is_pending else state.looks,
        wall_s=0.0 if is_pending else wall_s,
        exit_code=state.exit_code,
        reason=state.reason,
        verdict=state.verdict,
        waits_for=waits_for,
        note="cancelling" if is_running and state.cancelling else f"on {state.node}" if state.node else "",
        leftovers=state.leftovers,
    )


def of_file(states: Iterable[JobState], lines: Collection[str]) -> list[JobState]:
    """The jobs that a queue counts: those whose lines (their keys) are in the file, and those that run."""
    return [state for state in states if state.key in lines or state.status == "running"]


def counts(states: Iterable[JobState]) -> dict[Status, int]:
    return Counter(state.status for state in states)


def eta_s(
    ok_wall_s: float, ok_count: int, running_s: Sequence[float], pending: int, width: int
) -> float | None:
    """The estimated seconds until all is done; None without enough data.

    ``ok_count`` jobs have succeeded, after ``ok_wall_s`` in all. ``running_s`` has the ages of the running
    jobs. ``pending`` jobs are left to start, ``width`` at a time.
    """
    if ok_wall_s < _ENOUGH_S:
        return None
    mean_s = ok_wall_s / ok_count
    # A running job that is older than the mean shows that the mean is too low.
    longer_s = [wall_s for wall_s in running_s if wall_s > mean_s]
    mean_s = (ok_wall_s + sum(longer_s)) / (ok_count + len(longer_s))
    left_s = sum(max(0.0, mean_s - wall_s) for wall_s in running_s) + pending * mean_s
    # Below 1 s the last jobs have outlived the mean, so their ends cannot be estimated.
    return left_s / max(1, width) if left_s >= 1 else None
