"""The broker's files: leases, its private claims on them, and tickets. They are correct even after a kill.

Every file appears whole or not at all (a rename), and is checked field by field when it is read back. The
order of writes allows the broker to be killed between any two:

- A lease appears after its claim and goes before it. So a claim without a lease is rubbish, and there is no
  lease without its claim.
- The lease names its keeper, unit and cgroup before systemd is asked for the scope. Thus every process in one
  of our scopes can be traced to its lease.
- A ticket goes after its lease has come.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

from slicer import faults
from slicer.broker.protocol.messages import Finished
from slicer.errors import StateError
from slicer.model import Lease, Ticket
from slicer.record import record, replace
from slicer.state import statefile
from slicer.state.directory import HINT, LEDGER, Directory, failed, failing

_Record = TypeVar("_Record", Lease, Ticket, "Claim", Finished)

_MAX_BYTES = 1 << 16
_END = ".end"  # suffix of a job's name in the claims' folder: its client's report of its end
_NO_HINT = "only root writes here: see what did, then systemctl restart slicer-broker.service"
RULES = replace(
    LEDGER, is_closed=False, hint=_NO_HINT, writable_hint=_NO_HINT, file_hint=_NO_HINT,
    full_hint="make room there; the broker writes a few KiB a job",
)  # fmt: skip
assert HINT not in (RULES.hint, RULES.full_hint)  # SLICER_STATE_DIR does not apply to the broker


@record
class Claim:
    """The broker's private data about a lease."""

    job: str
    command: str  # for its owner and root
    binding: str  # "process" or "scope", as in Acquire
    held: int  # 1: its keeper was seen in its scope, which alone counts from then on
    waited_s: float
    gids: tuple[int, ...]  # the groups of its user
    inside: tuple[str, ...]  # jobs whose leases last as long as this one
    slice: str  # "gpu" or "cpu", "" before Start
    rate: float  # the number of GPUs that it counts for in the accounts
    vram_mib: int  # the GPU memory that it counts for, over all its GPUs


@record
class Found:
    leases: tuple[tuple[Lease, Claim, Finished | None], ...]
    tickets: tuple[Ticket, ...]


class LeaseFiles:
    """The files in one of root's directories. Raises StateError if something cannot be written."""

    def __init__(self, base: Directory, warn: Callable[[str], None]) -> None:
        self._warn = warn
        base.check(RULES)
        self._leases = _folder(base, "leases", 0o755)
        self._claims = _folder(base, "commands", 0o700)
        self._tickets = _folder(base, "tickets", 0o700)

    def close(self) -> None:
        for folder in (self._leases, self._claims, self._tickets):
            folder.close()

    # -- leases ------------------------------------------------------------------------------------------

    def add(self, lease: Lease, claim: Claim) -> None:
        self._put(self._claims, claim.job, claim)
        faults.point("broker-claimed")
        try:
            self.rewrite(lease)
        except StateError:
            self._claims.remove(claim.job)
            raise
        faults.point("broker-leased")

    def rewrite(self, lease: Lease) -> None:
        """Write a lease again. Everybody may read it, so it contains no command line."""
        self._put(self._leases, lease.job, replace(lease, command=""), 0o644)

    def claim(self, claim: Claim) -> None:
        self._put(self._claims, claim.job, claim)

    def finish(self, told: Finished) -> None:
        """Keep a client's report of its job's end until the lease ends."""
        self._put(self._claims, told.job + _END, told)

    def drop(self, job: str) -> None:
        self._remove(self._leases, job)
        faults.point("broker-lease-unlinked")
        self._remove(self._claims, job + _END)
        self._remove(self._claims, job)

    # -- tickets -----------------------------------------------------------------------------------------

    def add_ticket(self, ticket: Ticket) -> None:
        self._put(self._tickets, ticket.job, ticket)
        faults.point("broker-ticketed")

    def drop_ticket(self, job: str) -> None:
        self._remove(self._tickets, job)

    # -- reading it back ---------------------------------------------------------------------------------

    def load(self) -> Found:
        """All complete entries that count. Removes incomplete ones. Raises StateError."""
        leases = []
        for lease in self._read_all(self._leases, Lease):
            claim = self._read(self._claims, lease.job, Claim)
            if claim is None:  # another program wrote it
                self._warn(f"{self._leases.path}/{lease.job}: its claim is missing: only its scope counts")
                claim = Claim(lease.job, "", "scope", 1, 0.0, (), (), "", float(len(lease.gpus)), 0)
            told = self._read(self._claims, lease.job + _END, Finished)
            leases.append((replace(lease, command=claim.command), claim, told))
        known = {lease.job for lease, _, _ in leases}
        for name in self._names(self._claims):
            if name.removesuffix(_END) not in known:
                self._remove(self._claims, name)
        tickets = []
        for ticket in self._read_all(self._tickets, Ticket):
            if ticket.job in known:  # the broker was killed between the two writes
                self._remove(self._tickets, ticket.job)
            else:
                tickets.append(ticket)
        return Found(tuple(leases), tuple(tickets))

    def _read_all(self, folder: Directory, kind: type[_Record]) -> Iterator[_Record]:
        for name in self._names(folder):
            found = self._read(folder, name, kind) if statefile.is_job_id(name) else None
            if found is not None and found.job == name:
                yield found
            else:  # it stays, for root to see: the broker writes files whole
                self._warn(f"{folder.path}/{name}: ignored: the broker did not write it")

    def _read(self, folder: Directory, name: str, kind: type[_Record]) -> _Record | None:
        data = folder.read(name, _MAX_BYTES)
        try:
            return statefile.decode(kind, data) if data else None
        except statefile.TornFile as error:
            self._warn(f"{folder.path}/{name}: {error}")
            return None

    # -- the edge ----------------------------------------------------------------------------------------

    def _names(self, folder: Directory) -> list[str]:
        with failing(folder.path, "cannot be read", RULES):
            names = sorted(folder.names())
        for name in names:
            if name.endswith(".tmp"):  # the writer was killed
                self._remove(folder, name)
        return [name for name in names if not name.endswith(".tmp") and self._is_plain(folder, name)]

    def _is_plain(self, folder: Directory, name: str) -> bool:
        """Whether it is a plain file. A link or a FIFO is not a lease, and blocks nobody."""
        try:
            is_plain = stat.S_ISREG(folder.lstat(name).st_mode)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failed(f"{folder.path}/{name}", error, RULES, "cannot be read") from error
        if not is_plain:
            self._warn(f"{folder.path}/{name}: ignored: not a plain file")
        return is_plain

    def _put(
        self, folder: Directory, name: str, what: Lease | Ticket | Claim | Finished, mode: int = 0o600
    ) -> None:
        with failing(f"{folder.path}/{name}", "cannot be written", RULES):
            fd = folder.replace(name, statefile.encode(what), mode=mode)
        try:
            os.fchmod(fd, mode)  # whatever the umask
        finally:
            os.close(fd)

    def _remove(self, folder: Directory, name: str) -> None:
        with failing(f"{folder.path}/{name}", "cannot be removed", RULES):
            folder.remove(name)


def _folder(base: Directory, name: str, mode: int) -> Directory:
    folder = base.own_folder(name)
    os.fchmod(folder.fd, mode)
    return folder
