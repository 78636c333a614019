"""What became of an attempt that nobody looks after any more, from what was written about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slicer.errors import SlicerError
from slicer.kernel import proc
from slicer.outcome import history
from slicer.queue.run import ended_attempt
from slicer.queue.run.ended_attempt import EndedAttempt

if TYPE_CHECKING:
    from slicer.model import Outcome
    from slicer.queue.run.gpu_use import Use
    from slicer.queue.state.attempt import Attempt


def recovered(
    key: str, job_id: str, found: Attempt | None, use: Use | None, warn: Callable[[str], None],
    boot_id: str = "",
) -> EndedAttempt:  # fmt: skip
    """How the attempt ended. ``found``: what its file says; ``boot_id``: the boot in which it began, or "".

    Its outcome is in the history afterwards, if there is one.
    """
    outcome = found.outcome if found is not None else None
    if outcome is not None:
        _add_to_history(outcome, warn)
    else:
        outcome = _from_history(job_id, warn)
    if outcome is not None:
        return ended_attempt.recorded(key, job_id, outcome, use)
    if boot_id and boot_id != proc.boot_id():
        return EndedAttempt(key, job_id, "interrupted", why="the machine was restarted")
    if found is None:
        return EndedAttempt(key, job_id, "unbegun", why="the queue ended before it could begin")
    why = "it was killed together with its keeper: how it ended is not known"
    return EndedAttempt(key, job_id, "lost", why=why)


def _add_to_history(outcome: Outcome, warn: Callable[[str], None]) -> None:
    """Add the outcome, if the keeper was killed before it could."""
    path = history.default_path()
    try:
        if not history.read(path, limit=1, job=outcome.job):
            history.append(outcome, path)
    except SlicerError as error:
        warn(str(error))


def _from_history(job_id: str, warn: Callable[[str], None]) -> Outcome | None:
    try:
        found = history.read(history.default_path(), limit=1, job=job_id)
    except SlicerError as error:
        warn(str(error))
        return None
    return found[0] if found else None
