"""What the queue knows of an attempt in Slurm, and what it means that Slurm no longer runs it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection

from slicer.errors import EX_SLICER, EX_TIMEOUT
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.slurm.parsing import SlurmTask
from slicer.queue.engine.slurm.script import NO_SLICER
from slicer.queue.model import Attributes

_TERMINATED = 128 + signal.SIGTERM
_KILLED = 128 + signal.SIGKILL
_NODE_LOST = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED")
_PERHAPS_SLURM = ("", "outside", "slicer run", "systemd")  # as in Outcome.ended_by
MOST_MISSED = 2  # answers of Slurm; one may be older than the file of a job's end
_LATE_S = 10.0  # a shared directory may show that file so late: NFS asks again after 3 s or more
_FIRST_S, _MOST_S, _GROWTH = 0.2, 10.0, 1.5


class Tracked:
    """One attempt. ``attributes``: of the line when it was submitted; None if an earlier queue did that."""

    def __init__(self, key: str, job_id: str, attributes: Attributes | None) -> None:
        self.key = key
        self.job_id = job_id
        self.attributes = attributes
        self.arguments: tuple[str, ...] = ()  # of sbatch
        self.order = ""  # its script; "" if an earlier queue wrote it
        self.batch = ""
        self.position = 0  # in the batch
        self.task: SlurmTask | None = None
        self.has_begun = False
        self.missed = 0  # how often Slurm did not know it, or its end was not found
        self.missed_s = 0.0  # monotonic: when for the first time
        self.is_stopping = False

    @property
    def why(self) -> str:
        """Why it waits, in words."""
        if self.task is None:
            return "submitted to Slurm"
        return f"Slurm: {self.task.reason}" if self.task.reason not in ("", "None") else "Slurm"


def next_tick_s(last_s: float, *, has_changed: bool) -> float:
    """How long to wait before the next question to Slurm."""
    return _FIRST_S if has_changed else min(_MOST_S, last_s * _GROWTH)


def is_over(tracked: Tracked, kinds: Collection[str], now_s: float) -> bool:
    """Whether no end of an attempt will come that Slurm does not run. ``kinds``: of its files.

    What has begun, and was not cancelled, has time to show one.
    """
    is_cancelled = tracked.task is not None and tracked.task.state == "CANCELLED"
    has_time = "begun" in kinds and not is_cancelled and not tracked.is_stopping
    return tracked.missed >= MOST_MISSED and not (has_time and now_s - tracked.missed_s < _LATE_S)


def ended_with_code(tracked: Tracked, code: int, node: str) -> EndedAttempt:
    """The end of an attempt whose slicer left no outcome."""
    where = node or "its node"
    unbegun = {
        NO_SLICER: f"there is no slicer on {where}: name it in [engine.slurm]",
        # As where its driver does not work:
        EX_SLICER: f"slicer failed on {where} before the command began: its log says why",
    }
    if code in unbegun:
        return EndedAttempt(tracked.key, tracked.job_id, "unbegun", why=unbegun[code])
    return EndedAttempt(tracked.key, tracked.job_id, "ended", "exited", code)


def ended_without_word(tracked: Tracked, kinds: Collection[str], directory: str) -> EndedAttempt:
    """The end of an attempt that Slurm no longer runs, and that left no end. ``kinds``: of its files.

    If its order is still there, it has not begun, and the caller has withdrawn it.
    """
    task = tracked.task
    state = task.state if task is not None else ""
    node = (task.node if task is not None else "") or "its node"
    key, job_id = tracked.key, tracked.job_id
    is_failed_launch = "begun" not in kinds and task is not None and bool(task.node)
    if state == "CANCELLED" and not is_failed_launch:
        return stopped(tracked)
    if "begun" not in kinds:
        why = "Slurm does not know it"
        if state in ("FAILED", "COMPLETED"):
            why = f"{node} cannot use {directory}: is it shared?"
        elif state:
            why = f"{node} could not start it"
        return EndedAttempt(key, job_id, "unbegun", why=why)
    if state in _NODE_LOST:
        why = "Slurm preempted it" if state == "PREEMPTED" else f"{node} failed"
        return EndedAttempt(key, job_id, "interrupted", why=why)
    if state == "TIMEOUT":
        return EndedAttempt(key, job_id, "ended", "timeout", EX_TIMEOUT)
    if state == "OUT_OF_MEMORY":
        return EndedAttempt(key, job_id, "ended", "oom-kill", _KILLED, signal.SIGKILL)
    if state in ("COMPLETED", "FAILED"):  # the script ends as the command did, and could not write it down
        return EndedAttempt(key, job_id, "ended", "exited", int(state == "FAILED"))
    why = "Slurm no longer knows it: how it ended is not known"
    if state:
        why = f"Slurm says {state}, but it left no outcome in {directory}"
    return EndedAttempt(key, job_id, "lost", why=why)


def stopped(tracked: Tracked) -> EndedAttempt:
    """The end of an attempt that was stopped before it began."""
    return EndedAttempt(tracked.key, tracked.job_id, "ended", "stopped", _TERMINATED)


def was_stopped(ended: EndedAttempt) -> bool:
    """Whether Slurm may have ended it: it sends SIGTERM to slicer and to every process of the command.

    A shell whose child got the signal first exits with 143 before it gets it, too.
    """
    if ended.reason == "stopped":
        return ended.ended_by in _PERHAPS_SLURM
    if ended.reason == "exited":
        return ended.exit_code == _TERMINATED
    return ended.reason == "signal" and ended.signal == signal.SIGTERM


def is_cut_by_slurm(task: SlurmTask | None) -> bool:
    """Whether Slurm itself ended an attempt that was stopped: its state says more than the outcome."""
    return task is not None and (task.state == "TIMEOUT" or task.state in _NODE_LOST)
