"""A keeper that was killed: what is left of its job is ended, and reported as far as it is known."""

from __future__ import annotations

import os
import time

from slicer.errors import SlicerError
from slicer.kernel.signals import signal
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.backend import Backend
    from slicer.job.job import Job, Started
    from slicer.job.report import Report
    from slicer.ledger.held_lease import HeldLease
    from slicer.model import EndedBy, Usage

    Reported = tuple[Report, Usage]


def kills_in_slice(cgroup_name: str) -> int | None:
    """How often the kernel killed for memory in the scope's slice; None: nobody knows."""
    from slicer.kernel import cgroup

    return cgroup.oom_kills(os.path.dirname(cgroup.path_of(cgroup_name)))


def report_without(
    job: Job, backend: Backend, held: HeldLease, started: Started, last: Reported | None,
    kills_before: int | None, warn: Callable[[str], None],
) -> Reported:  # fmt: skip
    """End what is left of the job, and report what is known of it.

    ``last``: what its keeper reported last; ``kills_before``: what :func:`kills_in_slice` said
    at the start; None: it was not asked.
    """
    from slicer.job.report import Report, killed_reason
    from slicer.job.scope import stop_timeout_s

    usage = last[1] if last is not None else _usage(started.cgroup)
    if usage.oom_kills is None and kills_before is not None:
        kills = (kills_in_slice(started.cgroup) or 0) - kills_before
        usage = replace(usage, oom_kills=kills) if kills > 0 else usage
    left = len(backend.living(job.id, started.cgroup))
    # systemd may not have seen that the scope became empty, and nothing else would end it then.
    is_unseen = not left and backend.name == "systemd" and not job.broker
    if is_unseen or (left and not job.profile.linger):
        try:
            backend.end(job.id, job.spec.unit, stop_timeout_s(job.profile))
        except SlicerError as error:
            warn(str(error))
    # A process with a clean environment is not seen among the living, but holds the lease.
    held.is_outlived = bool(backend.living(job.id, started.cgroup)) or held.is_shared()
    wall_s = time.monotonic() - started.began
    if last is not None:
        return Report(1, last[0].reason, signal.SIGKILL, 0, wall_s, left, last[0].ended_by), usage
    reason = killed_reason(usage.oom_kills, wall_s, job.profile.timeout_s)
    ended_by: EndedBy = "outside" if reason == "signal" else ""
    return Report(1, reason, signal.SIGKILL, 0, wall_s, left, ended_by), usage


def _usage(cgroup_name: str) -> Usage:
    from slicer.kernel import cgroup
    from slicer.model import Usage

    return cgroup.usage(cgroup.path_of(cgroup_name)) if cgroup_name else Usage()
