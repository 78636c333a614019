"""When the live status is read again."""

from __future__ import annotations

import os
import time

from slicer.backend import broker_socket
from slicer.errors import StateError
from slicer.kernel import inotify
from slicer.kernel.inotify import Inotify
from slicer.kernel.sleep import seconds_until, soonest, until_readable
from slicer.ledger.status import StatusReader
from slicer.ledger.watch import LedgerWatch
from slicer.state import BROKER_DIRECTORY
from slicer.state.statedir import StateDir

_SOONEST_S = 0.1  # between two updates, however much happens
_LOOKING_SHARE = 0.25  # the largest part of the time that goes into reading the status


class ChangeWaiter:
    """Sleeps until something may be new: the ledger has changed, or it is time to check the GPUs again."""

    def __init__(self, reader: StatusReader, interval_s: float) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._watch: LedgerWatch | None = None
        self._directory: StateDir | None = None
        self._others = _watch_of_others()
        self.problem = ""  # why changes of the ledger are noticed only after the interval; "" if they are not
        self._began_s = self._soonest_s = self._latest_s = time.monotonic()

    def begin(self) -> None:
        self._began_s = time.monotonic()

    def end(self) -> None:
        ended_s = time.monotonic()
        self._soonest_s = ended_s + max(_SOONEST_S, (ended_s - self._began_s) * (1 / _LOOKING_SHARE - 1))
        self._latest_s = ended_s + self._interval_s

    def wait(self, others: list[int]) -> frozenset[int]:
        """Sleep until something may have changed, or descriptors in ``others`` are ready. Returns those."""
        if not self._follow():
            own = self._watch.descriptors() if self._watch else []
            own += [self._others.fd] if self._others else []
            due_s = self._watch.due_s() if self._watch else None
            limit_s = seconds_until(self._latest_s)
            ready = until_readable([*own, *others], soonest(due_s, limit_s), None).intersection(others)
            if ready:
                return ready
        # Much may happen at once. Nobody can read faster than this.
        if ready := until_readable(others, seconds_until(self._soonest_s), None):
            return ready
        if self._watch is not None:
            self._watch.take()
        if self._others is not None:
            self._others.take()
        return frozenset()

    def _follow(self) -> bool:
        """Watch the ledger just read. Returns whether it may have changed before the watch began."""
        directory = self._reader.directory
        if directory is not self._directory:
            self._forget()
            self._directory = directory
        is_new = False
        self.problem = ""
        try:
            if self._watch is None and directory is not None:
                folders = (directory.leases, directory.tickets)
                self._watch = LedgerWatch(directory, folders, sees_newcomers=True)
                is_new = True
            if self._watch is not None:
                is_new |= self._watch.follow(self._reader.orphans)
        except StateError as error:
            self.problem = str(error)
        return is_new

    def _forget(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def close(self) -> None:
        self._forget()
        if self._others is not None:
            self._others.close()


def _watch_of_others() -> Inotify | None:
    """A watch on all users' leases. New tickets are noticed only after the interval."""
    found = Inotify(BROKER_DIRECTORY)
    changes = inotify.CREATE | inotify.MOVED_TO | inotify.DELETE
    if broker_socket(os.environ) and found.add(f"{BROKER_DIRECTORY}/leases", changes) is not None:
        return found
    found.close()
    return None
