"""The files of a ledger on disk: leases, tickets and bells, and the lock that guards them.

Call everything but the ringing of others under the ledger's lock. Only there is it certain whether a file's
owner holds its flock.
"""

from __future__ import annotations

import os
import stat
import time

from slicer import faults
from slicer.errors import LedgerGone, StateError
from slicer.kernel import cgroup, proc
from slicer.ledger import entries, tickets
from slicer.ledger.lock import LONGEST_PAUSE_S, LedgerLock
from slicer.model import Lease, Request, Ticket, manager_of
from slicer.record import replace
from slicer.state import statefile
from slicer.state.directory import failing
from slicer.state.statefile import TornFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from slicer.placement.lengths import Lengths
    from slicer.state.directory import Directory
    from slicer.state.statedir import StateDir

    _Record = TypeVar("_Record", Lease, Ticket)

# How long a waiting job may take to look at the ledger after its bell rang. A job that takes longer is
# frozen, hangs in the GPU's driver or waits for a disk. The next ones go ahead until it looks again.
ANSWER_WITHIN_S = 5.0


BEGUN = stat.S_IXUSR  # the bit in the mode of a lease's file that says that its command has begun
_ENDS = "ends"  # of runs on GPUs: slicer.ledger.run_ends. There is none as long as no job fails at once
_MOST_ENDS = 1 << 16  # bytes
_FEW = 16  # leases, which take a millisecond or two to read


