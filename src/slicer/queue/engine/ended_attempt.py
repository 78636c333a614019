"""The end of an attempt, from its keeper's report or from its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from slicer.errors import SlicerError
from slicer.job.gpu_use import GpuUse
from slicer.kernel import proc
from slicer.model import Outcome
from slicer.outcome import history
from slicer.queue.state.attempt import AttemptFile
from slicer.record import fields_for, record

if TYPE_CHECKING:
    from slicer.model import EndedBy


@record
class EndedAttempt:
    """An attempt that is over. The other fields are set only if its command "ended"; otherwise ``why`` is."""

    key: str  # of the job, in the queue
    job_id: str
    how: Literal["ended", "unbegun", "interrupted", "lost"]
    # As in its Outcome:
    reason: str = ""
    exit_code: int = 0
    signal: int | None = None
    ended_by: EndedBy = ""
    wall_s: float = 0.0
    memory_peak_bytes: int | None = None
    vram_peak_mib: tuple[int, ...] = ()
    use: GpuUse | None = None  # its GPU use, as measured by the queue
    leftovers: int = 0
    why: str = ""


def from_outcome(key: str, job_id: str, outcome: Outcome, use: GpuUse | None) -> EndedAttempt:
    return EndedAttempt(
        key, job_id, "ended", use=use, memory_peak_bytes=outcome.usage.memory_peak_bytes,
        **fields_for(EndedAttempt, outcome),
    )  # fmt: skip


def recovered(
    key: str, job_id: str, found: AttemptFile | None, use: GpuUse | None, warn: Callable[[str], None],
    boot_id: str = "",
) -> EndedAttempt:  # fmt: skip
    """The attempt's end, by its file, history and boot ("" unknown). Adds its outcome to the history."""
    outcome = _outcome(job_id, found, warn)
    if outcome is not None:
        return from_outcome(key, job_id, outcome, use)
    if boot_id and boot_id != proc.boot_id():
        return EndedAttempt(key, job_id, "interrupted", why="the machine was restarted")
    if found is None:
        return EndedAttempt(key, job_id, "unbegun", why="the queue ended before it could begin")
    why = "it was killed together with its keeper: how it ended is not known"
    return EndedAttempt(key, job_id, "lost", why=why)


def _outcome(job_id: str, found: AttemptFile | None, warn: Callable[[str], None]) -> Outcome | None:
    """The outcome in the attempt file, or else in the history. A killed keeper may have written only one."""
    outcome = found.outcome if found is not None else None
    path = history.default_path()
    try:
        # A row of a job that nobody saw end says nothing that the attempt's file does not say better.
        known = [each for each in history.read(path, limit=1, job=job_id) if each.reason != "unknown"]
        if outcome is not None and not known:
            history.append(outcome, path)
    except SlicerError as error:
        warn(str(error))
        return outcome
    return outcome or next(iter(known), None)
