"""Whose a subordinate uid is (subuid(5)): a user of rootless containers has 65,536 of them.

Each would have caps, a share and connections of its own. So they are refused: whoever they belong to may ask.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE = "/etc/subuid"
_MOST_BYTES = 1 << 20


class Subordinates:
    """The ranges of a file of root's, read again when it has changed."""

    def __init__(self, path: str = _FILE) -> None:
        self._path = path
        self._read: tuple[int, ...] = ()
        self._ranges: tuple[tuple[int, int, str], ...] = ()

    def owner_of(self, uid: int) -> str:
        """The user that the uid is subordinate to, by name or uid; "" where it is a user of its own."""
        self._refresh()
        return next((owner for first, last, owner in self._ranges if first <= uid <= last), "")

    def _refresh(self) -> None:
        try:
            info = os.stat(self._path)
        except FileNotFoundError:
            self._ranges = ()
            return
        seen = (info.st_ino, info.st_size, info.st_mtime_ns)
        if seen == self._read:
            return
        with open(self._path, encoding="utf-8", errors="replace") as file:
            self._ranges = tuple(ranges(file.read(_MOST_BYTES)))
        self._read = seen


def ranges(text: str) -> Iterator[tuple[int, int, str]]:
    """First and last uid and the owner of each line. Left out: root's own, and lines that are none."""
    for line in text.splitlines():
        owner, *numbers = line.strip().split(":")
        if len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
            first, count = (int(each[:12]) for each in numbers)
            if first and owner not in ("root", "0"):
                yield first, first + count - 1, owner
