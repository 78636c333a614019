"""Notifies the user (``[notify]``) that a job has its lease, and how it ended."""

from __future__ import annotations

from slicer.job import words
from slicer.job.job import Job, tell
from slicer.notify.events import WAITED_S, events_of
from slicer.notify.sending import send
from slicer.quantity import format_duration
from slicer.text import command_text, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.model import Lease, Outcome


def tell_end(job: Job, outcome: Outcome, lease: Lease, warn: Callable[[str], None]) -> None:
    """Notify the user of the job's end, if that is wanted."""
    figures = {
        "exit_code": outcome.exit_code, "reason": outcome.reason, "signal": outcome.signal,
        "started_at": round(outcome.started_at, 3), "wall_s": round(outcome.wall_s, 3),
        "waited_s": round(outcome.waited_s, 3), "vram_peak_mib": max(outcome.vram_peak_mib, default=None),
        "memory_peak_bytes": outcome.usage.memory_peak_bytes,
    }  # fmt: skip
    _tell(job, events_of(outcome), lease, words.finished(outcome, lease.gpu_indices), figures, warn)


def tell_wait(job: Job, lease: Lease, waited_s: float, warn: Callable[[str], None]) -> None:
    """Notify the user that the job runs, if its wait was long enough for a notification."""
    if waited_s >= WAITED_S:
        text = f"runs now, after waiting {format_duration(waited_s)}"
        _tell(job, frozenset({"waited"}), lease, text, {"waited_s": round(waited_s, 3)}, warn)


def tell_idle(job: Job, lease: Lease, text: str, idle_s: float, warn: Callable[[str], None]) -> None:
    """Notify the user that the job does not use its GPUs."""
    _tell(job, frozenset({"idle"}), lease, text, {"idle_s": idle_s}, warn)


def _tell(
    job: Job, events: frozenset[str], lease: Lease, text: str, figures: dict[str, Any],
    warn: Callable[[str], None],
) -> None:  # fmt: skip
    notify = job.notify
    if notify is None or events.isdisjoint(notify.on):
        return
    name = job.name or job.program.rpartition("/")[2]
    event = min(events & set(notify.on), key=("idle", "oom", "failed", "done", "waited").index)
    what = {
        "event": event, "job": job.id, "name": visible(name), "title": visible(f"{name}: {event}"),
        "text": visible(text), "command": command_text(job.command), "directory": job.runs_in(),
        "profile": job.profile.name, "unit": lease.unit, "gpus": list(lease.gpu_indices), **figures,
    }  # fmt: skip
    problem = send(notify, what, job.history_path)
    if problem:
        warn(problem)
        tell(job, "untold", lease=lease, message=problem)
