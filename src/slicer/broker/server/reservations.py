"""The reservations of this machine: /var/lib/slicer/reservations.json, which belongs to root alone.

The file is replaced as a whole before a reservation counts, and survives a reboot.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from slicer.broker.protocol.fields import read_record
from slicer.broker.rules.reservations import live
from slicer.errors import StateError
from slicer.model import Reservation
from slicer.record import as_dict
from slicer.state.directory import failing, open_trusted

FILE = "reservations.json"
_LONGEST = 1 << 20
_VERSION = 1


class Reservations:
    """All reservations that are not over."""

    def __init__(self, directory: str, warn: Callable[[str], None]) -> None:
        """Raises nothing: a file that cannot be read is reported, and stays until the next change."""
        self._directory = directory
        self._all: tuple[Reservation, ...] = ()
        try:
            self._all = self._load()
        except (OSError, StateError, ValueError, TypeError, KeyError, RecursionError) as error:
            warn(f"{directory}/{FILE}: no reservation counts: {error}")

    def now(self) -> tuple[Reservation, ...]:
        """The first to begin first."""
        self._all = live(self._all, time.time())
        return self._all

    def add(self, made: Reservation) -> None:
        """Raises StateError."""
        self._save((*self.now(), made))

    def remove(self, made: Reservation) -> None:
        """Raises StateError."""
        self._save(tuple(each for each in self.now() if each != made))

    def _load(self) -> tuple[Reservation, ...]:
        if not os.path.lexists(f"{self._directory}/{FILE}"):
            return ()
        folder = open_trusted(self._directory)
        try:
            said = json.loads(folder.read(FILE, _LONGEST))
        finally:
            folder.close()
        return tuple(map(_reservation, said["reservations"]))

    def _save(self, wanted: tuple[Reservation, ...]) -> None:
        rows = [as_dict(each) for each in wanted]
        data = json.dumps({"version": _VERSION, "reservations": rows}, default=list)
        path = f"{self._directory}/{FILE}"
        with failing(path, "cannot be written"):
            os.makedirs(self._directory, 0o755, exist_ok=True)
            folder = open_trusted(self._directory)
            try:
                os.close(folder.replace(FILE, data.encode("ascii") + b"\n", mode=0o600))
            finally:
                folder.close()
        self._all = live(wanted, time.time())


def _reservation(said: Any) -> Reservation:
    """Raises ValueError."""
    found = read_record(Reservation, said, is_strict=False)
    if not found.from_at < found.until_at:
        raise ValueError(f"{found.id} is no reservation")
    return found
