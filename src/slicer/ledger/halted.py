"""Jobs that hold a lease and do nothing: they are stopped (Ctrl-Z) or frozen."""

from __future__ import annotations

from slicer.kernel import cgroup, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicer.model import Lease


def halted(leases: Iterable[Lease]) -> tuple[tuple[str, str], ...]:
    """The jobs that do nothing, each with "stopped" or "frozen"."""
    found = ((lease.job, _how(lease)) for lease in leases)
    return tuple((job, how) for job, how in found if how)


def _how(lease: Lease) -> str:
    if lease.cgroup and _is_frozen(lease.cgroup):
        return "frozen"
    # The keeper's child is the command; without a keeper (--exec, a program's own lease) the holder is.
    pids = proc.children(lease.keeper) if lease.keeper else [lease.pid]
    return "stopped" if pids and all(proc.is_stopped(pid) for pid in pids) else ""


def _is_frozen(name: str) -> bool:
    try:
        return "frozen 1" in proc.read_text(f"{cgroup.path_of(name)}/cgroup.events")
    except OSError:
        return False  # it has just ended
