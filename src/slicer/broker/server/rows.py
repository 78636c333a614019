"""Leases and tickets as Status tells them. A long queue is told often, so each is made into JSON once.

Nobody can make a status too long for others: of many long rows each user's first ones are told.
"""

from __future__ import annotations

from slicer.broker.protocol import wire
from slicer.broker.rules import turns
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from slicer.broker.protocol.wire import Encoded
    from slicer.model import Lease, Ticket

MOST_BYTES = 2 << 20  # of all rows together: half of what a user may leave unread
_ROOM = 64  # rows of entries that are gone, before they are looked for


@record
class _Row:
    entry: Lease | Ticket
    made: dict[str, Encoded]  # by who looks: "root", its "owner", "others"


def length_of(row: str) -> int:
    """How many bytes a row takes."""
    return len(row) if row.isascii() else len(row.encode())


def fitting(found: Sequence[tuple[int, int]], viewer: int, most: int = MOST_BYTES) -> list[bool]:
    """Which rows, given by uid and length, there is room for: the viewer's own, then one of each user."""
    own = [index for index, (uid, _) in enumerate(found) if uid == viewer]
    others = [index for index, (uid, _) in enumerate(found) if uid != viewer]
    is_told = [False] * len(found)
    full: set[int] = set()  # users of whom one row was too long
    for index in (*own, *turns.interleaved(others, lambda index: found[index][0])):
        uid, size = found[index]
        if size > most or uid in full:
            full.add(uid)
            continue
        most -= size
        is_told[index] = True
    return is_told


class Rows:
    """The rows of one kind of entry."""

    def __init__(self, view: Callable[[Any, int], Any]) -> None:
        """``view``: the entry for a user's eyes. It may tell root, the owner and others apart."""
        self._view = view
        self._rows: dict[str, _Row] = {}

    def of(self, entries: Collection[Any], viewer: int) -> tuple[Any, ...]:
        """The rows of these entries for a user's eyes, encoded."""
        found = tuple(self._row(entry, viewer) for entry in entries)
        if len(self._rows) > len(entries) + _ROOM:
            there = {entry.job for entry in entries}
            self._rows = {job: row for job, row in self._rows.items() if job in there}
        return found

    def _row(self, entry: Any, viewer: int) -> Encoded:
        row = self._rows.get(entry.job)
        if row is None or row.entry is not entry:  # what changes is another record
            row = self._rows[entry.job] = _Row(entry, {})
        who = "root" if viewer == 0 else "owner" if viewer == entry.uid else "others"
        if who not in row.made:
            row.made[who] = wire.encoded(self._view(entry, viewer))
        return row.made[who]
