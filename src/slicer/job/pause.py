"""``slicer pause`` and ``slicer resume``: halts a job and continues it. The job keeps its lease.

Each act is recorded before it is done (:mod:`slicer.ledger.control_log`), so that others know who paused the
job, and for how long.
"""

from __future__ import annotations

import os
import time

from slicer import faults
from slicer.errors import BackendError, SlicerError, StateError
from slicer.job.find import directory_of, members, scope_control
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import signal
from slicer.kernel.users import user_name
from slicer.ledger import control_log
from slicer.ledger.halted import halt_of
from slicer.model import Lease, manager_of, unit_name
from slicer.outcome import journal
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.ledger.halted import Halted
    from slicer.ledger.ledger import Ledger
    from slicer.model import Ticket

_STOPPING_S = 2.0  # how long processes may take to stop, and to stop forking
_LOOK_S = 0.005


class CannotPause(BackendError):
    """The job cannot be paused as a whole, so it was not paused."""


def pause(lease: Lease, ledger: Ledger) -> Halted | None:
    """Halt a job. Returns its earlier halt, or None. Raises StateError, BackendError; then it still runs."""
    before = halt_of(lease, ledger.directory)
    if before is not None and before.how != "stopped":
        return before
    if before is not None and not lease.cgroup:
        return before  # SIGSTOP has nothing to add
    control_log.note(ledger, lease.job, "pause")
    faults.point("pause-noted")
    try:
        if lease.cgroup:
            with scope_control(lease) as control:
                control.freeze(lease.unit)
        else:
            _stop_all(lease, ledger)
    except BaseException:
        control_log.note(ledger, lease.job, "resumed")
        raise
    faults.point("pause-frozen")
    control_log.note(ledger, lease.job, "paused")
    tell(lease, "paused", "paused", "slicer pause")
    return None


def resume(lease: Lease, ledger: Ledger) -> Halted | None:
    """Continue a job, whoever halted it. Returns the ended halt, or None. Raises StateError, BackendError."""
    before = halt_of(lease, ledger.directory)
    if before is None:
        return None
    control_log.note(ledger, lease.job, "resume")
    faults.point("resume-noted")
    if lease.cgroup:
        thaw(lease)
    if before.how == "stopped" or not lease.cgroup:
        _continue_all(lease, ledger)
    faults.point("resume-thawed")
    control_log.note(ledger, lease.job, "resumed")
    tell(lease, "resumed", "resumed", "slicer resume")
    return before


def is_frozen(lease: Lease) -> bool:
    return bool(lease.cgroup) and cgroup.is_frozen(directory_of(lease))


def tell(
    entry: Lease | Ticket, kind: journal.Kind, text: str, command: str = "", more: str = "", **fields: str
) -> None:
    """Tell the journal who changed the job, and how: others, or slicer's ``command``; ``more`` follows."""
    said: dict[str, str | int] = {"by": "outside"}
    if command:
        said = {"by": "slicer", "by_uid": os.getuid(), "by_user": user_name(os.getuid())}
        text += f" by {said['by_user']} ({command}){more}"
    name = entry.name or entry.job  # others than the owner may read the journal, so not the command
    journal.event(
        kind, job=entry.job, name=name, unit=unit_name(entry.job),
        manager=entry.manager if isinstance(entry, Lease) else manager_of(entry.uid),
        message=f"{visible(name)}: {text}", fields={**journal.about(entry), **said, **fields},
    )  # fmt: skip


# -- in a scope ---------------------------------------------------------------------------------------------


def thaw(lease: Lease) -> None:
    """Thaw the job's scope, unless a unit around it is frozen. Raises SlicerError."""
    with scope_control(lease) as control:
        control.thaw(lease.unit, directory_of(lease))
    if cgroup.is_frozen(directory_of(lease)):
        raise SlicerError(
            f"job {lease.job} is still frozen, by a unit around its scope",
            where=lease.unit, hint=f"systemctl thaw {os.path.basename(os.path.dirname(lease.cgroup))}?",
        )  # fmt: skip


def thaw_to_end(lease: Lease, ledger: Ledger) -> bool:
    """Thaw a job that must end and cannot react while frozen; whether it was frozen. Raises SlicerError."""
    # A frozen cgroup thaws for the instant in which a process in it ends, perhaps by the same Ctrl-C.
    if not is_frozen(lease) and not (lease.cgroup and cgroup.is_to_freeze(directory_of(lease))):
        return False
    try:
        if ledger.directory.leases.has(lease.job):  # without waiting for the ledger's lock
            control_log.add(ledger.directory, lease.job, "resume")
    except StateError:
        pass  # then the control log shows somebody else's thaw
    try:
        thaw(lease)
    except SlicerError as error:
        if is_frozen(lease):
            message = f"job {lease.job} is frozen, and cannot react to the request to end: {error}"
            raise SlicerError(message) from error
    return True


# -- without a scope ----------------------------------------------------------------------------------------


def _stop_all(lease: Lease, ledger: Ledger) -> None:
    """Send SIGSTOP to all processes of the job except slicer's own, until none runs any more."""
    end = time.monotonic() + _STOPPING_S
    stopped: set[int] = set()
    while running := [pid for pid in members(lease, ledger) if not proc.is_stopped(pid)]:
        others = [pid for pid in running if not proc.send(pid, signal.SIGSTOP)]
        for pid in stopped.intersection(running):
            # In vfork(2) it sleeps until its child executes a program, and we may have stopped that child.
            for child in proc.children(pid):
                proc.send(child, signal.SIGCONT)
        stopped.update(running)
        if others or time.monotonic() > end:
            for pid in stopped:
                proc.send(pid, signal.SIGCONT)
            why = f"pid {others[0]} is another user's" if others else "it keeps creating new ones"
            raise CannotPause(f"not all processes of job {lease.job} can be stopped: {why}")
        time.sleep(_LOOK_S)
    if not stopped and not members(lease, ledger):  # else somebody has stopped them just now
        raise CannotPause(f"job {lease.job} has no process that could be stopped", hint="see slicer status")


def _continue_all(lease: Lease, ledger: Ledger) -> None:
    """Send SIGCONT to all processes of the job, and to the supervisor, which Ctrl-Z stops with them."""
    inside = cgroup.processes(directory_of(lease)) if lease.cgroup else members(lease, ledger)
    for pid in inside:
        proc.send(pid, signal.SIGCONT)
    if proc.is_running(lease.pid, lease.pid_start):
        proc.send(lease.pid, signal.SIGCONT)
