"""Which requests are stopped (Ctrl-Z), as far as a decision has to know. No event tells of a stop.

Each round of a decision looks at those that it would serve. A user may have a thousand that are stopped: so
of a user of whom some were found, twice as many are looked at with the next round. What was found counts for
a while, and for the longer, the more that user has of them.
"""

from __future__ import annotations

from collections import Counter

from slicer.kernel import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from slicer.model import Ticket

_COUNTS_S = 0.9  # a little less than the pause after which the broker decides again
_EACH_S = 0.01  # more, for each of the user's


class Stopped:
    """Remembers what was found."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}  # by job
        self._of: Counter[int] = Counter()  # how many were found in this decision, by uid

    def since(self, now_s: float) -> set[str]:
        """A decision begins: the jobs that need no other look."""
        self._of.clear()
        self._until_s = {job: until_s for job, until_s in self._until_s.items() if until_s > now_s}
        return set(self._until_s)

    def among(self, able: Iterable[Ticket], chosen: Collection[str], now_s: float) -> set[str]:
        """The jobs of those that are stopped, among the chosen, and the next ones of users who had some."""
        further = Counter(self._of)
        found: list[Ticket] = []
        for ticket in able:
            if ticket.job not in chosen:
                if further[ticket.uid] <= 0:
                    continue
                further[ticket.uid] -= 1
            if proc.is_stopped(ticket.pid, ticket.pid_start):
                found.append(ticket)
        self._of.update(ticket.uid for ticket in found)
        for ticket in found:
            self._until_s[ticket.job] = now_s + _COUNTS_S + _EACH_S * self._of[ticket.uid]
        return {ticket.job for ticket in found}
