"""How many attempts may begin at a time, whatever is free."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

from slicer.job.plan import Plan
from slicer.queue.engine.local.adopted import Adopted
from slicer.queue.engine.local.runs import Run
from slicer.queue.events import Events
from slicer.queue.state.register import Register

_MOST_STARTING = 64  # at a time
_MOST_AHEAD = 8  # jobs without a demand whose scopes are started before their turn
_SPARE_FDS = 40  # for files that are open for a moment, and for waiting


class Limits:
    """At most ``at_a_time`` jobs start or run (None: as many as the ledger allows). The ledger does not limit
    jobs without a demand; of these at most ``most_unbound`` run (None: no limit of their own).
    """

    def __init__(
        self, register: Register, events: Events, at_a_time: int | None, most_unbound: int | None
    ) -> None:
        self._register = register
        self._events = events
        self._at_a_time = at_a_time
        self._most_unbound = most_unbound
        self._has_told = False

    def may_add(self, plan: Plan, begun: Sequence[Run], living: Sequence[Run | Adopted]) -> bool:
        """Whether its scope may start now. A job with a time limit, counted from then, is never early."""
        if len(begun) >= _MOST_STARTING:
            return False
        if not plan.missing.is_nothing:
            return self._is_below(begun, living)
        if plan.profile.timeout_s is None:
            return _ahead(begun) < _MOST_AHEAD
        return not _ahead(begun) and self.has_place(begun, living)

    def has_place(self, begun: Sequence[Run], living: Sequence[Run | Adopted], earlier: int = 0) -> bool:
        """Whether one more job without a demand may run, besides ``earlier`` ones that are about to run."""
        due = sum(run.is_unbound for run in begun) - _ahead(begun) + earlier
        unbound = due + sum(each.is_unbound for each in living)
        is_below = self._most_unbound is None or unbound < self._most_unbound
        return is_below and self._is_below(begun, living, earlier)

    def _is_below(self, begun: Sequence[Run], living: Sequence[Run | Adopted], earlier: int = 0) -> bool:
        count = len(begun) - _ahead(begun) + len(living) + earlier
        return self._at_a_time is None or count < self._at_a_time

    def lacks_descriptors(self, count: int) -> bool:
        """Whether too few are left for one more than ``count`` runs. A single one can always be started."""
        fd = os.dup(self._register.log_dir.directory.fd)  # the lowest that is free
        os.close(fd)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_short = count > 0 and fd >= limit - _SPARE_FDS
        if is_short and not self._has_told:
            self._has_told = True
            self._events.warning(
                f"at most {count} jobs run or wait: few of {limit} descriptors are left (ulimit -Hn)"
            )
        return is_short


def _ahead(begun: Sequence[Run]) -> int:
    """The number of scopes started early. Their jobs hold nothing, so they block no other job."""
    return sum(run.may_be_early and not run.has_word for run in begun)
