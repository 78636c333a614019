"""All leases and tickets of this machine, on disk, and the one lock that guards the decision.

A lease and a ticket are one file each, flocked by their owner for as long as they count: the kernel is the
garbage collector, an unlocked file is a dead owner's. A lease also counts while the scope that it names is
populated, whatever became of its file descriptors. Everything is read and changed under the ledger's lock;
nobody sleeps while holding it.
"""

from __future__ import annotations

import fcntl
import os
import time

from slicer import cgroup, faults, placement, proc, statefile
from slicer.errors import BusyError, InfeasibleError, StateError
from slicer.model import LEASE_VARIABLE, Lease, Request, Ticket
from slicer.record import record, replace
from slicer.signals import signal
from slicer.statedir import StateDir, check_file, open_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, TypeVar

    from slicer.placement import Busy, Inventory

    _Entry = TypeVar("_Entry", Lease, Ticket)

_MAX_BYTES = 1 << 20  # a name may be as long as an argument (128 KiB), and is escaped


def now_s() -> float:
    """Seconds since boot, suspended time included: the ledger's only clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@record
class Snapshot:
    """The live leases and the tickets in their order."""

    leases: tuple[Lease, ...]
    tickets: tuple[Ticket, ...]


class HeldLease:
    """A lease of ours: the flocked file that proves it. ``fd`` may be handed on to the job.

    Without a file (``fd`` -1) it stands for what the jobs around us hold already.
    """

    def __init__(self, ledger: Ledger, lease: Lease, fd: int = -1) -> None:
        self._ledger = ledger
        self.lease = lease
        self.fd = fd
        self.is_outlived = False  # the job lives on without us: its end frees the lease, not ours

    def update(self, **changes: Any) -> None:
        """Record what became known after the grant (the cgroup, the pid). Raises StateError."""
        self.lease = replace(self.lease, **changes)
        if self.fd < 0:
            return
        with self._ledger.locked():
            faults.point("ledger-updating")
            _write(self.fd, statefile.encode(self.lease), self._ledger.lease_path(self.lease.job))

    def release(self) -> None:
        """Give the resources back, or only let go when the job outlives us. Safe to repeat."""
        if self.fd < 0:
            return
        with self._ledger.locked():
            faults.point("ledger-releasing")
            if not self.is_outlived:
                _unlink(self._ledger.lease_path(self.lease.job))
            faults.point("ledger-unlinked")
            os.close(self.fd)
            faults.point("ledger-closed")
        self.fd = -1


class Ledger:
    """The ledger in one state directory. Instances are cheap and hold only the lock file's descriptor."""

    def __init__(self, directory: StateDir, warn: Callable[[str], None]) -> None:
        self.directory = directory
        self._say = warn
        self._said: set[str] = set()
        # The signal mask while asleep (None: as it is), so that a caller who holds signals back can still be
        # interrupted there, and only there.
        self.mask: frozenset[int] | None = None
        self._lock_path = f"{directory.path}/lock"
        self._lock_fd = open_lock(self._lock_path)

    def _warn(self, text: str) -> None:
        """Once for each thing, however often it is looked at."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def lease_path(self, job: str) -> str:
        return f"{self.directory.path}/leases/{job}"

    def ticket_path(self, job: str) -> str:
        return f"{self.directory.path}/tickets/{job}"

    def locked(self) -> _Locked:
        return _Locked(self._lock_fd, self.mask)

    def snapshot(self) -> Snapshot:
        """The ledger as of now. Dead owners' files are removed on the way."""
        with self.locked():
            return self._read()

    def acquire(self, request: Request, draft: Lease, inventory: Inventory) -> HeldLease | Busy:
        """Grant the request now or say what stands in its way.

        ``draft`` is the lease to be written, still without its GPUs. Raises InfeasibleError when waiting
        could never help.
        """
        with self.locked():
            return self._decide(request, draft, inventory)

    def acquire_or_queue(
        self, request: Request, draft: Lease, inventory: Inventory, priority: int = 0
    ) -> HeldLease | Waiting:
        """As :meth:`acquire`, but take a ticket in the same breath when it has to wait."""
        with self.locked():
            found = self._decide(request, draft, inventory)
            if isinstance(found, HeldLease):
                return found
            ticket = Ticket(
                request.job, request.name, draft.command, draft.pid, draft.pid_start, draft.boot_id,
                draft.uid, priority, now_s(), request.gpus, request.cpu_slots, request.expect_s,
            )  # fmt: skip
            fd = self._create(self.ticket_path(ticket.job), statefile.encode(ticket))
            return Waiting(self, request, draft, inventory, ticket, fd, found)

    def retry(self, waiting: Waiting) -> HeldLease | Busy:
        """Decide again for a waiting request; its ticket goes when it is granted."""
        with self.locked():
            found = self._decide(waiting.request, waiting.draft, waiting.inventory)
            if isinstance(found, HeldLease):
                faults.point("ledger-granted")
                waiting.drop_ticket()
            return found

    def _decide(self, request: Request, draft: Lease, inventory: Inventory) -> HeldLease | Busy:
        seen = self._read()
        ahead = []
        for ticket in seen.tickets:
            if ticket.job == request.job:
                break
            ahead.append(ticket)
        decision = placement.decide(request, inventory, seen.leases, tuple(ahead))
        if isinstance(decision, placement.Infeasible):
            raise _infeasible(decision)
        if isinstance(decision, placement.Busy):
            return decision
        lease = replace(draft, gpus=decision.gpus, cpu_slots=decision.cpu_slots, since_s=now_s())
        return HeldLease(self, lease, self._create(self.lease_path(lease.job), statefile.encode(lease)))

    def _create(self, path: str, data: bytes) -> int:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StateError(f"cannot be created: {error.strerror}", where=path) from error
        faults.point("ledger-created")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.fchmod(fd, 0o644)  # whatever the umask: what others cannot read, they cannot respect
            faults.point("ledger-locked")
            _write(fd, data, path)
            faults.point("ledger-written")
        except StateError:
            _unlink(path)
            os.close(fd)
            raise
        return fd

    def _read(self) -> Snapshot:
        leases = tuple(self._live("leases", Lease, _lease_lives_on))
        tickets = sorted(self._live("tickets", Ticket, lambda _: False), key=_order)
        return Snapshot(leases, tuple(tickets))

    def _live(self, folder: str, kind: type[_Entry], lives_on: Callable[[_Entry], bool]) -> Iterator[_Entry]:
        base = f"{self.directory.path}/{folder}"
        try:
            names = sorted(os.listdir(base))
        except OSError as error:
            raise StateError(f"cannot be read any more: {error.strerror}", where=base) from error
        for name in names:
            path = f"{base}/{name}"
            read = self._open_entry(path)
            if read is None:
                continue
            data, owner, is_locked = read
            try:
                entry = statefile.decode(kind, data)
            except statefile.TornFile as error:
                # Its owner died between creating and writing it, or somebody put it there.
                self._warn(f"{path}: ignored: {error}")
                continue
            if owner not in (0, entry.uid) or name != entry.job:
                self._warn(f"{path}: ignored: it belongs to uid {owner} but speaks for uid {entry.uid}")
            elif is_locked or lives_on(entry):
                yield entry
            else:
                _unlink(path)

    def _open_entry(self, path: str) -> tuple[bytes, int, bool] | None:
        """Content, owner and whether its owner still holds it; None when it is not to be considered."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path}: ignored: {error.strerror}")
            return None
        try:
            owner = check_file(fd, path).st_uid
            data = os.read(fd, min(os.fstat(fd).st_size, _MAX_BYTES))
            is_locked = _is_locked(fd)
        except StateError as error:
            self._warn(f"{path}: ignored: {error.message}")
            return None
        finally:
            os.close(fd)
        if not data and not is_locked:
            _unlink(path)  # its owner was killed before the first byte
            return None
        return data, owner, is_locked


class Waiting:
    """A queued request. Use it as a context manager: leaving it gives the ticket up."""

    def __init__(
        self, ledger: Ledger, request: Request, draft: Lease, inventory: Inventory,
        ticket: Ticket, fd: int, busy: Busy,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self.request = request
        self.draft = draft
        self.inventory = inventory
        self.ticket = ticket
        self.busy = busy
        self._fd = fd

    def __enter__(self) -> Waiting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_ticket()

    def drop_ticket(self) -> None:
        """Leave the queue. Safe to repeat."""
        if self._fd >= 0:
            _unlink(self._ledger.ticket_path(self.ticket.job))
            faults.point("ledger-ticket-unlinked")
            os.close(self._fd)
            self._fd = -1

    def wait(self) -> HeldLease:
        """Sleep until the request can be granted: woken by the kernel, never by a clock."""
        from slicer.watch import LedgerWatch

        with LedgerWatch(self._ledger.directory.path) as watch:
            while True:
                found = self._ledger.retry(self)
                if isinstance(found, HeldLease):
                    return found
                self.busy = found
                watch.wait_for_change(found.holders, mask=self._ledger.mask)


class _Locked:
    """The critical section. Signals wait outside, so that Ctrl-Z cannot stop everybody else's decisions."""

    def __init__(self, fd: int, mask: frozenset[int] | None) -> None:
        self._fd = fd
        self._sleeping_mask = mask

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait()

    def _wait(self) -> None:
        """Somebody is inside: normally for a moment, but a stopped one must not make us deaf to Ctrl-C."""
        try:
            signal.pthread_sigmask(
                signal.SIG_SETMASK, self._mask if self._sleeping_mask is None else self._sleeping_mask
            )
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        except BaseException:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # it may have come after the lock
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _order(ticket: Ticket) -> tuple[int, float, str]:
    return -ticket.priority, ticket.arrived_s, ticket.job


