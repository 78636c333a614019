"""``slicer stop``: which job is meant, and how it is ended."""

from __future__ import annotations

import os
import signal
import time

from slicer.errors import EX_TIMEOUT, SlicerError, UsageError
from slicer.job.scope import DEFAULT_STOP_TIMEOUT_S, unit_name
from slicer.kernel import cgroup, proc
from slicer.kernel.open_files import has_open
from slicer.kernel.signals import STOP
from slicer.ledger.watch import LedgerWatch
from slicer.model import Lease, manager_of
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.ledger.ledger import Ledger, Snapshot
    from slicer.model import Ticket

# Longer than any sensible TimeoutStopSec; as long as the systemd backend waits for a stop, in seconds.
DEADLINE_S = 120.0
_SHORTEST_PREFIX = 4  # of a job's id; a shorter one is taken for a slip


class UnknownJob(UsageError):
    kind = "unknown-job"


class AmbiguousJob(UsageError):
    kind = "ambiguous-job"


class StillThere(SlicerError):
    """The job was told to end and has not done so in time (exit code 124)."""

    exit_code = EX_TIMEOUT
    kind = "still-there"


def find(word: str, seen: Snapshot) -> Lease | Ticket:
    """The job that ``word`` means: its id, its unit, its name, or the beginning of its id.

    Raises UnknownJob, or AmbiguousJob naming the candidates.
    """
    entries: tuple[Lease | Ticket, ...] = (*seen.leases, *seen.tickets)
    id_of_unit = word.removesuffix(".scope").removeprefix("slicer-")
    for entry in entries:
        if entry.job in (word, id_of_unit):
            return entry
    named = [entry for entry in entries if entry.name and entry.name == word]
    is_prefix = len(word) >= _SHORTEST_PREFIX
    meant = named or [entry for entry in entries if is_prefix and entry.job.startswith(word)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        candidates = ", ".join(f"{entry.job} (pid {entry.pid}, {entry.command})" for entry in meant)
        raise AmbiguousJob(f"{word!r} could be {len(meant)} jobs: {candidates}", hint="give the id")
    raise UnknownJob(f"no such job: {word!r}", hint=_known(word, entries))


def _known(word: str, entries: tuple[Lease | Ticket, ...]) -> str:
    from slicer.config.property_names import nearest

    if not entries:
        return "no job runs or waits"
    close = nearest(word, [name for entry in entries for name in (entry.name, entry.job) if name])
    return f"did you mean {close!r}?" if close else "see slicer status"


def stop(entry: Lease | Ticket, ledger: Ledger, deadline_s: float = DEADLINE_S) -> None:
    """End the job (SIGTERM, then SIGKILL after its stop timeout) and wait until its lease is given back.

    A waiting job leaves the queue. Raises StateError, BackendError, and StillThere when the job outlives
    ``deadline_s`` seconds.
    """
    _tell_journal(entry)
    if not isinstance(entry, Lease):
        _signal(entry.pid, entry.pid_start, entry.uid, signal.SIGTERM)
    elif entry.backend != "systemd" or not entry.cgroup:
        _stop_processes(entry, ledger)
    elif os.path.isdir(cgroup.path_of(entry.cgroup)):  # else it is over, and about to give its lease back
        _stop_unit(entry)
    if not _wait_until_gone(entry, ledger, deadline_s):
        raise StillThere(
            f"job {entry.job} has not ended within {deadline_s:g} s", hint="it was told to; see slicer status"
        )


def _tell_journal(entry: Lease | Ticket) -> None:
    """Tell the journal who ends the job. The job's keeper only sees that it is stopped."""
    from slicer.job import words
    from slicer.kernel.users import user_name
    from slicer.outcome import journal

    by = user_name(os.getuid())
    name = entry.name or entry.job  # more than its owner may read the journal: not the command
    had = words.held(entry) if isinstance(entry, Lease) else ""
    state = f" while it held {had}" if had else "" if isinstance(entry, Lease) else " while it waited"
    journal.event(
        "stopping", job=entry.job, name=name, unit=unit_name(entry.job),
        manager=manager_of(entry.uid), message=f"{visible(name)}: told to end by {by} (slicer stop){state}",
        fields={**journal.about(entry), "by_uid": os.getuid(), "by_user": by},
    )  # fmt: skip


def _stop_unit(lease: Lease) -> None:
    """Have systemd stop the job's scope."""
    from slicer.backend.systemd import SystemdBackend

    _continue_outer_half(lease)
    backend = SystemdBackend(lease.manager)
    try:
        backend.stop(lease.unit)
    finally:
        backend.close()


def _stop_processes(lease: Lease, ledger: Ledger) -> None:
    """Tell the job's keeper, which ends the rest. Without one, signal the processes that are there."""
    if lease.keeper and _keeper_lives(lease, ledger):
        _continue_outer_half(lease)
        _signal(lease.keeper, None, lease.uid, STOP)
    elif not lease.keeper:
        _signal(lease.pid, lease.pid_start, lease.uid, signal.SIGTERM)  # it has not begun yet
    else:
        _end_orphans(lease)


def _continue_outer_half(lease: Lease) -> None:
    """If it was stopped by Ctrl-Z, it would neither see the end nor give the lease back."""
    _signal(lease.pid, lease.pid_start, lease.uid, signal.SIGCONT)


def _end_orphans(lease: Lease) -> None:
    """End what lives on under the lease after outer half and keeper were killed. Nothing else would."""
    from slicer.backend.plain import PlainBackend

    PlainBackend(lease.uid).end(lease.job, "", DEFAULT_STOP_TIMEOUT_S)


def _keeper_lives(lease: Lease, ledger: Ledger) -> bool:
    """Whether the keeper's pid is still its own: that process has the lease's file open."""
    try:
        file = os.stat(lease.job, dir_fd=ledger.directory.leases.fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return has_open(lease.keeper, file)


def _signal(pid: int, started: int | None, uid: int, signo: int) -> None:
    """Signal a process, if it is of that start time (None: proven otherwise) and that user."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        is_it = started is None or proc.start_time(pid) == started
        if is_it and os.stat(f"/proc/{pid}").st_uid == uid:
            signal.pidfd_send_signal(fd, signo)
    except (ProcessLookupError, FileNotFoundError):
        pass
    finally:
        os.close(fd)


def _wait_until_gone(entry: Lease | Ticket, ledger: Ledger, deadline_s: float) -> bool:
    def is_alive() -> bool:
        seen = ledger.snapshot()
        entries: tuple[Lease | Ticket, ...] = (*seen.leases, *seen.tickets)
        return any(other.job == entry.job for other in entries)

    end = time.monotonic() + deadline_s
    with LedgerWatch(ledger.directory, (ledger.directory.leases, ledger.directory.tickets)) as watch:
        while is_alive():
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            if not watch.follow(ledger.orphans()):
                watch.wait(left_s)
    return True
