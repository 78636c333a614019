"""Checks for memory that a job leaves on its GPUs (B5), and reports it if it is not freed soon.

Nothing is ended here. The processes of the job's scope were ended before; others do not belong to the job.
The lease is held meanwhile, so the next holder starts on memory that is really free. Ctrl-C ends the wait.
Then nothing is reported, because the driver might still have freed the memory.
"""

from __future__ import annotations

import os
import time

from slicer.errors import NoGpu, SlicerError
from slicer.gpu.attribution import attribute
from slicer.job.gpu_watch import GpuWatch, describe
from slicer.kernel.signals import INTERRUPTS, timed_wait
from slicer.quantity import format_size
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu
    from slicer.model import Lease

SETTLE_S = 5.0  # the driver frees the memory of a killed process within a second or two
_FIRST_PAUSE_S = 0.05  # the driver sends no event
_LONGEST_PAUSE_S = 0.5


@record
class Remains:
    """Processes and memory left on the GPUs of a lease after its job."""

    own: tuple[ProcessOnGpu, ...]  # processes of the job
    unexplained: dict[str, int]  # MiB by GPU, in use without a listed process; only if that is unexpected


def remains(snapshot: GpuSnapshot, lease: Lease, idle_threshold_mib: int) -> Remains:
    """The job's processes on its GPUs, and memory in use there without any process. Pure."""
    listed = {process.gpu_uuid for process in snapshot.processes}
    return Remains(
        tuple(
            process
            for process, owner in attribute(snapshot, (lease,))
            if owner is not None and process.gpu_uuid in lease.gpus
        ),
        {
            memory.gpu_uuid: memory.used_mib
            for memory in snapshot.memory
            if lease.vram_mib is None
            and memory.gpu_uuid in lease.gpus
            and memory.gpu_uuid not in listed
            and memory.used_mib > idle_threshold_mib
        },
    )


def foreign_arrivals(
    snapshot: GpuSnapshot, lease: Lease, leases: tuple[Lease, ...], ticks_per_s: int
) -> tuple[ProcessOnGpu, ...]:
    """The processes on the lease's GPUs that are in no job and appeared while it was held. Pure.

    A process that is hidden in /proc could have started at any time. But a GPU that was granted whole was
    empty before.
    """
    was_empty = lease.vram_mib is None and not lease.forced
    return tuple(
        process
        for process, owner in attribute(snapshot, leases)
        if process.gpu_uuid in lease.gpus
        and owner is None
        # Start times are cut to whole ticks: a process of the same tick may have started after.
        and ((process.started + 1) / ticks_per_s > lease.since_s if process.started else was_empty)
    )


def check(watch: GpuWatch, leftovers: int, idle_threshold_mib: int) -> None:
    """Wait for an ended job's GPU memory, report what stays. ``leftovers``: the number of ended processes."""
    if watch.has_failed:
        return
    last = watch.observer.snapshot
    try:
        if leftovers and last is not None:
            _name_the_ended(watch, last, leftovers)
        snapshot, left = _settled(watch, idle_threshold_mib)
        for process in left.own:
            where = f"{watch.name_of(process.gpu_uuid)} {SETTLE_S:g} s after its end"
            watch.say(f"{describe(process)} of this job still holds memory of {where}")
        for uuid, mib in left.unexplained.items():
            what = f"{format_size(mib << 20)} of {watch.name_of(uuid)}"
            watch.say(
                f"{what} still in use {SETTLE_S:g} s after the job, by no process that the driver lists"
            )
        _report_foreign_arrivals(watch, snapshot)
    except NoGpu:
        return  # the driver is no longer loaded: nothing to check
    except SlicerError as error:
        watch.fail(error)


def _name_the_ended(watch: GpuWatch, snapshot: GpuSnapshot, leftovers: int) -> None:
    own = remains(snapshot, watch.held.lease, 0).own
    if own:
        names = ", ".join(f"{describe(process)} on {watch.name_of(process.gpu_uuid)}" for process in own)
        count = f"{leftovers} leftover process{'es' if leftovers > 1 else ''} ended"
        watch.say(f"{count}; last seen of this job: {names}")


def _settled(watch: GpuWatch, idle_threshold_mib: int) -> tuple[GpuSnapshot, Remains]:
    """Poll until the job's memory is free, at most for SETTLE_S. The caller blocks signals."""
    end, pause_s = time.monotonic() + SETTLE_S, _FIRST_PAUSE_S
    while timed_wait(INTERRUPTS, 0) is not None:
        pass  # these were for the job
    while True:
        snapshot = watch.observer.observe()
        left = remains(snapshot, watch.held.lease, idle_threshold_mib)
        if not (left.own or left.unexplained) or time.monotonic() >= end:
            return snapshot, left
        if timed_wait(INTERRUPTS, pause_s) is not None:
            return snapshot, Remains((), {})
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _report_foreign_arrivals(watch: GpuWatch, snapshot: GpuSnapshot) -> None:
    lease = watch.held.lease
    known: dict[str, Lease] = {lease.job: lease}
    if snapshot.processes:
        known |= {each.job: each for each in watch.leases()}
        # A job may have begun or ended between the snapshot of the GPUs and the read of the leases.
        snapshot = watch.observer.observe()
        known |= {each.job: each for each in watch.leases()}
    leases = tuple(known.values())
    for process in foreign_arrivals(snapshot, lease, leases, os.sysconf("SC_CLK_TCK")):
        watch.say(f"left on {watch.name_of(process.gpu_uuid)}: {describe(process)}, not in this job's scope")
