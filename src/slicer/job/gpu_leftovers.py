"""What a job leaves on its GPUs (B5): waited for while it is still going, reported where it stays.

Nothing is ended here. The processes of the job's scope have been, before this; those outside it are others'.
The lease is still held meanwhile, so that the next holder starts on memory that is really free. Ctrl-C ends
the wait: what is there then is nobody's fault yet, and not reported.
"""

from __future__ import annotations

import os
import time

from slicer.errors import SlicerError
from slicer.gpu.vram import Owners
from slicer.job.gpu_watch import describe
from slicer.kernel.signals import INTERRUPTS, timed_wait
from slicer.quantity import format_size
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.gpu.vram import Seen, Sighting
    from slicer.job.gpu_watch import JobWatch
    from slicer.model import Lease

SETTLE_S = 5.0  # the driver frees the memory of a killed process within a second or two
_FIRST_PAUSE_S = 0.05  # the driver sends no event
_LONGEST_PAUSE_S = 0.5


@record
class Remains:
    """What is on the GPUs of a lease after its job."""

    own: tuple[Seen, ...]  # processes of the job
    unexplained: dict[str, int]  # MiB by GPU, in use by no process that is listed; only where that is odd


def remains(sighting: Sighting, lease: Lease, idle_threshold_mib: int) -> Remains:
    """What of the job's, or of nobody's, is still there. Pure."""
    owners = Owners((lease,))
    here = [seen for seen in sighting.processes if seen.gpu_uuid in lease.gpus]
    listed = {seen.gpu_uuid for seen in here}
    return Remains(
        tuple(seen for seen in here if owners.of(seen) is not None),
        {
            memory.gpu_uuid: memory.used_mib
            for memory in sighting.memory
            if lease.vram_mib is None
            and memory.gpu_uuid in lease.gpus
            and memory.gpu_uuid not in listed
            and memory.used_mib > idle_threshold_mib
        },
    )


def strangers(
    sighting: Sighting, lease: Lease, leases: tuple[Lease, ...], ticks_per_s: int
) -> tuple[Seen, ...]:
    """The processes on the lease's GPUs that are in no job, and came while it was held. Pure.

    One of which /proc tells nothing could have come at any time; but a GPU that was given out whole was
    empty then.
    """
    owners = Owners(leases)
    was_empty = lease.vram_mib is None and not lease.forced
    return tuple(
        seen
        for seen in sighting.processes
        if seen.gpu_uuid in lease.gpus
        and owners.of(seen) is None
        # Start times are cut to whole ticks: one of the same tick may have come after.
        and ((seen.started + 1) / ticks_per_s > lease.since_s if seen.started else was_empty)
    )


def check(watch: JobWatch, leftovers: int, idle_threshold_mib: int) -> None:
    """Look at the GPUs of an ended job, wait for their memory, and report what stays. Raises nothing.

    ``leftovers``: how many of its processes outlived the command and were ended.
    """
    from slicer.errors import NoGpu

    if watch.has_failed:
        return
    seen_last = watch.last
    try:
        if leftovers and seen_last is not None:
            _name_the_ended(watch, seen_last, leftovers)
        sighting, left = _settled(watch, idle_threshold_mib)
        _report(watch, left)
        _report_strangers(watch, sighting)
    except NoGpu:
        return  # no driver any more: there is nothing to look at
    except SlicerError as error:
        watch.fail(error)


def _name_the_ended(watch: JobWatch, sighting: Sighting, leftovers: int) -> None:
    own = remains(sighting, watch.held.lease, 0).own
    if own:
        names = ", ".join(f"{describe(seen)} on {watch.name_of(seen.gpu_uuid)}" for seen in own)
        count = f"{leftovers} leftover process{'es' if leftovers > 1 else ''} ended"
        watch.say(f"{count}; last seen of this job: {names}")


def _settled(watch: JobWatch, idle_threshold_mib: int) -> tuple[Sighting, Remains]:
    """What is there once the job's memory is free, or after SETTLE_S. The caller holds signals back."""
    end, pause_s = time.monotonic() + SETTLE_S, _FIRST_PAUSE_S
    while timed_wait(INTERRUPTS, 0) is not None:
        pass  # meant for the job
    while True:
        sighting = watch.look()
        left = remains(sighting, watch.held.lease, idle_threshold_mib)
        if not (left.own or left.unexplained) or time.monotonic() >= end:
            return sighting, left
        if timed_wait(INTERRUPTS, pause_s) is not None:
            return sighting, Remains((), {})
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _report(watch: JobWatch, left: Remains) -> None:
    for seen in left.own:
        watch.say(
            f"{describe(seen)} of this job still holds memory of {watch.name_of(seen.gpu_uuid)}"
            f" {SETTLE_S:g} s after its end"
        )
    for uuid, mib in left.unexplained.items():
        watch.say(
            f"{format_size(mib << 20)} of {watch.name_of(uuid)} still in use {SETTLE_S:g} s after the job,"
            " by no process that the driver lists"
        )


def _report_strangers(watch: JobWatch, sighting: Sighting) -> None:
    lease = watch.held.lease
    known: dict[str, Lease] = {lease.job: lease}
    if sighting.processes:
        known |= {each.job: each for each in watch.leases()}
        # A job may have begun, or ended, between the look at the GPUs and that at the leases.
        sighting = watch.look()
        known |= {each.job: each for each in watch.leases()}
    leases = tuple(known.values())
    for seen in strangers(sighting, lease, leases, os.sysconf("SC_CLK_TCK")):
        watch.say(f"left on {watch.name_of(seen.gpu_uuid)}: {describe(seen)}, not in this job's scope")
    watch.share_end(sighting, leases)
