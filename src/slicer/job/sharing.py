"""The job file of a sharing job (``--share``), from before its command to its end, and its audit.

The monitor of the job's GPUs calls the audit before and after each look. The audit finds use that the library
cannot see, and whether the job got past the library; :mod:`slicer.share.audit` decides. Imported only for
such a job.
"""

from __future__ import annotations

from slicer.errors import RefusedError, SlicerError, StateError
from slicer.gpu import driver_cap
from slicer.record import record
from slicer.share import audit, job_file
from slicer.share.audit import AuditState, GpuSample
from slicer.share.job_file import JobFile
from slicer.share.summary import sharing_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.job.job import Job
    from slicer.ledger.held_lease import HeldLease
    from slicer.model import Sharing
    from slicer.share.environment import ShareOrder
    from slicer.state.statedir import StateDir


def prepare(job: Job, held: HeldLease, why_no_cap: str | None = None) -> None:
    """Set the driver's cap, and make the job file for the job's processes.

    ``why_no_cap``: from the broker, why the driver does not enforce the cap; "": it does; None: unasked.
    Raises StateError; RefusedError if the cap cannot be enforced at all.
    """
    order = job.sharing
    if order is None:
        return
    why = "there is none"
    if order.limit_mib and why_no_cap is None:
        gpus = (*order.outer_gpus, *held.lease.gpus)
        why = driver_cap.keep(held.lease.cgroup, job.spec.whole, gpus, order.limit_mib << 20)
    elif order.limit_mib:
        why = why_no_cap or ""
    if order.is_active:
        job_file.make(held.directory, job.id, order, held.lease.gpus, is_kept_by_driver=not why)
    elif order.limit_mib and why:
        raise RefusedError(f"no cap can be applied: {order.problem}; nor does the driver enforce it: {why}")


def keep_file(job: Job, held: HeldLease) -> JobFile | None:
    """Keep the job's file from being swept, for a reader after the lease's end."""
    try:
        found = job_file.JobFile(held.directory, job.id)
    except StateError:
        return None  # the outcome shows this, by the missing figures
    found.hold()
    return found


def summary(order: ShareOrder, job: Job, held: HeldLease) -> Sharing:
    if order.is_active:
        try:
            found = JobFile(held.directory, job.id)
            try:
                return sharing_of(order, found.read())
            finally:
                found.close()
        except StateError:
            pass
    return sharing_of(order, None)


def remove_file(job: Job, held: HeldLease) -> None:
    """Remove the job's file after its outcome was written, unless processes of the job live on."""
    if held.is_outlived:
        return
    try:
        job_file.remove(held.directory, job.id)
    except SlicerError:
        return  # the next sharing job sweeps it


@record
class ShareFinding:
    """A finding, reported once per job. ``gpu``: the UUID; "" for a job that escaped the library."""

    gpu: str
    used_mib: int = 0
    cap_mib: int = 0
    ends: bool = False  # the job must be ended for that

    @property
    def is_escape(self) -> bool:
        return not self.gpu


class ShareAudit:
    """The audit of one job. A missing or damaged file ends it; the outcome shows that."""

    def __init__(self, directory: StateDir, job: str) -> None:
        self._file: JobFile | None = None
        self.has_cap = False
        self._standing = AuditState()
        self._before: tuple[int, ...] = ()
        self._overhead: dict[str, int] = {}  # by GPU, in bytes
        self._processes: dict[str, int] = {}
        try:
            self._file = JobFile(directory, job)
            self.has_cap = any(self._file.read().limit)
        except StateError:
            self.close()

    def close(self) -> None:
        """Safe to repeat."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def before(self) -> None:
        """Note the charges just before a look at the GPUs: :meth:`after` compares them with what is seen."""
        if self._file is not None:
            try:
                self._before = self._file.charges()[0]
            except StateError:
                self.close()

    def after(self, used_mib: Mapping[str, int], processes: Mapping[str, int]) -> list[ShareFinding]:
        """Note use that the library cannot see; the findings. Both arguments: the driver's figures by GPU."""
        if self._file is None or not self._before:
            return []
        try:
            return self._after(self._file, used_mib, processes)
        except StateError:
            self.close()
            return []

    def _after(
        self, file: JobFile, used_mib: Mapping[str, int], processes: Mapping[str, int]
    ) -> list[ShareFinding]:
        charged, _ = file.charges()
        said = file.read()
        beyond = ""
        for place, uuid in enumerate(said.gpus[: len(charged)]):
            if uuid not in used_mib:  # an outer job's
                continue
            cap_mib, count = said.limit[place] >> 20, processes.get(uuid, 0)
            if cap_mib:
                seen = GpuSample(used_mib[uuid], self._before[place], charged[place], count)
                self._note_overhead(file, place, uuid, seen)
            if audit.is_beyond(used_mib[uuid], cap_mib, count):
                beyond = beyond or uuid
        verdict = audit.judge(
            self._standing, is_beyond_cap=bool(beyond), rows=said.rows, uses_gpu=any(processes.values())
        )
        self._standing = verdict.standing
        found = [ShareFinding("")] if verdict.escaped else []
        if verdict.got_past:
            file.set_got_past()
            cap_mib = said.limit[said.gpus.index(beyond)] >> 20
            found.append(ShareFinding(beyond, used_mib[beyond], cap_mib, ends=said.over_cap == "end"))
        return found

    def _note_overhead(self, file: JobFile, place: int, uuid: str, seen: GpuSample) -> None:
        before = self._overhead.get(uuid, 0)
        is_fewer = seen.processes < self._processes.get(uuid, 0)
        now = audit.overhead(seen, 0 if is_fewer else before)
        if now != before:
            file.set_overhead(place, now)
        self._overhead[uuid] = now
        self._processes[uuid] = seen.processes
