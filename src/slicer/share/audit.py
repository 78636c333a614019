"""What NVML says of a job with a cap: what it uses unseen, and whether it got past the library. Pure.

NVML counts more than the library: the contexts of CUDA, its modules and buffers. They are the job's use too.
The library subtracts them from the cap (``overhead``). A pool of the driver's is charged with all that it has
reserved, so that is no overhead.
"""

from __future__ import annotations

from slicer.record import record

MIB = 1 << 20
# A context of CUDA with a large framework's modules. It is made before anything can be charged, so it is
# known too late to be kept out of the cap: as much beyond it for each process is nobody's fault.
CONTEXT_MIB = 640
_KEPT = 7, 8  # of what was seen at the look before: it wears off in some looks
ENOUGH_LOOKS = 2  # in a row: a look may fall between an allocation and its charge


@record
class Seen:
    """One GPU of a job at one look. ``charged`` and ``peak`` are bytes."""

    used_mib: int  # by NVML
    charged_before: int  # before NVML was asked
    charged_after: int
    processes: int  # of the job, that NVML saw on this GPU


def overhead(seen: Seen, last: int) -> int:
    """The bytes in use that nobody is charged with. ``last``: what it was at the look before.

    A look may fall between an allocation's charge and the allocation, or a free and its credit, and then sees
    less. So what was seen before wears off slowly. (When a process has ended its context has gone with it:
    then ``last`` is 0.)
    """
    used = seen.used_mib * MIB
    unseen = used - max(seen.charged_before, seen.charged_after)
    return max(0, min(used, max(unseen, last * _KEPT[0] // _KEPT[1])))


def is_beyond(used_mib: int, cap_mib: int, processes: int) -> bool:
    """Whether a job uses more of a GPU than its cap, and than contexts explain."""
    return bool(cap_mib) and used_mib > cap_mib + processes * CONTEXT_MIB


@record
class Standing:
    """What was seen of a job so far."""

    beyond: int = 0  # looks in a row at which it was beyond its cap
    unseen: int = 0  # looks in a row at which it used a GPU, and no process had the library
    has_got_past: bool = False
    has_escaped: bool = False  # it was told that the library is not active


@record
class Verdict:
    """What follows from a look. Each is told once."""

    standing: Standing
    got_past: bool = False
    escaped: bool = False


def judge(standing: Standing, *, is_beyond_cap: bool, rows: int, uses_gpu: bool) -> Verdict:
    """What follows, once it was seen often enough in a row. ``rows``: processes that ever had the library."""
    beyond = standing.beyond + 1 if is_beyond_cap else 0
    unseen = standing.unseen + 1 if uses_gpu and not rows else 0
    got_past = beyond >= ENOUGH_LOOKS and not standing.has_got_past
    escaped = unseen >= ENOUGH_LOOKS and not standing.has_escaped
    now = Standing(beyond, unseen, standing.has_got_past or got_past, standing.has_escaped or escaped)
    return Verdict(now, got_past, escaped)
