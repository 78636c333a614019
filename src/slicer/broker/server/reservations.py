"""The reservations of this machine: /var/lib/slicer/reservations.json, which belongs to root alone.

The file also has the GPUs that root has taken out of service. It is replaced as a whole before anything in it
counts, and survives a reboot.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from slicer.broker.protocol.fields import read_record
from slicer.broker.rules.reservations import live
from slicer.errors import StateError
from slicer.model import OutOfService, Reservation
from slicer.record import as_dict
from slicer.state.directory import failing, open_trusted

FILE = "reservations.json"
_LONGEST = 1 << 20
_VERSION = 1


class Reservations:
    """All reservations that are not over, and the GPUs that are ``out_of_service`` by hand."""

    def __init__(self, directory: str, warn: Callable[[str], None]) -> None:
        """Raises nothing: a file that cannot be read is reported, and stays until the next change."""
        self._directory = directory
        self._all: tuple[Reservation, ...] = ()
        self.out_of_service: tuple[OutOfService, ...] = ()
        try:
            self._all, self.out_of_service = self._load()
        except (OSError, StateError, ValueError, TypeError, KeyError, RecursionError) as error:
            warn(f"{directory}/{FILE}: no reservation counts, and no GPU is out of service by hand: {error}")

    def now(self) -> tuple[Reservation, ...]:
        """The first to begin first."""
        self._all = live(self._all, time.time())
        return self._all

    def add(self, made: Reservation) -> None:
        """Raises StateError."""
        self._save((*self.now(), made), self.out_of_service)

    def remove(self, made: Reservation) -> None:
        """Raises StateError."""
        self._save(tuple(each for each in self.now() if each != made), self.out_of_service)

    def set_out_of_service(self, gpus: Iterable[OutOfService]) -> None:
        """Raises StateError."""
        self._save(self.now(), tuple(gpus))

    def _load(self) -> tuple[tuple[Reservation, ...], tuple[OutOfService, ...]]:
        if not os.path.lexists(f"{self._directory}/{FILE}"):
            return (), ()
        folder = open_trusted(self._directory)
        try:
            said = json.loads(folder.read(FILE, _LONGEST))
        finally:
            folder.close()
        kept = tuple(map(_reservation, said["reservations"]))
        out = said.get("out_of_service", ())  # older brokers wrote none, and drop them with their next write
        return kept, tuple(read_record(OutOfService, each, is_strict=False) for each in out)

    def _save(self, wanted: tuple[Reservation, ...], out_of_service: tuple[OutOfService, ...]) -> None:
        rows, out = ([as_dict(each) for each in of] for of in (wanted, out_of_service))
        document = {"version": _VERSION, "reservations": rows, "out_of_service": out}
        data = json.dumps(document, default=list)
        path = f"{self._directory}/{FILE}"
        with failing(path, "cannot be written"):
            os.makedirs(self._directory, 0o755, exist_ok=True)
            folder = open_trusted(self._directory)
            try:
                os.close(folder.replace(FILE, data.encode("ascii") + b"\n", mode=0o600))
            finally:
                folder.close()
        self._all, self.out_of_service = live(wanted, time.time()), out_of_service


def _reservation(said: Any) -> Reservation:
    """Raises ValueError."""
    found = read_record(Reservation, said, is_strict=False)
    if not found.from_at < found.until_at:
        raise ValueError(f"{found.id} is no reservation")
    return found