def _is_locked(fd: int) -> bool:
    """Whether another open file description holds the flock. Only meaningful under the ledger's lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _lease_lives_on(lease: Lease) -> bool:
    """Whether a lease that nobody flocks any more still counts, because its job lives on."""
    if lease.boot_id != proc.boot_id():
        return False
    if lease.backend == "systemd":
        return bool(lease.cgroup) and cgroup.populated(cgroup.path_of(lease.cgroup))
    return bool(proc.in_lease(LEASE_VARIABLE, lease.job))


def _write(fd: int, data: bytes, path: str) -> None:
    try:
        os.pwrite(fd, data, 0)
        faults.point("ledger-half-written")
        os.ftruncate(fd, len(data))
    except OSError as error:
        raise StateError(f"cannot be written: {error.strerror}", where=path) from error


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # somebody else found the owner dead first
    except PermissionError:
        pass  # another user's leftover in a sticky directory: it counts for nothing anyway


def _infeasible(decision: placement.Infeasible) -> InfeasibleError:
    what = "GPU" if decision.kind == "gpu" else "CPU slot"

    def counted(number: int) -> str:
        return f"{number} {what}{'' if number == 1 else 's'}"

    were = "was" if decision.wanted == 1 else "were"
    return InfeasibleError(
        f"{counted(decision.wanted)} {were} asked for, but this machine has {counted(decision.total)}",
        hint="ask for fewer" if decision.total else f"this machine has no {what}",
    )


def raise_if_busy(found: HeldLease | Busy) -> HeldLease:
    """For callers who do not wait: the lease, or BusyError."""
    if isinstance(found, HeldLease):
        return found
    raise BusyError(found)
