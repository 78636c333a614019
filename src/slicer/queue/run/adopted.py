"""A job that a queue which died has left running: its keeper lives, and needs nobody.

It is watched through its keeper's pidfd, its lease's file and its attempt file. Where the keeper was killed
too, the job is waited for by its lease, and how it ends nobody will know.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.ledger.held_lease import HeldLease
from slicer.queue.run.outer_half import signal_keeper

if TYPE_CHECKING:
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease
    from slicer.queue.state.attempt import Attempt


class Adopted:
    """A job in flight that is not our child. ``key`` is the job's in the queue."""

    def __init__(
        self, key: str, job_id: str, attempt: Callable[[str], Attempt | None], lease: Lease | None,
        book: Ledger,
    ) -> None:  # fmt: skip
        """``attempt`` reads the attempt file of a job."""
        self.key = key
        self.job_id = job_id
        self._attempt = attempt
        self._book = book
        self._held = _held(book, lease) if lease is not None else None
        self.pidfd = -1
        self._find_keeper()

    def _find_keeper(self) -> None:
        found = self._attempt(self.job_id)
        if found is not None and found.is_alive and found.keeper:
            self.pidfd = _pidfd(found.keeper)
            if proc.start_time(found.keeper) != found.keeper_start:  # that was somebody else by then
                self._drop_pidfd()

    @property
    def lease(self) -> Lease | None:
        return self._held.lease if self._held is not None else None

    def note_peaks(self, peaks_mib: tuple[int, ...]) -> None:
        """Write the peaks into the lease. Raises StateError."""
        if self._held is not None:
            self._held.note_peaks(peaks_mib)

    def stop(self) -> bool:
        """Ask the job to end; whether there is a keeper to ask."""
        if self.pidfd >= 0:
            signal_keeper(self.pidfd)
        return self.pidfd >= 0

    def is_gone(self) -> bool:
        """Whether nothing of it lives any more."""
        if self.pidfd >= 0:
            if not proc.has_ended(self.pidfd):
                return False
            self._drop_pidfd()
            found = self._attempt(self.job_id)
            if found is not None and found.is_final:
                return True
        else:
            self._find_keeper()  # it may only now have come to note that it begins
            if self.pidfd >= 0:
                return False
        # Its keeper is dead, or not to be seen: there is the lease, which holds for as long as the job lives.
        with self._book.locked():
            return all(lease.job != self.job_id for lease in self._book.leases())

    def close(self) -> None:
        """Let go of all descriptors. Safe to repeat."""
        self._drop_pidfd()
        if self._held is not None:
            self._held.close()

    def _drop_pidfd(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _held(book: Ledger, lease: Lease) -> HeldLease:
    """The lease as we can write it. It is not flocked: it is the keeper's."""
    try:
        return HeldLease(book, lease, book.directory.leases.open(lease.job, os.O_RDONLY))
    except (OSError, StateError):
        return HeldLease(book, lease)
