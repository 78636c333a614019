"""Starts the process of a detached job or queue where it outlives its caller."""

from __future__ import annotations

import os

from slicer import backend as backends
from slicer.backend.manager_calls import start_service
from slicer.backend.systemd import SystemdBackend
from slicer.cli import say
from slicer.detach import service, starting
from slicer.doctor.facts.host import gather_session
from slicer.errors import BackendError, SlicerError
from slicer.kernel import cgroup
from slicer.kernel.users import user_name
from slicer.model import LEASE_VARIABLE, manager_of
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.detach.service import ServiceProperty


@record
class Placed:
    """Where it was started."""

    unit: str  # its service; "" for a plain process
    pid: int  # of a plain process; 0 for a service
    ends: str  # what would end it early; "": nothing


def start(
    hand_over: starting.HandOver, job: str, described: str, broker: str, mask: frozenset[int], *,
    unit: str, settings: tuple[ServiceProperty, ...], path: str = "",
) -> Placed:  # fmt: skip
    """Start the process to hand over to, in a scope of the broker's if there is one and it is no service.

    ``broker``: its socket; "": there is none. ``path``: the file from which a service starts a queue, which
    it also does after a crash or a boot. Raises BackendError, UnitExists, StateError.
    """
    uid, is_inside = os.geteuid(), bool(os.environ.get(LEASE_VARIABLE))
    session, has_systemd = gather_session(uid), backends.has_systemd()
    own = cgroup.of(os.getpid()) if has_systemd else ""
    is_kept = is_inside or (service.is_session(own) and not session.kills_processes)
    backend = SystemdBackend(manager_of(uid))
    try:
        place = service.place_of(
            uid, has_systemd=has_systemd, reaches_manager=has_systemd and _reaches(backend),
            lingers=session.lingers, stays=bool(broker) or (is_kept and not path),
        )  # fmt: skip
        if place != "process":
            command = starting.taker(path)
            backend.converse(start_service(unit, described, command, settings, backend.manager))
    finally:
        backend.close()
    pid = 0
    if place == "process":
        starting.start_process(mask, hand_over.given.fileno())
        pid = hand_over.introduced()
        if broker and not is_inside and _leaves(broker, job, described, pid):
            return Placed("", pid, "")
    elif not path:
        hand_over.introduced()
    ends = service.ends_early(
        user_name(uid), place, own, lingers=session.lingers, is_inside=is_inside,
        kills_processes=session.kills_processes,
    )  # fmt: skip
    return Placed("" if pid else unit, pid, ends)


def _leaves(broker: str, job: str, described: str, pid: int) -> bool:
    """Whether the broker has put the process into a scope of its own. If not, says why."""
    from slicer.broker.client import calls

    try:
        calls.detach(broker, job, described, pid)
    except SlicerError as error:
        say.line(f"the broker gives it no scope of its own: {error}")
        return False
    return True


def _reaches(backend: SystemdBackend) -> bool:
    """Whether the manager can be reached."""
    try:
        backend.connect()
    except BackendError:
        return False
    return True
