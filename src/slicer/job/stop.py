"""``slicer stop``: ends a job."""

from __future__ import annotations

import os
import signal
import time

from slicer.config.properties import DEFAULT_STOP_TIMEOUT_S
from slicer.errors import EX_TIMEOUT, SlicerError, StateError
from slicer.job.find import check_scope, keeper_lives
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import STOP
from slicer.ledger import control_log
from slicer.ledger.watch import LedgerWatch
from slicer.model import Lease, manager_of, unit_name
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.ledger.ledger import Ledger
    from slicer.model import Ticket

# Longer than any sensible TimeoutStopSec; as long as the systemd backend waits for a stop, in seconds.
DEADLINE_S = 120.0


class StillThere(SlicerError):
    """The job was told to end, but did not end in time (exit code 124)."""

    exit_code = EX_TIMEOUT
    kind = "still-there"


def stop(entry: Lease | Ticket, ledger: Ledger, deadline_s: float = DEADLINE_S) -> None:
    """End the job (SIGTERM, then SIGKILL after its stop timeout) and wait until its lease is released.

    A waiting job is removed from the queue: its process gets a RequestCancelled instead of a signal. Raises
    StateError, BackendError, and StillThere if the job outlives ``deadline_s`` seconds.
    """
    _tell_journal(entry)
    if not isinstance(entry, Lease):
        if _withdraw(entry, ledger):
            return
        granted = [lease for lease in ledger.snapshot().leases if lease.job == entry.job]
        if not granted:
            return
        entry = granted[0]  # it has just received its lease
    note(entry, ledger)
    if entry.backend != "systemd" or not entry.cgroup:
        _stop_processes(entry, ledger)
    elif os.path.isdir(cgroup.path_of(entry.cgroup)):  # else it has ended, and is about to release its lease
        _stop_unit(entry)
    if not _wait_until_gone(entry, ledger, deadline_s):
        raise StillThere(
            f"job {entry.job} has not ended within {deadline_s:g} s",
            hint="it was told to end; see slicer status",
        )


def _withdraw(ticket: Ticket, ledger: Ledger) -> bool:
    """Remove the request from the user's or the broker's queue; False if it is not waiting."""
    from slicer.backend import broker_socket

    if ledger.withdraw(ticket):
        return True
    path = broker_socket(os.environ)
    if not path:
        return False
    from slicer.broker.client.calls import ask
    from slicer.broker.client.connection import GoneError
    from slicer.broker.protocol.messages import Stop

    try:
        ask(path, Stop(ticket.job), DEADLINE_S)  # if the job has a scope by now, the broker stops that
    except GoneError:
        return False
    return True


def _tell_journal(entry: Lease | Ticket) -> None:
    """Tell the journal who ends the job. The job's keeper sees only the stop."""
    from slicer.job import words
    from slicer.kernel.users import user_name
    from slicer.outcome import journal

    by = user_name(os.getuid())
    name = entry.name or entry.job  # others than the owner may read the journal, so not the command
    had = words.held(entry) if isinstance(entry, Lease) else ""
    state = f" while it held {had}" if had else "" if isinstance(entry, Lease) else " while it waited"
    journal.event(
        "stopping", job=entry.job, name=name, unit=unit_name(entry.job),
        manager=entry.manager if isinstance(entry, Lease) else manager_of(entry.uid),
        message=f"{visible(name)}: told to end by {by} (slicer stop){state}",
        fields={**journal.about(entry), "by_uid": os.getuid(), "by_user": by},
    )  # fmt: skip


def note(lease: Lease, ledger: Ledger, kind: control_log.Kind = "stop") -> None:
    """Record what ends it: "cap", "idle", … If that fails, the job still ends."""
    try:
        control_log.note(ledger, lease.job, kind)
    except StateError:
        pass


def _stop_unit(lease: Lease) -> None:
    from slicer.broker.client.control import control_of

    with control_of(lease.manager) as control:
        found = control.cgroup_of(lease.unit)
        if found is not None:
            check_scope(lease, found)
            _continue_supervisor(lease)
            control.stop(lease.unit)


def _stop_processes(lease: Lease, ledger: Ledger) -> None:
    """Notify the job's keeper, which ends the rest. Without a keeper, signal the existing processes."""
    if lease.backend == "inner":  # its owner has given it back, and is not to be ended
        from slicer.kernel.open_files import with_open

        for pid in with_open(ledger.directory.leases.lstat(lease.job)):
            signal_process(pid, None, lease.uid, signal.SIGTERM)
    elif keeper_lives(lease, ledger):
        _continue_supervisor(lease)
        signal_process(lease.keeper, None, lease.uid, STOP)
    elif not lease.keeper:
        signal_process(lease.pid, lease.pid_start, lease.uid, signal.SIGTERM)  # it has not begun yet
    else:
        # Supervisor and keeper were killed: nothing else would end the remaining processes.
        from slicer.backend.plain import PlainBackend

        PlainBackend(lease.uid).end(lease.job, "", DEFAULT_STOP_TIMEOUT_S)


def _continue_supervisor(lease: Lease) -> None:
    """A supervisor stopped by Ctrl-Z would neither notice the end nor release the lease."""
    signal_process(lease.pid, lease.pid_start, lease.uid, signal.SIGCONT)


def signal_process(pid: int, started: int | None, uid: int, signo: int) -> None:
    """Signal a process, if it has that start time (None: verified otherwise) and that user."""
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


def _wait_until_gone(lease: Lease, ledger: Ledger, deadline_s: float) -> bool:
    def is_alive() -> bool:
        return any(other.job == lease.job for other in ledger.snapshot().leases)

    end = time.monotonic() + deadline_s
    with LedgerWatch(ledger.directory) as watch:
        while is_alive():
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            if not watch.follow(ledger.orphans()):
                watch.wait(left_s)
    return True
