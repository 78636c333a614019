"""The lengths of all users' earlier runs, by which the broker estimates new ones.

A user's runs say nothing about another user's command of the same name. Of the machine's runs each user has
the same small part, so nobody's many jobs decide alone how long the others' are taken to be.
"""

from __future__ import annotations

from slicer.model import Ticket
from slicer.placement.lengths import Lengths, estimated, key_of
from slicer.placement.suspects import RunEnd, suspects, with_end
from slicer.record import replace

_EACH = 16  # runs of a user that count among the machine's


class RunLengths:
    """What is known of each user's runs that held GPUs and succeeded."""

    def __init__(self) -> None:
        self._own: dict[int, Lengths] = {}
        self._machine: tuple[float, ...] = ()
        self._ends: tuple[RunEnd, ...] = ()

    @property
    def mean_s(self) -> float | None:
        """The mean length of the machine's jobs; None: unknown."""
        return Lengths(self._machine).mean_s

    def note(self, uid: int, command: str, length_s: float) -> None:
        self._own[uid] = self._own.get(uid, Lengths()).with_run(key_of(command), length_s)
        self._machine = tuple(run for each in self._own.values() for run in each.machine[-_EACH:])

    def note_end(self, uid: int, command: str, end: RunEnd) -> None:
        """A user's commands are compared with the same user's alone."""
        self._ends = with_end(self._ends, replace(end, key=f"{uid} {key_of(command)}"))

    def suspects(self, now_s: float) -> frozenset[str]:
        return suspects(self._ends, now_s)

    def estimated(self, ticket: Ticket, limit_s: float | None) -> Ticket:
        own = self._own.get(ticket.uid, Lengths())
        return estimated(ticket, Lengths(self._machine, own.commands), limit_s)