class LedgerFiles:
    """Reads the files that count, removes those of dead owners, and warns once of foreign files."""

    def __init__(self, directory: StateDir, warn: Callable[[str], None]) -> None:
        self.directory = directory
        self._say = warn
        self._said: set[str] = set()
        self._ignored: set[str] = set()  # names that are not tickets', and cannot be removed
        self._parsed: dict[str, Request] = {}  # by the tickets' file names
        self._decoded: dict[str, tuple[bytes, Lease]] = {}  # the leases last seen, and their files' content
        self._lengths: tuple[bytes, Lengths] | None = None  # as last read, with the file's content
        self._ringing: dict[str, tuple[int, float]] = {}  # by job: the bell's ringing, and its start
        self._seen: tuple[tuple[Lease, bool], ...] = ()  # leases last seen, and whether they are flocked
        self._unreadable: list[Lease] = []  # stand-ins for unreadable leases that were last seen
        self.joined: dict[str, int] = {}  # the outer jobs' leases, which we hold, too; a job inherits them
        # The signal mask while asleep (None: unchanged). With it, a caller that blocks signals can be
        # interrupted there, and only there.
        self.mask: frozenset[int] | None = None
        self.patience_s: float | None = None  # how long one holder of the lock may delay us; None: for ever
        self.longest_pause_s = LONGEST_PAUSE_S
        self.tell: Callable[[str], None] = self.warn  # reports that a process has held the lock for long
        self.broker_now: Callable[[], str] = str  # the socket of the broker that decides now; "": none
        self._lock_fd = directory.base.open_lock()

    def close(self) -> None:
        """Close the descriptors, for callers that go on."""
        for fd in (self._lock_fd, *self.joined.values()):
            os.close(fd)
        self.joined = {}
        self.directory.close()

    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that are kept open."""
        return (self._lock_fd, *self.directory.descriptors())

    def after_fork(self) -> None:
        """In a child: reopen the lock file, because it would share its parent's flock. Raises StateError.

        Signals that the child blocks stay blocked: the parent's handlers, which end its wait, are not for it.
        """
        self.mask = None
        os.close(self._lock_fd)
        self._lock_fd = self.directory.base.open_lock()

    def locked(self) -> LedgerLock:
        """The ledger's lock, to be entered with ``with``."""
        path = f"{self.directory.path}/lock"
        return LedgerLock(
            self._lock_fd, path, self.mask, self.patience_s, self.longest_pause_s, self.tell
        )

    def warn(self, text: str) -> None:
        """Warn of a problem once, however often it is found."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def leases(self) -> tuple[Lease, ...]:
        """The leases that count. Dead owners' files are removed on the way. Raises StateError."""
        self._seen = tuple(self._living_leases())
        return tuple(lease for lease, _ in self._seen)

    def has_to_look(self, chance: str) -> bool:
        """Whether to read the leases though no grant depends on them, in order to remove dead owners' files.

        If there are many, every newcomer would read all of them, so ``chance`` (hex digits) picks some.
        """
        return chance[0] == "0" or len(_listed(self.directory.leases)) <= _FEW

    def orphans(self) -> tuple[Lease, ...]:
        """Those of the leases last seen whose owners are dead: only the job holds them.

        The end of such a lease closes no writer.
        """
        left = [lease for lease, is_locked in self._seen if not is_locked or _is_left_alone(lease)]
        return (*left, *self._unreadable)

    def closing(self, gpus: tuple[str, ...]) -> tuple[Lease, ...]:
        """Stand-ins on all these GPUs for unreadable leases, which may hold any of them."""
        return tuple(replace(lease, gpus=gpus) for lease in self._unreadable)

    def _living_leases(self) -> Iterator[tuple[Lease, bool]]:
        folder = self.directory.leases
        before, self._decoded = self._decoded, {}
        self._unreadable = []
        for name in sorted(_listed(folder)):
            entry = entries.read(folder, name, self.warn)
            if entry is None:
                continue
            data, lease = before.get(name, (b"", None))
            try:
                if lease is None or data != entry.data:
                    lease = self._lease(name, entry)
            except TornFile as error:
                self._meet_unreadable(name, entry, str(error))
                continue
            self._decoded[name] = entry.data, lease
            if entry.is_locked or entry.is_joined or lives_on(lease):
                yield lease, entry.is_locked
            else:
                if lease.boot_id == proc.boot_id() and folder.lstat(name).st_mode & BEGUN:
                    self._keep_lost(lease)
                self.drop_lease(name)

    def _keep_lost(self, lease: Lease) -> None:
        """Its command began, and nobody is left to say how it ended: the history will say that."""
        from slicer.outcome import kept

        try:
            kept.keep_lost(self.directory.base, lease)
        except OSError as error:
            self.warn(f"{lease.job} will not be in the history: {error.strerror}")

    def _lease(self, name: str, entry: entries.FlockedFile) -> Lease:
        """The lease in a file, or the one that its killed writer was writing. Raises TornFile.

        Half of the new text and half of the old one may look like a valid lease that never existed. So the
        new text counts wherever it is whole. If it is not whole, the file itself was not changed yet.
        """
        data = self.spare(name).read() if statefile.is_job_id(name) else b""
        try:
            if data:
                statefile.decode(Lease, data)
        except TornFile:
            data = b""
        found = _decoded(Lease, entry, data)
        if found.job != name:
            raise TornFile("its name does not match its content")
        return found

    def _meet_unreadable(self, name: str, entry: entries.FlockedFile, why: str) -> None:
        """While a process holds an unreadable lease, keep the GPUs from others; then remove the lease."""
        path = f"{self.directory.leases.path}/{name}"
        is_ours = statefile.is_job_id(name) and statefile.begins_as(Lease, entry.data)
        if not entry.is_locked and not is_ours:
            self.warn(f"{path}: ignored: {why}")
        elif not entry.is_locked and not proc.in_lease(name):
            self.drop_lease(name)
        else:
            self.warn(f"{path}: {why}; it may hold any GPU, so no others are granted until its job has ended")
            self._unreadable.append(_stand_in(name))

    def spare(self, job: str) -> entries.SpareCopy:
        """The spare file for the next text of a job's lease."""
        return entries.SpareCopy(self.directory.base, job)

    def write(self, writer: int, lease: Lease) -> None:
        """Write a lease's file again. Raises StateError."""
        entries.write(self.spare(lease.job), writer, statefile.encode(lease))

    def give_back(
        self, job: str, close: Callable[[], None], is_kept: Callable[[], bool] = lambda: False
    ) -> None:
        """Take a job off the ledger and ring the next one. Needs no lock. Raises StateError.

        ``close`` closes the caller's descriptors of its lease or ticket. ``is_kept`` is called under the lock
        and returns whether another process still holds the lease: then it stays. A removed ledger is no
        error.
        """
        try:
            with self.locked():
                faults.point("ledger-releasing")
                if not is_kept():
                    self.drop_lease(job)
                faults.point("ledger-unlinked")
                close()
                faults.point("ledger-closed")
                self.tidy()
            self.nudge()
        except LedgerGone:
            close()

    def join(self, leases: Iterable[Lease]) -> None:
        """Hold the leases of outer jobs, too, so that they last as long as our job. Raises StateError."""
        for lease in leases:
            with failing(f"{self.directory.leases.path}/{lease.job}", "a job inside cannot hold it"):
                fd = self.directory.leases.open(lease.job, os.O_RDONLY)
                self.joined[lease.job] = fd
                entries.join(fd)

    def part(self, *, is_handed_on: bool = False) -> None:
        """Let go of the outer jobs' leases, and end those that nobody else holds any more.

        ``is_handed_on``: processes that inherited them hold them still.
        """
        joined, self.joined = tuple(self.joined.values()), {}
        if not joined:
            return
        try:
            with self.locked():
                _close(joined, is_handed_on=is_handed_on)
                self.leases()
            self.nudge()
        except LedgerGone:
            _close(joined, is_handed_on=is_handed_on)

    def drop_lease(self, job: str) -> None:
        """Take a lease off the ledger."""
        entries.remove(self.directory.leases, job)
        if statefile.is_job_id(job):
            self.spare(job).remove()
            entries.remove(self.directory.base, control_name(job))

    def requests(self) -> list[tuple[str, Request]]:
        """The tickets' names and requests, in their order. Opens hardly any file."""
        names = sorted(_listed(self.directory.tickets))
        self._parsed = {name: request for name in names if (request := self._request(name)) is not None}
        return list(self._parsed.items())

    def lengths(self) -> Lengths:
        """The lengths of earlier runs. Needs no lock. Raises StateError."""
        from slicer.ledger import run_lengths  # not for a job without GPUs

        data = run_lengths.content(self.directory.base)
        if self._lengths is None or self._lengths[0] != data:
            self._lengths = data, run_lengths.parse(data)
        return self._lengths[1]

    def note_length(self, key: str, length_s: float) -> None:
        """Add a run of that command. Raises StateError."""
        from slicer.ledger import run_lengths

        run_lengths.write(self.directory.base, self.lengths().with_run(key, length_s))

    def suspects(self) -> frozenset[str]:
        """The GPUs that are placed last. Raises StateError."""
        if not (data := self._ends()):
            return frozenset()
        from slicer.ledger import run_ends
        from slicer.placement.suspects import suspects

        return suspects(run_ends.parse(data), proc.now_s())

    def note_end(self, how: str, gpus: tuple[str, ...], key: str) -> None:
        """Add how a run on those GPUs ended, if one has failed at once. Raises StateError."""
        if not (data := self._ends()) and how != "quick":
            return
        from slicer.ledger import run_ends
        from slicer.placement.suspects import RunEnd, with_end

        base = self.directory.base
        found = with_end(run_ends.parse(data), RunEnd(proc.now_s(), how, gpus, key))
        with failing(f"{base.path}/{_ENDS}", "cannot be written"):
            os.close(base.replace(_ENDS, run_ends.text(found), mode=0o600))

    def _ends(self) -> bytes:
        return self.directory.base.read(_ENDS, _MOST_ENDS)

    def names_by_job(self) -> dict[str, str]:
        """The names of the tickets last seen by :meth:`requests`, without those discarded since."""
        return {request.job: name for name, request in self._parsed.items()}

    def _request(self, name: str) -> Request | None:
        known = self._parsed.get(name)
        if known is not None or name in self._ignored:
            return known
        request = tickets.parse_name(name)
        if request is None:
            self.warn(f"{self._ticket_path(name)}: ignored: not the name of a ticket")
        elif not tickets.says_all(name):
            return self.ticket(name)
        return request

    def ticket(self, name: str) -> Ticket | None:
        """The ticket in a file; None if it is torn, foreign or removed."""
        path = self._ticket_path(name)
        entry = entries.read(self.directory.tickets, name, self.warn)
        if entry is None:
            return None
        try:
            ticket = _decoded(Ticket, entry)
            if tickets.name_of(ticket) != name:
                raise TornFile("its name does not match its content")
        except TornFile as error:
            if not entry.is_locked and statefile.begins_as(Ticket, entry.data):
                self.discard(name, tickets.job_of(name))  # its owner is dead
            else:
                self.warn(f"{path}: ignored: {error}")
            return None
        return ticket

    def live_tickets(self) -> list[Ticket]:
        """The tickets that count, in their order."""
        found = []
        for name, request in self.requests():
            if not self.is_waiting(name):
                self.discard(name, request.job)
            elif (ticket := self.ticket(name)) is not None:
                found.append(ticket)
        return found

    def is_queued(self, name: str) -> bool:
        """Whether :meth:`requests` last saw a ticket of that name."""
        return name in self._parsed

    def is_waiting(self, name: str) -> bool:
        """Whether the ticket of that name exists, and its owner is alive."""
        return entries.is_held(self.directory.tickets, name)

    def _ticket_path(self, name: str) -> str:
        return f"{self.directory.tickets.path}/{name}"

    def discard(self, name: str, job: str) -> None:
        """Remove a ticket, and ring the next one."""
        entries.remove(self.directory.bells, job)
        faults.point("ledger-bell-unlinked")
        if statefile.is_job_id(job):
            self.spare(job).remove()  # the owner was killed while it turned the ticket into a lease
        if not entries.remove(self.directory.tickets, name):
            self.warn(f"{self._ticket_path(name)}: ignored: not a ticket, and it cannot be removed")
            self._ignored.add(name)
        self._parsed.pop(name, None)
        faults.point("ledger-ticket-unlinked")
        self.wake_next(name)

    def wake_next(self, name: str) -> None:
        """Ring the ticket after that name. If the name wants GPUs, also ring the next one that does."""
        everybody, with_gpus = ([other for other in line if other > name] for line in self._lines())
        self._ring_first(everybody)
        if tickets.wants_gpus(name):
            self._ring_first(with_gpus)

    def nudge(self) -> None:
        """Ring the leaders after a change. If one is stopped (Ctrl-Z) or dead, ring the next ones, too.

        A leader notices most changes without the bell. But an unanswered bell shows others that it does not.
        """
        for line in self._lines():
            self._ring_first(line)

    def alert(self) -> None:
        """Some time after :meth:`nudge`: ring the next ticket if a leader has not looked yet."""
        for line in self._lines():
            if len(line) > 1 and self.unanswered_s(tickets.job_of(line[0])) is not None:
                self._ring_first(line[1:])

    def _lines(self) -> tuple[list[str], list[str]]:
        """The names of all tickets in their order, and of those that want GPUs."""
        names = [name for name in self._names() if tickets.parse_name(name) is not None]
        return names, [name for name in names if tickets.wants_gpus(name)]

    def _ring_first(self, names: list[str]) -> None:
        """Ring tickets in order until one can act.

        Stopped tickets on the way are rung too. They look again when they continue.
        """
        for name in names:
            self.ring(tickets.job_of(name))
            if self._can_act(name):
                return

    def _can_act(self, name: str) -> bool:
        """Whether the file is a ticket whose owner is alive and not stopped. Needs no lock.

        A probe takes the flock for an instant. That does no harm, because a complete ticket is flocked
        already.
        """
        ticket = self._peek(name)
        if ticket is None or proc.is_stopped(ticket.pid, ticket.pid_start):
            return False
        return self.is_waiting(name)

    def is_idle(self, name: str) -> bool:
        """Whether the ticket's owner is stopped (Ctrl-Z), or does not look although its bell rang.

        Such a ticket keeps its place, and others may pass it.
        """
        ticket = self._peek(name)
        if ticket is None:
            return False
        if proc.is_stopped(ticket.pid, ticket.pid_start):
            return True
        since_s = self.unanswered_s(ticket.job)
        return since_s is not None and since_s >= ANSWER_WITHIN_S

    def unanswered_s(self, job: str) -> float | None:
        """The seconds since we first saw the job's bell ring; None: the job has looked since."""
        ringing = tickets.ringing(self.directory.bells, job)
        if ringing is None:
            self._ringing.pop(job, None)
            return None
        now_s = time.monotonic()
        known, since_s = self._ringing.get(job, (0, now_s))
        if known != ringing:
            self._ringing[job] = ringing, now_s
            return 0.0
        return now_s - since_s

    def _peek(self, name: str) -> Ticket | None:
        """The ticket in a file, if it is whole. Needs no lock, so the file may be incomplete."""
        try:
            return statefile.decode(Ticket, self.directory.tickets.read(name, statefile.MOST_BYTES))
        except (StateError, TornFile):
            return None

    def ring(self, job: str) -> None:
        """Make a waiting job look at the ledger."""
        if not tickets.ring(self.directory.bells, job):
            self.warn(f"{self.directory.bells.path}/{job}: ignored: it cannot be rung")

    def _names(self) -> list[str]:
        """The file names of the tickets, in their order; none if the directory was removed."""
        try:
            return sorted(_listed(self.directory.tickets))
        except StateError:
            return []  # then there is nobody to wake

    def tidy(self) -> None:
        """Remove dead owners' tickets at the end of the queue. The ticket behind removes the others."""
        names = self._names()
        while names and tickets.parse_name(names[-1]) and not self.is_waiting(names[-1]):
            name = names.pop()
            self.discard(name, tickets.job_of(name))


