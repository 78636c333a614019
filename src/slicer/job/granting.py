"""Gets a job's lease from the broker of this machine or from the user's own ledger.

In all functions, ``broker`` is the broker's socket; "": there is none, and the ledger decides.
"""

from __future__ import annotations

import os

from slicer.job.job import Job
from slicer.job.plan import Plan, gives_way, job_of, may_be_fenced, needs_of, spec_of
from slicer.kernel import proc
from slicer.ledger import leasing
from slicer.ledger.leasing import Requester
from slicer.model import slice_around
from slicer.record import replace
from slicer.text import command_text, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.backend import Backend
    from slicer.broker.client.connection import Connection
    from slicer.broker.protocol.messages import Binding
    from slicer.gpu.observer import GpuObserver
    from slicer.job.job import Containers
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.leasing import Hooks, Needs, PreparedRequest
    from slicer.ledger.ledger import Ledger
    from slicer.model import Busy, ScopeSpec

_COMMAND_CHARS = 160  # of a line's command, for display


def told_of_ancestors(busy: Busy, job_pid: int) -> str:
    """The warning that what a job waits for is held by a program that started it; "" if that is not so.

    That program may wait for the job, which would then wait for ever. It may as well go on, so the job waits.
    """
    above = proc.ancestors(job_pid)
    held = next((each for each in busy.holders if each.pid in above and each.uid == os.geteuid()), None)
    if held is None or not proc.is_running(held.pid, held.pid_start):
        return ""
    return (
        f"the program that started this job holds it (pid {held.pid}); if that waits for this job, neither"
        " goes on: os.environ.update(lease.env) there lets its jobs use its lease"
    )


def prepare(broker: str, requester: Requester, needs: Needs, observer: GpuObserver) -> PreparedRequest:
    if broker:
        return leasing.drafted(requester, needs, observer)  # the broker queries the GPUs itself
    return leasing.prepare(requester, needs, observer)


def request_of(
    job_id: str, plan: Plan, backend: Backend, spec: ScopeSpec, observer: GpuObserver
) -> PreparedRequest:
    """The request for the lease. Raises UsageError, NoGpu, GpuError."""
    profile, invocation = plan.profile, plan.invocation
    shown = command_text(invocation.command)
    if invocation.queue:  # what the line says, without the shell
        shown = one_line(invocation.command[-1], _COMMAND_CHARS)
    limits: tuple[float | None, ...] = ()
    if profile.idle_timeout_s is not None:
        from slicer.gpu.idle import idle_limits

        limits = idle_limits(profile.idle_timeout_s, profile.on_idle)
    requester = Requester(
        job_id, invocation.name, shown, backend.name, backend.manager,
        "" if backend.name == "plain" else spec.whole, plan.outer.leases, profile.name, *limits,
        **(_way_of(plan) if gives_way(plan) else {}),
    )  # fmt: skip
    return prepare(plan.broker, requester, needs_of(plan), observer)


def _way_of(plan: Plan) -> dict[str, float | None]:
    """What the lease of a job that gives way says of that."""
    from slicer.job.stop_rule import rule_of
    from slicer.placement.giving_way import least_run_s

    least_s = plan.profile.min_run_s
    if least_s is not None:
        least_s = least_run_s(least_s, plan.invocation.gave_way)
    return {"min_run_s": least_s, "stop_s": rule_of(plan.profile).total_s}


def prepare_job(
    job_id: str, plan: Plan, backend: Backend, observer: GpuObserver, docker: Containers | None = None
) -> tuple[Job, PreparedRequest]:
    """The plan's job, and its request for the lease. ``docker``: what its command starts through dockerd.

    Raises as :func:`request_of`; RefusedError if a required fence is impossible.
    """
    spec = spec_of(job_id, plan, backend)
    if docker is not None:
        spec = replace(spec, within=slice_around(spec.slice, job_id))
    wanted = request_of(job_id, plan, backend, spec, observer)
    job = replace(job_of(job_id, plan, spec, backend), docker=docker)
    if not may_be_fenced(plan):
        return job, wanted
    from slicer.job import fencing

    return fencing.with_fence(job, plan, backend, observer), wanted


def obtain(
    broker: str, prepared: PreparedRequest, ledger: Ledger, hooks: Hooks, binding: Binding,
    take_connection: Callable[[Connection], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> HeldLease:  # fmt: skip
    """Get the lease; wait for it if ``needs.wait``. Raises as both functions ``queue_up``.

    ``binding`` and the later parameters are for the broker: :func:`slicer.broker.client.asking.queue_up`.
    """
    if not broker:
        return leasing.awaited(leasing.queue_up(prepared, ledger), prepared, ledger, hooks)
    from slicer.broker.client import asking

    found = asking.queue_up(broker, prepared, ledger, binding, take_connection, meanwhile)
    return leasing.awaited(found, prepared, ledger, hooks)


def preview(broker: str, prepared: PreparedRequest, ledger: Ledger | None) -> tuple[str, ...] | Busy:
    """Preview the request. Raises as :func:`slicer.ledger.leasing.preview`, and BrokerError."""
    if not broker:
        return leasing.preview(prepared, ledger)
    from slicer.broker.client import asking

    return asking.preview(broker, prepared)
