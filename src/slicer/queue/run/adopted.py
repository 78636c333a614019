"""A job that still runs though its queue died: its keeper lives, and needs nobody.

The job is watched through its keeper's pidfd, its lease's file and its attempt file. If the keeper was killed
too, the queue waits until the lease is gone, and nobody will know how the job ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.model import Lease
from slicer.queue.run.outer_half import signal_keeper
from slicer.queue.state.attempt import Attempt


class Adopted:
    """A running job that is not our child. ``key`` is the job's in the queue.

    ``pidfd`` is its keeper's, -1 if there is none. ``held`` is its lease, None if it has none.
    """

    def __init__(
        self, key: str, job_id: str, attempt: Callable[[str], Attempt | None], lease: Lease | None,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        """``attempt`` reads the attempt file of a job."""
        self.key = key
        self.job_id = job_id
        self._attempt = attempt
        self._ledger = ledger
        self.held = _held(ledger, lease) if lease is not None else None
        self.pidfd = -1
        self._find_keeper()

    def _find_keeper(self) -> None:
        found = self._attempt(self.job_id)
        if found is not None and found.is_alive and found.keeper:
            try:
                self.pidfd = os.pidfd_open(found.keeper)
            except OSError:
                return
            if proc.start_time(found.keeper) != found.keeper_start:  # another process has the pid
                self._close_pidfd()

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
            self._close_pidfd()
            found = self._attempt(self.job_id)
            if found is not None and found.is_final:
                return True
        else:
            self._find_keeper()  # it may have noted only now that the command begins
            if self.pidfd >= 0:
                return False
        # No keeper is to be seen. The lease holds for as long as the job lives.
        with self._ledger.locked():
            return all(lease.job != self.job_id for lease in self._ledger.leases())

    def close(self) -> None:
        """Close all descriptors. Safe to repeat."""
        self._close_pidfd()
        if self.held is not None:
            self.held.close()

    def _close_pidfd(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _held(ledger: Ledger, lease: Lease) -> HeldLease:
    """The lease as we can write it. It is not flocked: it is the keeper's."""
    try:
        return HeldLease(ledger, lease, ledger.directory.leases.open(lease.job, os.O_RDONLY))
    except (OSError, StateError):
        return HeldLease(ledger, lease)
