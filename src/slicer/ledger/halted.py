"""Jobs with a lease that do nothing: paused (slicer pause), frozen, stopped (Ctrl-Z), or not begun."""

from __future__ import annotations

from slicer.errors import StateError
from slicer.kernel import cgroup, proc
from slicer.ledger import control_log
from slicer.ledger.files import BEGUN
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from slicer.model import Lease
    from slicer.state.statedir import StateDir

    How = Literal["paused", "frozen", "stopped"]


@record
class Halted:
    """A job that does nothing."""

    job: str
    how: How  # by slicer pause; by others through the cgroup (systemctl freeze); by Ctrl-Z or SIGSTOP
    since_s: float | None  # on the ledger's clock; None: unknown


def halted(leases: Iterable[Lease], directory: StateDir | None) -> tuple[Halted, ...]:
    """The jobs that do nothing. ``directory`` is the ledger's."""
    found = (halt_of(lease, directory) for lease in leases)
    return tuple(each for each in found if each is not None)


def halt_of(lease: Lease, directory: StateDir | None) -> Halted | None:
    """How the job stands still; None: it does not."""
    is_frozen = bool(lease.cgroup) and cgroup.is_frozen(cgroup.path_of(lease.cgroup))
    if not is_frozen and not _is_stopped(lease):
        return None
    pause = _noted(lease, directory)
    if is_frozen:
        how: How = "paused" if pause and pause.by_slicer else "frozen"
    else:
        how = "paused" if pause and pause.by_slicer and not lease.cgroup else "stopped"
    known = pause is not None and how != "stopped"
    return Halted(lease.job, how, pause.since_s if pause is not None and known else None)


def _noted(lease: Lease, directory: StateDir | None) -> control_log.Pause | None:
    if directory is None:
        return None
    try:
        return control_log.open_pause(control_log.read(directory, lease.job))
    except StateError:
        return None  # the cgroup's state counts for more


def _is_stopped(lease: Lease) -> bool:
    # The keeper's child is the command; without a keeper (--exec, a program's own lease) the holder is.
    pids = proc.children(lease.keeper) if lease.keeper else [lease.pid]
    return bool(pids) and all(proc.is_stopped(pid) for pid in pids)


def is_attended(lease: Lease) -> bool:
    """Whether its supervisor could act for it: it is neither dead nor stopped."""
    return proc.is_running(lease.pid, lease.pid_start) and not proc.is_stopped(lease.pid, lease.pid_start)


def awaits_turn(lease: Lease, directory: StateDir | None) -> bool:
    """Whether the scope is running and the command has not begun: its queue runs other jobs first.

    Only jobs that hold nothing wait like this, so they are in nobody's way.
    """
    if lease.gpus or lease.slots or not lease.keeper or directory is None:
        return False
    try:
        has_begun = directory.leases.lstat(lease.job).st_mode & BEGUN
    except OSError:  # it has ended
        return False
    return not has_begun and proc.start_time(lease.keeper) is not None
