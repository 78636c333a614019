"""A lease that this process holds: its flocked file, and the actions on it until it is returned."""

from __future__ import annotations

import fcntl
import os

from slicer import faults
from slicer.errors import StateError
from slicer.ledger import entries
from slicer.ledger.files import BEGUN, LedgerFiles, control_name, lives_on
from slicer.record import replace
from slicer.state.directory import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.ledger.plain_lock import PlainLock
    from slicer.model import Lease
    from slicer.state.statedir import StateDir


class HeldLease:
    """A lease of ours, proved by a flocked file.

    ``fd`` has the flock and is read-only; the job may inherit it. ``writer`` is the same file opened for
    writing; with -1 it is opened here. Without a file (``fd`` -1) this represents the holdings of outer jobs.
    """

    def __init__(self, files: LedgerFiles, lease: Lease, fd: int = -1, writer: int = -1) -> None:
        self._files = files
        self.lease = lease
        self.fd = fd
        self._writer = writer
        if fd >= 0 and writer < 0:
            try:
                self._writer = files.directory.leases.open_file(lease.job, os.O_WRONLY)
            except (OSError, StateError):
                pass  # the ledger was removed: the job can run all the same, and update() will report it
        self.is_handed_on = False  # to a running job: it holds the lease, too, and may outlive us
        self.is_outlived = False  # the job lives on without us: its end frees the lease, not ours
        self.plain_lock: PlainLock | None = None  # held along with it, for scripts that do not know leases
        self.is_record = False  # the broker's lease: nothing depends on the file
        self.gives_back: Callable[[], None] | None = None  # to the broker, while it is bound to our process
        self.postponed: list[Callable[[], None]] = []  # work that can wait until the command runs
        self.postponed_slow: list[Callable[[], None]] = []  # slow work that can wait for a quiet moment

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that prove the lease. The job inherits them."""
        own = (self.fd,) if self.fd >= 0 else ()
        return own if self.plain_lock is None else (*own, self.plain_lock.fd)

    @property
    def joined(self) -> tuple[int, ...]:
        """The leases of outer jobs that this one holds, too. The job inherits them."""
        return tuple(self._files.joined.values())

    @property
    def private(self) -> tuple[int, ...]:
        """The descriptors that nobody may inherit. A forked child that is not a holder closes them."""
        return (self._writer,) if self._writer >= 0 else ()

    def update(self, **changes: Any) -> None:
        """Record facts that became known after the grant (the cgroup, the pid). Raises StateError."""
        self.lease = replace(self.lease, **changes)
        if changes.get("cgroup"):
            self.gives_back = None  # from now on it is bound to the scope
        if self.fd < 0:
            return
        try:
            self._write()
        except StateError:
            if not self.is_record:
                raise

    def _write(self) -> None:
        with self._files.locked():
            self._put(self.lease)

    def _put(self, lease: Lease) -> None:
        if self._writer < 0:
            raise StateError("is gone", where=f"{self._files.directory.leases.path}/{lease.job}")
        faults.point("ledger-updating")
        self._files.write(self._writer, lease)

    def update_by(self, decide: Callable[[], dict[str, Any]]) -> None:
        """Record the changes that are decided under the same lock, or none. Raises StateError."""
        with self._files.locked():
            changes = decide()
            if changes:
                lease = replace(self.lease, **changes)
                self._put(lease)
                self.lease = lease

    def note_begun(self) -> None:
        """Note in the mode of its file, which costs least, that the command begins."""
        if self.fd >= 0:
            os.fchmod(self.fd, 0o600 | BEGUN)

    @property
    def was_controlled(self) -> bool:
        """Whether the job's control log has entries. Raises OSError."""
        return self._files.directory.base.has(control_name(self.lease.job))

    @property
    def directory(self) -> StateDir:
        return self._files.directory

    def do_postponed(self) -> None:
        """Do the work that waited for the command's start. Safe to repeat."""
        while self.postponed:
            self.postponed.pop(0)()

    def do_postponed_slow(self) -> None:
        """Do the work that waited for a quiet moment. Safe to repeat."""
        while self.postponed_slow:
            self.postponed_slow.pop(0)()

    def close(self) -> None:
        """Close our files and leave the lease to another holder, who returns it. Safe to repeat."""
        self.do_postponed()
        self._close_files()
        if self.plain_lock is not None:
            self.plain_lock.release()
        self.do_postponed_slow()

    def _close_files(self) -> None:
        for fd in (self.fd, self._writer):
            if fd >= 0:
                os.close(fd)
        self.fd = self._writer = -1

    def release(self) -> None:
        """Return the resources; only close the files if the job outlives us. Safe to repeat.

        If the lease was handed on (:attr:`is_handed_on`), it is taken off the ledger only if nobody else
        holds it any more. Raises StateError.
        """
        self.do_postponed()
        if self.fd >= 0:
            if self.plain_lock is not None:
                self.plain_lock.release()
            self._files.give_back(self.lease.job, self._close_files, self._is_kept)
        if self.gives_back is not None:
            self.gives_back()
            self.gives_back = None
        self.do_postponed_slow()
        self._files.part(is_handed_on=self.is_handed_on)

    def _is_kept(self) -> bool:
        if self.is_handed_on and not self.is_outlived:
            self.is_outlived = self._has_others()
        if not self.is_outlived and entries.is_joined(self.fd):
            self._leave_to_nested()
        return self.is_outlived

    def _leave_to_nested(self) -> None:
        """From now on only the jobs inside hold the lease, not children that know nothing of it."""
        self._files.write(self._writer, replace(self.lease, backend="inner"))
        fcntl.flock(self.fd, fcntl.LOCK_UN)  # closing it would leave the flock with forked children
        self.is_outlived = True

    def note_run(self, how: str, length_s: float) -> None:
        """Remember how the job's run ended, as in RunEnd. Raises StateError.

        A run that ended well says how long later ones take; the ends count once one has failed at once.
        """
        from slicer.placement.lengths import key_of

        with self._files.locked():
            key = key_of(self.lease.command)
            if how == "well":  # a failed run says little about others
                self._files.note_length(key, length_s)
            self._files.note_end(how, self.lease.gpus, key)

    def alert(self) -> None:
        """Some time after :meth:`release`: make sure that another ticket has looked."""
        self._files.alert()

    def is_shared(self) -> bool:
        """Whether others hold the lease, too: a process of the job, or the whole job through its scope.

        Raises StateError.
        """
        if self.fd >= 0 and not self.is_outlived:
            with self._files.locked():
                self.is_outlived = self._has_others()
        return self.is_outlived

    def _has_others(self) -> bool:
        """Release our flock, and take it again if nobody else has it. Call it under the ledger's lock."""
        folder = self._files.directory.leases
        try:
            again = folder.open(self.lease.job, os.O_RDONLY)
        except FileNotFoundError:
            return False  # the file was removed: there is nothing left to hold
        except OSError as error:
            where = f"{folder.path}/{self.lease.job}"
            raise StateError(f"cannot be read: {error.strerror}", where=where) from error
        os.close(self.fd)
        self.fd = again
        return not try_lock(again) or lives_on(self.lease)
