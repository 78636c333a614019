"""What is seen of a job's use of its GPUs."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from slicer.job.idle_watch import IdleNews

    Found: TypeAlias = "Exceeded | Escaped | IdleNews"


@record
class GpuUse:
    """A running job's use of its GPUs, in their order; () before the first look."""

    now_mib: tuple[int, ...]
    peak_mib: tuple[int, ...]
    utilisation: float | None  # percent, averaged over the looks that had a figure
    looks: int


@record
class Exceeded:
    """A job uses more of a GPU than it declared, or than its cap."""

    gpu: str
    used_mib: int
    declared_mib: int
    is_cap: bool = False  # it got past its cap
    ends: bool = False  # and must be ended for that


@record
class Escaped:
    """A job uses GPUs in a way that its lease cannot cover. ``how``: what it does."""

    how: str
