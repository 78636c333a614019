"""NVML's view of a job with a cap: memory that the library does not see, and use beyond the cap. Pure.

NVML counts more than the library: CUDA's contexts, modules and buffers. They are also the job's use. The
library subtracts them from the cap (``overhead``). A pool of the driver's is charged with all that it has
reserved, so that is not overhead.
"""

from __future__ import annotations

from slicer.record import record

MIB = 1 << 20
# A CUDA context with a large framework's modules. It is created before anything can be charged, so the cap
# cannot include it: this much more for each process is not counted against the job.
CONTEXT_MIB = 640
_KEPT = 7, 8  # the part of the previous value that is kept: it wears off over some looks
ENOUGH_LOOKS = 2  # in a row, because a look may fall between an allocation and its charge


@record
class GpuSample:
    """One GPU of a job at one look. ``charged`` and ``peak`` are bytes."""

    used_mib: int  # according to NVML
    charged_before: int  # before NVML was asked
    charged_after: int
    processes: int  # of the job, seen by NVML on this GPU


def overhead(seen: GpuSample, last: int) -> int:
    """The bytes in use that are charged to nobody. ``last``: the result of the previous look.

    A look may fall between an allocation's charge and the allocation, or between a free and its credit, and
    then sees less. So the previous result wears off slowly. (The context of a process ends with it; then
    ``last`` is 0.)
    """
    used = seen.used_mib * MIB
    unseen = used - max(seen.charged_before, seen.charged_after)
    return max(0, min(used, max(unseen, last * _KEPT[0] // _KEPT[1])))


def is_beyond(used_mib: int, cap_mib: int, processes: int) -> bool:
    """Whether a job uses more of a GPU than its cap and contexts explain."""
    return bool(cap_mib) and used_mib > cap_mib + processes * CONTEXT_MIB


@record
class AuditState:
    """What the looks have found about a job so far."""

    beyond: int = 0  # consecutive looks at which it was beyond its cap
    unseen: int = 0  # consecutive looks at which it used a GPU, but no process had the library
    has_got_past: bool = False
    has_escaped: bool = False  # it was reported that the library is not active


@record
class AuditVerdict:
    """The result of a look. Each finding is reported once."""

    standing: AuditState
    got_past: bool = False
    escaped: bool = False


def judge(standing: AuditState, *, is_beyond_cap: bool, rows: int, uses_gpu: bool) -> AuditVerdict:
    """Judge a look together with those before it. ``rows``: processes that ever had the library."""
    beyond = standing.beyond + 1 if is_beyond_cap else 0
    unseen = standing.unseen + 1 if uses_gpu and not rows else 0
    got_past = beyond >= ENOUGH_LOOKS and not standing.has_got_past
    escaped = unseen >= ENOUGH_LOOKS and not standing.has_escaped
    now = AuditState(beyond, unseen, standing.has_got_past or got_past, standing.has_escaped or escaped)
    return AuditVerdict(now, got_past, escaped)