def control_name(job: str) -> str:
    """The name of a job's :mod:`slicer.ledger.control_log`, beside the leases' folder."""
    return f"{job}.control"


def _listed(folder: Directory) -> list[str]:
    with failing(folder.path, "cannot be read any more"):
        return folder.names()


def _decoded(kind: type[_Record], entry: entries.FlockedFile, data: bytes = b"") -> _Record:
    """The record in a file, or in ``data`` instead. Raises TornFile."""
    if entry.problem:
        raise TornFile(entry.problem)
    found = statefile.decode(kind, data or entry.data)
    if found.uid != os.geteuid():
        raise TornFile(f"it belongs to uid {found.uid}")
    return found


def _stand_in(job: str) -> Lease:
    """A lease that stands in for an unreadable file, still without its GPUs."""
    return Lease(
        job=job, name="a lease that cannot be read", command="", pid=0, pid_start=0, keeper=0,
        boot_id=proc.boot_id(), uid=os.geteuid(), backend="plain", manager=manager_of(os.geteuid()), unit="",
        cgroup="", gpus=(), vram_mib=None, vram_peak_mib=(), slots={}, priority=0, forced=0,
        since_s=proc.now_s(), expect_s=None,
    )  # fmt: skip


def _close(joined: tuple[int, ...], *, is_handed_on: bool) -> None:
    for fd in joined:
        if not is_handed_on:
            entries.part(fd)
        os.close(fd)


def _is_left_alone(lease: Lease) -> bool:
    """Whether only the job holds a flocked lease: its supervisor is dead, or (--exec) there was none."""
    is_exec = bool(lease.cgroup) and not lease.keeper
    return is_exec or not proc.is_running(lease.pid, lease.pid_start)


def lives_on(lease: Lease) -> bool:
    """Whether a lease without a flock still counts, because its job lives on."""
    if lease.boot_id != proc.boot_id() or lease.backend == "inner":
        return False
    if lease.backend != "systemd":
        return bool(proc.in_lease(lease.job))
    try:
        return bool(lease.cgroup) and cgroup.lives(lease.cgroup)
    except OSError:
        return True  # unknown, because descriptors ran out: then it counts
