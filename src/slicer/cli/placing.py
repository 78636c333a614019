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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.detach.service import Place
    from slicer.doctor.facts.host import SessionFacts


def start(
    hand_over: starting.HandOver, job: str, described: str, broker: str, mask: frozenset[int]
) -> tuple[Place, str]:
    """Start the process to hand over to; where it is, and what would end it early ("": nothing).

    ``broker``: its socket; "": there is none. Raises BackendError, StateError.
    """
    uid = os.geteuid()
    session = gather_session(uid)
    has_systemd = backends.has_systemd()
    is_kept = service.is_session(cgroup.of(os.getpid())) and not session.kills_processes
    backend = SystemdBackend(manager_of(uid))
    try:
        place = service.place_of(
            uid, has_systemd=has_systemd, reaches_manager=has_systemd and reaches(backend),
            lingers=session.lingers, stays=bool(broker or os.environ.get(LEASE_VARIABLE)) or is_kept,
        )  # fmt: skip
        if place == "process":
            return place, start_process(hand_over, job, described, broker, mask, session)[1]
        command, told = starting.taker(), service.job_properties(hand_over.given.fileno())
        backend.converse(start_service(service.job_unit(job), described, command, told, backend.manager))
    finally:
        backend.close()
    hand_over.introduced()
    return place, ends_early(place, session)


def start_process(
    hand_over: starting.HandOver, job: str, described: str, broker: str, mask: frozenset[int],
    session: SessionFacts,
) -> tuple[int, str]:  # fmt: skip
    """Start it as a plain process, in a scope of the broker's if there is one: its pid, and what ends it.

    Raises StateError.
    """
    starting.start_process(starting.taker(), mask, hand_over.given.fileno())
    pid = hand_over.introduced()
    if broker and not os.environ.get(LEASE_VARIABLE) and _leaves(broker, job, described, pid):
        return pid, ""
    return pid, ends_early("process", session)


def ends_early(place: Place, session: SessionFacts) -> str:
    """What would end it early, in that place; "": nothing."""
    return service.ends_early(
        user_name(os.geteuid()), place, cgroup.of(os.getpid()) if backends.has_systemd() else "",
        lingers=session.lingers, is_inside=bool(os.environ.get(LEASE_VARIABLE)),
        kills_processes=session.kills_processes,
    )  # fmt: skip


def _leaves(broker: str, job: str, described: str, pid: int) -> bool:
    """Whether the broker has put the process into a scope of its own. If not, says why."""
    from slicer.broker.client import calls

    try:
        calls.detach(broker, job, described, pid)
    except SlicerError as error:
        say.line(f"the broker gives it no scope of its own: {error}")
        return False
    return True


def reaches(backend: SystemdBackend) -> bool:
    """Whether the manager can be reached."""
    try:
        backend.connect()
    except BackendError:
        return False
    return True
