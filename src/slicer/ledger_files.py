"""The files of a ledger: its leases and tickets as they lie on disk, and the bells beside them.

All but the waking of others is to be called under the ledger's lock, for whether a file is locked can only be
told there.
"""

from __future__ import annotations

import os

from slicer import cgroup, entries, faults, proc, statefile, tickets
from slicer.errors import StateError
from slicer.model import LEASE_VARIABLE, Lease, Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from slicer.model import Request


class LedgerFiles:
    """Reads what counts, removes what dead owners left, ignores (with one warning) what is none of ours."""

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self._base = path
        self._say = warn
        self._said: set[str] = set()
        self._ignored: set[str] = set()  # what lies among the tickets, is none, and cannot be removed
        self._parsed: dict[str, Request] = {}  # tickets by their file names, which tell all there is to know
        self._decoded: dict[str, tuple[bytes, Lease]] = {}  # leases last seen, with what their files said
        self.orphans: tuple[Lease, ...] = ()  # of the leases last seen, those that only live on in their jobs

    def _warn(self, text: str) -> None:
        """Once for each thing, however often it is looked at."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def lease_path(self, job: str) -> str:
        return f"{self._base}/leases/{job}"

    def ticket_path(self, name: str) -> str:
        return f"{self._base}/tickets/{name}"

    def bell_path(self, job: str) -> str:
        return f"{self._base}/bells/{job}"

    def leases(self) -> tuple[Lease, ...]:
        """The leases that count. Dead owners' files are removed on the way."""
        found = tuple(self._living_leases())
        self.orphans = tuple(lease for lease, is_locked in found if not is_locked)
        return tuple(lease for lease, _ in found)

    def _living_leases(self) -> Iterator[tuple[Lease, bool]]:
        base = f"{self._base}/leases"
        before, self._decoded = self._decoded, {}
        for name in sorted(_listed(base)):
            path = f"{base}/{name}"
            entry = entries.read(path, self._warn)
            if entry is None:
                continue
            data, lease = before.get(name, (b"", None))
            if lease is None or data != entry.data:
                lease = self._decode(Lease, path, entry)
            if lease is None:
                continue
            self._decoded[name] = entry.data, lease
            if name != lease.job:
                self._warn(f"{path}: ignored: its name is not what it says")
            elif entry.is_locked or lives_on(lease):
                yield lease, entry.is_locked
            else:
                entries.remove(path)

    def requests(self) -> list[tuple[str, Request]]:
        """The tickets' names and what they ask for, in their order. Next to nothing is opened."""
        base = f"{self._base}/tickets"
        names = sorted(_listed(base))
        self._parsed = {name: request for name in names if (request := self._request(name)) is not None}
        return list(self._parsed.items())

    def names_by_job(self) -> dict[str, str]:
        """The names of the tickets that :meth:`requests` last saw, less those discarded since."""
        return {request.job: name for name, request in self._parsed.items()}

    def _request(self, name: str) -> Request | None:
        known = self._parsed.get(name)
        if known is not None or name in self._ignored:
            return known
        request = tickets.parse_name(name)
        if request is None:
            self._warn(f"{self.ticket_path(name)}: ignored: not the name of a ticket")
        elif tickets.has_choice(name):
            ticket = self.ticket(name)
            return tickets.request_of(ticket) if ticket is not None else None
        return request

    def ticket(self, name: str) -> Ticket | None:
        """What a ticket's file says; None for a torn, foreign or vanished one."""
        path = self.ticket_path(name)
        entry = entries.read(path, self._warn)
        if entry is None:
            return None
        ticket: Ticket | None = self._decode(Ticket, path, entry)
        if ticket is not None and tickets.name_of(ticket) != name:
            self._warn(f"{path}: ignored: its name is not what it says")
            return None
        return ticket

    def live_tickets(self) -> list[Ticket]:
        """The tickets that count, in their order."""
        found = []
        for name, request in self.requests():
            if not entries.is_held(self.ticket_path(name)):
                self.discard(name, request.job)
            elif (ticket := self.ticket(name)) is not None:
                found.append(ticket)
        return found

    def _decode(self, kind: type[Any], path: str, entry: entries.Entry) -> Any:
        """The record in the file, or None with a warning."""
        try:
            found = statefile.decode(kind, entry.data)
        except statefile.TornFile as error:
            # Its owner died between creating and writing it, or somebody put it there.
            self._warn(f"{path}: ignored: {error}")
            return None
        if entry.uid not in (0, found.uid):
            self._warn(f"{path}: ignored: it belongs to uid {entry.uid} but speaks for uid {found.uid}")
            return None
        return found

    def discard(self, name: str, job: str) -> None:
        """Take a ticket off the queue, and wake who comes next."""
        entries.remove(self.bell_path(job))
        faults.point("ledger-bell-unlinked")
        if not entries.remove(self.ticket_path(name)):
            self._warn(f"{self.ticket_path(name)}: ignored: neither a ticket nor to be removed")
            self._ignored.add(name)
        self._parsed.pop(name, None)
        faults.point("ledger-ticket-unlinked")
        self.wake_next(name)

    def wake_next(self, name: str) -> None:
        """Ring who comes after a ticket of that name, and (if it wanted GPUs) the next that does."""
        behind = [other for other in self._names() if other > name]
        self._ring_first(behind)
        if tickets.wants_gpus(name):
            self._ring_first([other for other in behind if tickets.wants_gpus(other)])

    def nudge(self) -> None:
        """See to it that somebody notices a change though who leads is stopped (Ctrl-Z), or dead.

        Whoever comes after the dead looks for itself, unless it is stopped.
        """
        names = self._names()
        for line in (names, [name for name in names if tickets.wants_gpus(name)]):
            if line and not self._can_act(line[0]):
                self._ring_first(line)

    def _ring_first(self, names: list[str]) -> None:
        """Ring the first of these that can act on it, and those before it: they will when they go on."""
        for name in names:
            if tickets.parse_name(name) is None:
                continue  # somebody put it there
            self.ring(tickets.job_of(name))
            if self._can_act(name):
                return

    def _can_act(self, name: str) -> bool:
        """Whether the file is a ticket, and its owner alive and not stopped. Needs no lock.

        A ticket is flocked before it is written, so looking for the flock of a whole one is in nobody's way.
        """
        ticket = self._peek(name)
        if ticket is None or proc.is_stopped(ticket.pid, ticket.pid_start):
            return False
        return entries.is_held(self.ticket_path(name))

    def is_stopped(self, name: str) -> bool:
        """Whether the ticket's owner is stopped: it keeps its place, and stands in nobody's way."""
        ticket = self._peek(name)
        return ticket is not None and proc.is_stopped(ticket.pid, ticket.pid_start)

    def _peek(self, name: str) -> Ticket | None:
        """What a ticket's file says, if it is whole. Needs no lock: it may just be being made."""
        try:
            ticket: Ticket = statefile.decode(Ticket, entries.peek(self.ticket_path(name)))
        except statefile.TornFile:
            return None
        return ticket

    def ring(self, job: str) -> None:
        """Make a waiting job look at the ledger."""
        if not tickets.ring(self.bell_path(job)):
            self._warn(f"{self.bell_path(job)}: ignored: it cannot be rung")

    def _names(self) -> list[str]:
        """What lies among the tickets, in their order; nothing where somebody has removed the directory."""
        try:
            return sorted(_listed(f"{self._base}/tickets"))
        except StateError:
            return []  # who leaves has nobody to wake there

    def tidy(self) -> None:
        """Remove what the last in the queue left if it was killed: all others have somebody after them."""
        names = self._names()
        while names and tickets.parse_name(names[-1]) and not entries.is_held(self.ticket_path(names[-1])):
            name = names.pop()
            self.discard(name, tickets.job_of(name))


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise StateError(f"cannot be read any more: {error.strerror}", where=directory) from error


def lives_on(lease: Lease) -> bool:
    """Whether a lease that nobody flocks any more still counts, because its job lives on."""
    if lease.boot_id != proc.boot_id():
        return False
    if lease.backend == "systemd":
        return bool(lease.cgroup) and cgroup.populated(cgroup.path_of(lease.cgroup))
    return bool(proc.in_lease(LEASE_VARIABLE, lease.job))
