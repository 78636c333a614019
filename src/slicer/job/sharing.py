"""The file of a job that shares its GPUs (``--share``): made before its command starts, read at its end.

Imported only for such a job.
"""

from __future__ import annotations

from slicer.errors import RefusedError, SlicerError, StateError
from slicer.gpu import driver_cap
from slicer.share import job_file
from slicer.share.summary import sharing_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.job.job import Job
    from slicer.ledger.held_lease import HeldLease
    from slicer.model import Sharing
    from slicer.share.environment import ShareOrder
    from slicer.share.job_file import JobFile


def prepare(job: Job, held: HeldLease, why_no_cap: str | None = None) -> None:
    """Have the driver keep the cap, and make the file that tells the job's processes what they share.

    ``why_no_cap``: why the driver does not, as the broker was told; "": it does; None: it was not asked yet.
    Raises StateError; RefusedError where nobody can keep the cap.
    """
    order = job.sharing
    if order is None:
        return
    why = "there is none"
    if order.limit_mib:
        why = _kept_by_driver(job, held, order) if why_no_cap is None else why_no_cap
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
