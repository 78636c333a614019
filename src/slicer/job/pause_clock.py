"""How long a job has stood still: for a time limit that stands still with it.

The keeper asks. It is in the scope, so it is frozen with the job and sees nothing of it. Afterwards it knows:

- from the kernel, which counts the time since Linux 6.18;
- before that from the job's control log, in which ``slicer pause`` and the outer half write;
- and where nobody wrote (``systemctl freeze`` while the outer half was dead), from its own sleep: the pause
  began after it was last awake. It counts all of that time. So a job may get more time, never less.

Without a scope nothing is frozen, and a pause is what ``slicer pause`` wrote.
"""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.kernel import cgroup
from slicer.kernel.proc import now_s
from slicer.ledger import control_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.kernel.cgroup_events import CgroupEvents
    from slicer.state.statedir import StateDir


class PauseClock:
    """Counts from its making on. ``directory`` is the cgroup's, "" where there is none.

    ``is_stopped`` tells, without a cgroup, whether the command is stopped.
    """

    def __init__(
        self, directory: str, state: StateDir, job: str, is_stopped: Callable[[], bool],
        signals: frozenset[int],
    ) -> None:  # fmt: skip
        self._directory = directory
        self._state = state
        self._job = job
        self._is_stopped = is_stopped
        self._since_s = self._awake_s = now_s()
        self._before_s = cgroup.frozen_s(directory) if directory else None
        self.events: CgroupEvents | None = None  # to wait with, where the keeper has to see a thaw itself
        if directory and self._before_s is None:
            from slicer.kernel.cgroup_events import CgroupEvents

            try:
                self.events = CgroupEvents(directory, signals)
            except OSError:
                pass  # no descriptor is left: the log has to do

    def paused_s(self) -> float:
        """How many seconds the job has stood still since this was made."""
        if self._before_s is not None:
            return max(0.0, (cgroup.frozen_s(self._directory) or 0.0) - self._before_s)
        acts = self._acts()
        if control_log.open_pause(acts) and not self.is_paused(acts):
            self._note("thawed")  # whoever paused it was killed before it was noted that it goes on
            acts = self._acts()
        return control_log.paused_s(acts, now_s(), self._since_s)

    def is_paused(self, acts: tuple[control_log.Act, ...] | None = None) -> bool:
        """Whether the job stands still now, though its keeper does not."""
        if self._directory:
            return False
        open_pause = control_log.open_pause(self._acts() if acts is None else acts)
        return open_pause is not None and self._is_stopped()

    def woke(self, *, has_changed: bool) -> None:
        """The keeper was woken; ``has_changed``: by a change of its cgroup's events, maybe a thaw."""
        before_s, self._awake_s = self._awake_s, now_s()
        if not has_changed:
            return
        ends = [pause.until_s for pause in control_log.pauses(self._acts())]
        if any(until_s is None or until_s >= before_s for until_s in ends):
            return  # somebody who saw it begin has noted it
        control_log.add_span(self._state, self._job, before_s, self._awake_s)

    def _acts(self) -> tuple[control_log.Act, ...]:
        try:
            return control_log.read(self._state, self._job)
        except StateError:
            return ()

    def _note(self, kind: control_log.Kind) -> None:
        try:
            control_log.add(self._state, self._job, kind, is_new=False)
        except StateError:
            pass  # then the pause counts on: the job gets more time


def clock_for(
    cgroup_name: str, state: StateDir, job: str, is_stopped: Callable[[], bool], signals: frozenset[int]
) -> PauseClock:
    """The clock of a job; ``cgroup_name`` as /proc/PID/cgroup has it, "" without a scope."""
    directory = cgroup.path_of(cgroup_name) if cgroup_name else ""
    return PauseClock(directory if os.path.isdir(directory) else "", state, job, is_stopped, signals)
