"""The words of a report as types. Times are in seconds since 1970."""

from __future__ import annotations

from slicer.model import GAVE_WAY
from slicer.record import record

# In ReportedJob.ending, as GAVE_WAY; everything else is a failure.
OK, RUNNING, STOPPED, UNKNOWN = "ok", "running", "stopped", "unknown"


@record
class Card:
    uuid: str
    label: str
    memory_mib: int  # 0: unknown


@record
class ReportedJob:
    """A job that has ended, or is running. Its texts are fit for display."""

    key: str  # unlike ids, which their users may choose, no two jobs have the same
    id: str
    name: str
    user: str
    profile: str
    gpus: tuple[str, ...]  # UUIDs
    began: float
    ended: float  # of a running job: now
    waited_s: float | None  # None: unknown
    declared_mib: int | None  # on each of its GPUs; None: all of their memory
    peak_mib: tuple[int, ...]  # the highest use, in the order of gpus; () unknown
    cpu_slots: int
    ending: str

    @property
    def has_failed(self) -> bool:
        return self.ending not in (OK, RUNNING, STOPPED, UNKNOWN, GAVE_WAY)

    def declared_on(self, card: Card) -> int:
        """The MiB that it held of that GPU; 0: unknown."""
        return card.memory_mib if self.declared_mib is None else self.declared_mib


@record
class Period:
    began: float
    ended: float

    def overlap(self, job: ReportedJob) -> tuple[float, float]:
        """The part of the job in this period; its end is not after its beginning if there is none."""
        return max(job.began, self.began), min(job.ended, self.ended)


@record
class Bar:
    """A job on one GPU: a part of the GPU's row, because other jobs may be there at the same time."""

    job: int  # its place among the jobs
    card: int  # its place among the cards
    began: float
    ended: float
    bottom: float  # in the row, from 0 to 1
    top: float
    used: float | None  # the peak as a part of the declared memory; None: unknown


@record
class OverTime:
    """Means of intervals of equal length; the last may be shorter. None: not measured."""

    began: float
    step_s: float
    ended: float
    gpus_held: tuple[float, ...]
    gpus_busy: tuple[float | None, ...]  # the utilisation of held GPUs: two at 50 % are one GPU
    declared_gib: tuple[float, ...]
    used_gib: tuple[float | None, ...]
    cpu_slots: tuple[float, ...]
    cpus_used: tuple[float | None, ...]
    held_s: float  # GPU-seconds, in the whole period
    measured_s: float  # those of which the utilisation is known
    busy_s: float


@record
class MemoryUse:
    """The GPU memory that jobs of one name declared, and what they used, on one GPU."""

    name: str
    profile: str
    jobs: int
    gpu_s: float
    declared_mib: int  # the highest
    is_whole: bool  # some of them did not declare any, and held whole GPUs
    typical_mib: float  # the median of the peaks
    peak_mib: int
    enough_mib: int  # a declaration that would have been enough for all
    saving_gib_h: float  # GiB-hours that it would have left for others


@record
class WaitTimes:
    """How long jobs waited. ``counts`` has a number of jobs for each of figures.WAITS."""

    of: str
    jobs: int
    median_s: float
    p90_s: float
    longest_s: float
    counts: tuple[int, ...]


@record
class EndingCount:
    ending: str
    jobs: int
    gpu_s: float


@record
class Report:
    period: Period
    jobs: tuple[ReportedJob, ...]  # by their beginnings
    cards: tuple[Card, ...]
    bars: tuple[Bar, ...]
    over_time: OverTime
    memory: tuple[MemoryUse, ...]  # the largest saving first
    by_profile: tuple[WaitTimes, ...]  # the most jobs first
    by_user: tuple[WaitTimes, ...]
    endings: tuple[EndingCount, ...]  # the most frequent first
