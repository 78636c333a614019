"""The outer half sees its job's scope freeze and thaw, whoever does it, and writes that down.

It is outside of the scope, so it goes on. Set up only when the job has run for a while, because most jobs
are over before anybody could pause them.
"""

from __future__ import annotations

import os
import time

from slicer.backend import time_limit_of
from slicer.errors import SlicerError, StateError
from slicer.job.job import tell
from slicer.kernel import cgroup
from slicer.kernel.cgroup_events import CgroupEvents
from slicer.kernel.proc import now_s
from slicer.kernel.sleep import soonest
from slicer.ledger import control_log
from slicer.quantity import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.job.job import Job
    from slicer.job.pause import SeenKind
    from slicer.model import Lease
    from slicer.state.statedir import StateDir

# systemd counts a time limit from a moment after we do.
_LATER_S = 0.25


class Freezer:
    """What is noted of one job's pauses, and when it must be thawed.

    ``limit_at``: when systemd tells it to end (monotonic; None: never). ``say`` tells the journal.
    """

    def __init__(
        self, job: str, directory: str, state: StateDir, limit_at: float | None,
        say: Callable[[SeenKind, str], None],
    ) -> None:  # fmt: skip
        self._job = job
        self._directory = directory
        self._state = state
        self._say = say
        self._is_frozen = False
        self._thaw_at = None if limit_at is None else limit_at + _LATER_S

    def look(self) -> None:
        """See whether the scope is frozen."""
        self.take(is_frozen=cgroup.is_frozen(self._directory))

    def take(self, *, is_frozen: bool) -> None:
        """The scope is frozen, or not. Notes a change, and tells the journal if it was not slicer's."""
        if is_frozen == self._is_frozen or (not is_frozen and cgroup.is_to_freeze(self._directory)):
            return
        self._is_frozen = is_frozen
        try:
            acts = control_log.read(self._state, self._job)
        except StateError:
            acts = ()
        is_open = control_log.open_pause(acts)
        if is_frozen and is_open is None:
            self._note("frozen")
            self._say("paused", "frozen from outside (systemctl freeze)")
        elif not is_frozen and is_open is not None:
            self._note("thawed")
            if acts[-1].kind not in ("resume", "stop"):  # else it was slicer
                lasted = format_duration(round(max(0.0, now_s() - is_open.since_s), 1))
                self._say("resumed", f"goes on after {lasted}, thawed from outside (systemctl thaw)")

    def _note(self, kind: control_log.Kind) -> None:
        try:
            control_log.add(self._state, self._job, kind)
        except StateError:
            pass  # the cgroup says it, too

    def due_s(self) -> float | None:
        """After how many seconds to :meth:`meet_deadline`; None: never."""
        if not self._is_frozen or self._thaw_at is None:
            return None
        return max(0.0, self._thaw_at - time.monotonic())

    def meet_deadline(self) -> None:
        """Thaw a job whose time is up. systemd has told it to end, but does not thaw it."""
        if self.due_s() == 0.0:
            self._thaw_at = None
            self._note("resume")
            if not cgroup.thaw(self._directory):
                _have_thawed(self._directory)


def _have_thawed(directory: str) -> None:
    """Thaw a scope of ours in the system manager, whose cgroup only root may write to."""
    from slicer.broker.client.control import control_of

    control = control_of("system")
    try:
        control.thaw(os.path.basename(directory), directory)
    except SlicerError:
        pass  # it has ended, or ends without a word when its stop timeout is over
    finally:
        control.close()


def limit_at(job: Job, began: float) -> float | None:
    """When systemd tells the job to end (monotonic); None: never. ``began`` as in Started.

    In the system manager the administrator may have said less than the profile.
    """
    limit_s = job.profile.timeout_s
    if job.spec.manager == "system":
        limit_s = time_limit_of(job.spec.unit) or limit_s
    return None if limit_s is None else began + limit_s


def freezer_of(job: Job, lease: Lease, directory: str, state: StateDir, began: float) -> Freezer:
    """That of a job of ours."""

    def say(kind: SeenKind, text: str) -> None:
        tell(job, kind, lease=lease, message=text, by="outside")

    return Freezer(job.id, directory, state, limit_at(job, began), say)


class FreezeWatch:
    """Waits for signals in the outer half, and follows the job's scope meanwhile."""

    def __init__(self, freezer: Freezer, directory: str, signals: frozenset[int]) -> None:
        """Raises OSError."""
        self._freezer = freezer
        self._events = CgroupEvents(directory, signals)
        freezer.take(is_frozen=self._events.is_frozen)

    def wait(self, timeout_s: float | None) -> Any:
        """The signal that came; None if the time (None: for ever) is over, or something was to be done."""
        info, has_changed = self._events.wait(soonest(timeout_s, self._freezer.due_s()))
        if has_changed:
            self._freezer.take(is_frozen=self._events.is_frozen)
        self._freezer.meet_deadline()
        return info

    def close(self) -> None:
        """Give up the descriptors."""
        self._events.close()


def thaw_to_end(job: Job, cgroup_name: str, state: StateDir) -> str:
    """Thaw a job that was just told to end. Returns what to tell the user; "" if it was not frozen."""
    directory = cgroup.path_of(cgroup_name)
    if not cgroup.is_frozen(directory):
        return ""
    from slicer.backend.unit_control import UnitGone
    from slicer.broker.client.control import control_of

    try:
        control_log.add(state, job.id, "resume")
    except StateError:
        pass  # then its end reads as somebody else's thaw
    control = control_of(job.spec.manager)
    try:
        control.thaw(job.spec.unit, directory)
    except UnitGone:
        return ""
    except SlicerError as error:
        return f"the job is frozen and does not see that it is to end: {error}"
    finally:
        control.close()
    return "the job was paused; it goes on, to end"
