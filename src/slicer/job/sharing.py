"""A job that shares its GPUs (``--share``): what is made before its command starts, and read at its end.

Imported only for such a job, and for one that would be such.
"""

from __future__ import annotations

import os

from slicer.backend import has_systemd
from slicer.errors import RefusedError, SlicerError, StateError
from slicer.job import driver_cap
from slicer.share import environment, job_file
from slicer.share.order import ShareOrder, wanted
from slicer.share.planning import order_of as planned
from slicer.share.planning import refusal
from slicer.share.summary import sharing_of
from slicer.state import statedir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.job.job import Job
    from slicer.job.plan import Plan
    from slicer.ledger.held_lease import HeldLease
    from slicer.model import Sharing
    from slicer.share.job_file import JobFile


def order_of(plan: Plan, directory: str = "") -> ShareOrder | None:
    """How the job of a plan shares its GPUs; None: it does not.

    ``directory``: the path of the state directory; "": there is none yet. Raises UsageError or ConfigError for a
    cap that cannot be applied, and for an option that makes no sense here.
    """
    profile, environ = plan.profile, {**plan.environ, **plan.profile.env}
    if idle_reason(plan):
        if plan.environ.get("SLICER_SIM") and profile.sources.get("share", "").startswith("--"):
            raise refusal(profile, "simulated GPUs run nothing that could share them", "unset SLICER_SIM")
        return None
    if plan.nested:
        message = "it runs inside a job that shares nothing, and has no GPUs of its own"
        if wanted(profile) != "lock":
            raise refusal(profile, f"no cap can be applied: {message}", "give --share to the outer job")
        return _without(plan, message)
    held = plan.outer.gpus_for(profile.vram_mib)
    path = directory or statedir.where(plan.environ, os.geteuid())
    has_scope = plan.invocation.backend != "plain" and has_systemd()
    return planned(
        profile, environ, plan.program, path, held, lambda: driver_cap.why_not_here(has_scope=has_scope)
    )


def idle_reason(plan: Plan) -> str:
    """Why what the profile says of sharing does nothing here; "": it does something. Pure."""
    if plan.profile.share == "off":
        return ""
    if wanted(plan.profile) == "off":
        return "whole GPUs are shared with nobody"
    if plan.environ.get("SLICER_SIM"):
        return "the GPUs are simulated"
    if not plan.need_gpus and environment.is_within(plan.environ, _jobs_around(plan)):
        return "it belongs to the sharing of the job around it"
    if not plan.need_gpus and not plan.outer.gpus:
        return "it takes no lease on a GPU"
    return ""


def _jobs_around(plan: Plan) -> tuple[str, ...]:
    return tuple(lease.job for lease in plan.outer.leases)


def _without(plan: Plan, problem: str) -> ShareOrder:
    profile = plan.profile
    return ShareOrder(
        wants="lock", mode=profile.share_mode, is_mode_said=True, skip_syncs=0, over_cap=profile.over_cap,
        priority=profile.priority, limit_mib=0, outer_gpus=(), folder="", library="", problem=problem,
    )  # fmt: skip


# -- the job's file -----------------------------------------------------------------------------------------


def prepare(job: Job, held: HeldLease) -> None:
    """Have the driver keep the cap, and make the file that tells the job's processes what they share.

    Raises StateError; RefusedError where nobody can keep the cap.
    """
    order = job.sharing
    if order is None:
        return
    why = _kept_by_driver(job, held, order) if order.limit_mib else "there is none"
    if order.is_active:
        job_file.make(held.directory, job.id, order, held.lease.gpus, is_kept_by_driver=not why)
    elif order.limit_mib and why:
        raise RefusedError(f"no cap can be applied: {order.problem}; nor does the driver keep it: {why}")


def _kept_by_driver(job: Job, held: HeldLease, order: ShareOrder) -> str:
    """Why the driver does not keep the job's cap; "": it does."""
    gpus = (*order.outer_gpus, *held.lease.gpus)
    return driver_cap.keep(held.lease.cgroup, job.spec.unit, gpus, order.limit_mib << 20)


def keep_file(job: Job, held: HeldLease) -> JobFile | None:
    """Keep the job's file from being swept, for whoever may have to read it after the lease is gone."""
    try:
        found = job_file.JobFile(held.directory, job.id)
    except StateError:
        return None  # said at the end, by an outcome that has nothing of it
    found.hold()
    return found


def summary(job: Job, held: HeldLease) -> Sharing | None:
    """What became of the job's sharing; None: it was not to share anything."""
    if job.sharing is None:
        return None
    if not job.sharing.is_active:
        return sharing_of(job.sharing, None)
    try:
        found = job_file.JobFile(held.directory, job.id)
        try:
            return sharing_of(job.sharing, found.read())
        finally:
            found.close()
    except StateError:
        return sharing_of(job.sharing, None)


def remove_file(job: Job, held: HeldLease) -> None:
    """The job's outcome was written: its file is not needed any more. A job that lives on keeps it."""
    if held.is_outlived:
        return
    try:
        job_file.remove(held.directory, job.id)
    except SlicerError:
        return  # swept when the next one is made
