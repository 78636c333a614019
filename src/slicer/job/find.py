"""Finds the job that a word on the command line names, and verifies its lease."""

from __future__ import annotations

import os

from slicer.config.property_names import nearest
from slicer.errors import SlicerError, StateError, UsageError
from slicer.kernel import cgroup, proc
from slicer.kernel.open_files import has_open
from slicer.model import Lease, job_of_unit, manager_of
from slicer.state.statefile import is_unit_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol, TypeVar

    from slicer.backend.systemd import SystemdBackend
    from slicer.ledger.ledger import Ledger

    class NamedJob(Protocol):
        """Anything with the names by which a job is found."""

        @property
        def job(self) -> str: ...
        @property
        def uid(self) -> int: ...
        @property
        def name(self) -> str: ...
        @property
        def pid(self) -> int: ...
        @property
        def command(self) -> str: ...

    _Named = TypeVar("_Named", bound=NamedJob)

SHORTEST_PREFIX = 4  # of a job's id; a shorter one is treated as a typo


class UnknownJob(UsageError):
    kind = "unknown-job"


class AmbiguousJob(UsageError):
    kind = "ambiguous-job"


class NotYours(UsageError):
    """The job is another user's."""

    kind = "not-yours"


class NotRunning(UsageError):
    """The job waits, so it has no processes to act on."""

    kind = "not-running"


def pick(word: str, entries: Sequence[_Named]) -> _Named:
    """The job with that id, unit, name or beginning of an id. Raises UnknownJob, AmbiguousJob."""
    found = meant(word, entries)
    if found:
        return only(word, found)
    raise UnknownJob(f"no such job: {word!r}", hint=_known(word, entries))


def only(word: str, found: Sequence[_Named]) -> _Named:
    """The only job of these. Raises AmbiguousJob."""
    if len(found) == 1:
        return found[0]
    candidates = ", ".join(f"{entry.job} (pid {entry.pid}, {entry.command})" for entry in found)
    raise AmbiguousJob(f"{word!r} could be {len(found)} jobs: {candidates}", hint="give the id")


def meant(word: str, entries: Sequence[_Named]) -> list[_Named]:
    """The jobs that the word could mean: by id or unit only one, else by name and by the id's beginning."""
    id_of_unit = job_of_unit(word)
    for entry in entries:
        if entry.job in (word, id_of_unit):
            return [entry]
    is_prefix = len(word) >= SHORTEST_PREFIX
    return [
        entry for entry in entries
        if (entry.name and entry.name == word) or (is_prefix and entry.job.startswith(word))
    ]  # fmt: skip


def _known(word: str, entries: Sequence[_Named]) -> str:
    if not entries:
        return "no job runs or waits"
    close = nearest(word, [name for entry in entries for name in (entry.name, entry.job) if name])
    return f"did you mean {close!r}?" if close else "see slicer status"


# -- verification -------------------------------------------------------------------------------------------


def check_scope(lease: Lease, unit_cgroup: str | None) -> None:
    """Make sure that the lease's scope is the job's own. ``unit_cgroup``: the unit's cgroup, from systemd.

    A lease is a file, so slicer acts on the scope that it names only if the user, the unit and the cgroup
    match. Raises StateError.
    """
    is_ours = _may_act_on(lease, os.geteuid()) and is_unit_of(lease.unit, lease.job)
    if is_ours and unit_cgroup is not None and unit_cgroup == lease.cgroup:
        return
    if is_ours and unit_cgroup is None:
        raise SlicerError(f"job {lease.job} has just ended")
    raise StateError(
        f"the lease of {lease.job} does not match its scope: nothing was done",
        where=lease.unit, hint=f"it names {lease.cgroup or 'no cgroup'}, systemd {unit_cgroup or 'none'}",
    )  # fmt: skip


def scope_control(lease: Lease) -> SystemdBackend:
    """systemd's control of the job's own scope, for a ``with``. Raises BackendError, StateError."""
    from slicer.broker.client.control import control_of

    control = control_of(lease.manager)
    try:
        check_scope(lease, control.cgroup_of(lease.unit))
    except BaseException:
        control.close()
        raise
    return control


def _may_act_on(lease: Lease, uid: int) -> bool:
    """Whether the user may act on the job. Brokered jobs, and others' for root, are in the system manager."""
    if lease.uid != uid:
        return uid == 0 and lease.manager == "system"
    return lease.manager in (manager_of(uid), "system")


def keeper_lives(lease: Lease, ledger: Ledger) -> bool:
    """Whether the keeper's pid still belongs to it: that process has the lease's file open."""
    try:
        file = os.stat(lease.job, dir_fd=ledger.directory.leases.fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return bool(lease.keeper) and has_open(lease.keeper, file)


def directory_of(lease: Lease) -> str:
    return cgroup.path_of(lease.cgroup)


def members(lease: Lease, ledger: Ledger) -> list[int]:
    """A scopeless job's processes, except slicer's own: found by descent, or by their environment."""
    if keeper_lives(lease, ledger):
        return [pid for pid in proc.descendants(lease.keeper) if pid != os.getpid()]
    if lease.keeper:
        return [pid for pid in proc.in_lease(lease.job) if pid != os.getpid() and _is_ours(pid)]
    return []


def _is_ours(pid: int) -> bool:
    # Users may put anything into the environment of their own processes.
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except FileNotFoundError:
        return False
