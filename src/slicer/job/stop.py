"""``slicer stop``: ends jobs, each in two steps: it is told, and its end is awaited."""

from __future__ import annotations

import os
import signal
import time

from slicer.backend import broker_socket
from slicer.backend.plain import PlainBackend
from slicer.config.properties import DEFAULT_STOP_TIMEOUT_S
from slicer.errors import EX_TIMEOUT, GoneError, SlicerError, StateError, UsageError
from slicer.job import words
from slicer.job.find import check_scope, keeper_lives
from slicer.job.pause import tell, thaw_to_end
from slicer.kernel import cgroup, proc
from slicer.kernel.open_files import with_open
from slicer.kernel.signals import STOP, send_stop
from slicer.ledger import control_log
from slicer.ledger.watch import LedgerWatch
from slicer.model import Lease, is_in_job
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.ledger.ledger import Ledger
    from slicer.model import Ticket

# Longer than any sensible TimeoutStopSec; as long as the systemd backend waits for a stop, in seconds.
DEADLINE_S = 120.0

_AFTER_GRACE_S = 15.0  # for the other processes, until SIGKILL and the end


@record
class Manner:
    """What ``slicer stop`` wants in place of the profile's: the signal for the command (0) and its grace."""

    signo: int = 0
    grace_s: int | None = None


PROFILES = Manner()


class StillThere(SlicerError):
    """The job was told to end, but did not end in time (exit code 124)."""

    exit_code = EX_TIMEOUT
    kind = "still-there"


def withdraw(ticket: Ticket, ledger: Ledger) -> Lease | None:
    """Take a request out of the queue, so that its job never begins. Its process gets a RequestCancelled.

    Returns the lease that it has just got instead, if so; None: it is out of the queue. Raises StateError,
    BrokerError.
    """
    _tell_journal(ticket)
    if _is_withdrawn(ticket, ledger):
        return None
    granted = [lease for lease in ledger.snapshot().leases if lease.job == ticket.job]
    return granted[0] if granted else None


def tell_to_end(lease: Lease, ledger: Ledger, manner: Manner = PROFILES) -> None:
    """Have the job's processes asked to end (:mod:`slicer.job.stop_rule`), and do not wait.

    Raises StateError, BackendError, UsageError.
    """
    _tell_journal(lease)
    note(lease, ledger)
    has_scope = lease.backend == "systemd" and bool(lease.cgroup)
    if has_scope and not os.path.isdir(cgroup.path_of(lease.cgroup)):
        return  # it has ended, and is about to release its lease
    if manner != PROFILES:
        _tell_keeper(lease, ledger, manner)
    elif has_scope:
        _stop_unit(lease, ledger)
    else:
        _stop_processes(lease, ledger)


def await_end(lease: Lease, ledger: Ledger, manner: Manner = PROFILES) -> None:
    """Wait until the lease is released. Raises StillThere if it takes too long, StateError, BackendError."""
    if manner.grace_s is not None and _is_gone_within(lease, ledger, manner.grace_s + _AFTER_GRACE_S):
        return
    if manner.grace_s is not None:
        tell_to_end(lease, ledger)  # its keeper was killed meanwhile, or it has processes of other users
    if not _is_gone_within(lease, ledger, DEADLINE_S):
        raise StillThere(
            f"job {lease.job} has not ended within {DEADLINE_S:g} s",
            hint="it was told to end; see slicer status",
        )


def _is_withdrawn(ticket: Ticket, ledger: Ledger) -> bool:
    """Remove the request from the user's or the broker's queue; False if it is not waiting."""
    if ledger.withdraw(ticket):
        return True
    path = broker_socket(os.environ)
    if not path:
        return False
    from slicer.broker.client.calls import ask
    from slicer.broker.protocol.messages import Stop

    try:
        ask(path, Stop(ticket.job), DEADLINE_S)  # if the job has a scope by now, the broker stops that
    except GoneError:
        return False
    return True


def _tell_journal(entry: Lease | Ticket) -> None:
    """Tell the journal who ends the job. The job's keeper sees only the stop."""
    had = words.held(entry) if isinstance(entry, Lease) else ""
    state = f" while it held {had}" if had else "" if isinstance(entry, Lease) else " while it waited"
    tell(entry, "stopping", "told to end", "slicer stop", state)


def note(lease: Lease, ledger: Ledger, kind: control_log.Kind = "stop") -> None:
    """Record what ends it: "cap", "idle", … If that fails, the job still ends."""
    try:
        control_log.note(ledger, lease.job, kind)
    except StateError:
        pass


def _stop_unit(lease: Lease, ledger: Ledger) -> None:
    from slicer.broker.client.control import control_of

    with control_of(lease.manager) as control:
        found = control.cgroup_of(lease.unit)
        if found is None:
            return
        check_scope(lease, found)
        _continue_supervisor(lease)
        thaw_to_end(lease, ledger)
        if lease.keeper and not is_in_job(cgroup.of(lease.keeper), lease):
            cgroup.signal_all(lease.cgroup, signal.SIGTERM)  # systemd tells only the keeper, which was killed
        control.request_end(lease.job, lease.unit)


def _tell_keeper(lease: Lease, ledger: Ledger, manner: Manner) -> None:
    is_there = is_in_job(cgroup.of(lease.keeper), lease) if lease.cgroup else keeper_lives(lease, ledger)
    if not lease.keeper or not is_there:
        raise UsageError(
            f"{lease.name or lease.job} has no keeper that could do that", where="--signal and --grace",
            hint="it runs with --exec, or its keeper was killed: slicer stop without them ends it",
        )  # fmt: skip
    _continue_supervisor(lease)
    thaw_to_end(lease, ledger)
    signal_process(lease.keeper, None, lease.uid, STOP, manner)


def _stop_processes(lease: Lease, ledger: Ledger) -> None:
    """Notify the job's keeper, which ends the rest. Without a keeper, signal the existing processes."""
    if lease.backend == "inner":  # its owner has given it back, and is not to be ended
        for pid in with_open(ledger.directory.leases.lstat(lease.job)):
            signal_process(pid, None, lease.uid, signal.SIGTERM)
    elif keeper_lives(lease, ledger):
        _continue_supervisor(lease)
        signal_process(lease.keeper, None, lease.uid, STOP)
    elif not lease.keeper:
        signal_process(lease.pid, lease.pid_start, lease.uid, signal.SIGTERM)  # it has not begun yet
    else:
        # Supervisor and keeper were killed: nothing else would end the remaining processes.
        PlainBackend(lease.uid).end(lease.job, "", DEFAULT_STOP_TIMEOUT_S)


def _continue_supervisor(lease: Lease) -> None:
    """A supervisor stopped by Ctrl-Z would neither notice the end nor release the lease."""
    signal_process(lease.pid, lease.pid_start, lease.uid, signal.SIGCONT)


def signal_process(pid: int, started: int | None, uid: int, signo: int, manner: Manner = PROFILES) -> None:
    """Signal a process, if it has that start time (None: verified otherwise) and that user.

    With STOP, its keeper learns ``manner``.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        is_it = started is None or proc.start_time(pid) == started
        if is_it and os.stat(f"/proc/{pid}").st_uid == uid:
            if signo == STOP:
                send_stop(pidfd, manner.signo, manner.grace_s)
            else:
                signal.pidfd_send_signal(pidfd, signo)
    except (ProcessLookupError, FileNotFoundError):
        pass
    finally:
        os.close(pidfd)


def _is_gone_within(lease: Lease, ledger: Ledger, deadline_s: float) -> bool:
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
