"""What became of an attempt, as its keeper, its files or systemd tell it. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from slicer.errors import EX_TIMEOUT
from slicer.job.report import exec_exit, exit_of
from slicer.record import record

if TYPE_CHECKING:
    from slicer.job.report import Report
    from slicer.model import Outcome, Usage
    from slicer.queue.run.gpu_use import Use


@record
class Ended:
    """How a command ended; the fields are those of its :class:`slicer.model.Outcome`."""

    reason: str
    exit_code: int
    signal: int | None


@record
class EndedAttempt:
    """An attempt that is over. ``ended`` is set only if the command ran and its end is known."""

    key: str  # of the job, in the queue
    job_id: str
    how: Literal["ended", "unbegun", "interrupted", "lost"]
    ended: Ended | None = None
    wall_s: float = 0.0
    memory_peak_bytes: int | None = None
    vram_peak_mib: tuple[int, ...] = ()
    use: Use | None = None  # what the queue saw of it on its GPUs
    why: str = ""


def reported(key: str, job_id: str, report: Report, usage: Usage, use: Use | None) -> EndedAttempt:
    """An attempt whose keeper told of the end."""
    if report.exec_errno and report.reason == "unknown":
        return EndedAttempt(key, job_id, "unbegun", why=os.strerror(report.exec_errno))
    found = exec_exit(report.exec_errno) if report.exec_errno else exit_of(report.status)
    exit_code = EX_TIMEOUT if report.reason == "timeout" else found.code
    ended = Ended(report.reason, exit_code, found.signal)
    return EndedAttempt(key, job_id, "ended", ended, report.wall_s, usage.memory_peak_bytes, use=use)


def recorded(key: str, job_id: str, outcome: Outcome, use: Use | None) -> EndedAttempt:
    """An attempt whose outcome was written down."""
    ended = Ended(outcome.reason, outcome.exit_code, outcome.signal)
    return EndedAttempt(
        key, job_id, "ended", ended, outcome.wall_s, outcome.usage.memory_peak_bytes, outcome.vram_peak_mib,
        use,
    )  # fmt: skip


def unbegun(key: str, job_id: str) -> EndedAttempt:
    """An attempt whose keeper was killed before the command started."""
    return EndedAttempt(key, job_id, "unbegun", why="its keeper was ended before it could begin")
