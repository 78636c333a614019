"""A route's past as one table: each decision, its input, and how its job ended; and its counts. Pure.

A refused caller may try again with the same input, many times. So calls and inputs are counted separately:
the same command with the same input is one input.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from slicer.outcome.result import result_of
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.outcome.decisions import DecisionRow, PastDecision, RoutedJob

Ended = Literal["ok", "stopped", "failed", "ran-out", "unknown"]  # ran-out: of GPU memory

ENOUGH_JOBS = 10  # successful ones; fewer say nothing
_NAMELESS = ("", "-")  # inputs that can be told apart only by their metrics


@record
class PastJob:
    """A decision, whether or not it started a job."""

    row: DecisionRow
    job: RoutedJob | None
    input: tuple[object, ...]  # the same for decisions about the same input
    ended: Ended  # "unknown": it runs, or there was no job

    @property
    def is_out(self) -> bool:
        return self.ended == "ran-out"


@record
class DecisionCount:
    """The number of decisions, and of the different inputs among them."""

    calls: int
    inputs: int


def table(past: Iterable[PastDecision]) -> list[PastJob]:
    """The rows of one route, the oldest first. A job ran out of GPU memory if a CPU attempt followed it."""
    rows = list(past)
    ran_out = {each.row.after for each in rows if each.row.after}
    return [PastJob(each.row, each.job, _input(each.row), _ended(each, ran_out)) for each in rows]


def _input(row: DecisionRow) -> tuple[object, ...]:
    return row.command, row.input, row.metrics if row.input in _NAMELESS else ()


def _ended(past: PastDecision, ran_out: set[str]) -> Ended:
    if past.row.job in ran_out:
        return "ran-out"
    job = past.job
    return "unknown" if job is None else result_of(job.exit_code, job.reason, job.ended_by)


def count(past: Sequence[PastJob]) -> DecisionCount:
    return DecisionCount(len(past), len({each.input for each in past}))


# -- what was counted ---------------------------------------------------------------------------------------

_RAN = ("started", "fallback")
_REFUSED = ("blocked", "too-large", "probe-error")


@record
class Spread:
    """The median of some durations, and their 95th percentile, in seconds."""

    median_s: float
    p95_s: float


@record
class DestinationStats:
    """The jobs that one destination took, or should have taken."""

    name: str
    mode: str
    started: DecisionCount  # without fallbacks
    fallback: DecisionCount  # jobs that came here after the GPU ran out of memory
    blocked: DecisionCount  # including those that would have come that way
    ran_out: int  # jobs that ran out of GPU memory here
    failed: int  # jobs known to have failed in another way
    waited: Spread | None  # waits for the leases of jobs that ran
    wall: Spread | None  # run times of successful jobs
    vram_peak_mib: int | None  # the largest use of one GPU by one job
    memory_peak_bytes: int | None


@record
class RouteStats:
    """One route's decisions. ``calls`` counts each call of ``slicer route``."""

    route: str
    first_at: float  # seconds since the epoch
    last_at: float
    calls: DecisionCount
    retries: int  # calls with an input that had been refused, or whose job had failed
    gpu: DecisionCount  # started
    cpu: DecisionCount
    fallback: DecisionCount
    blocked: DecisionCount
    blocked_for_good: int  # inputs that were blocked and have not run since
    too_large: DecisionCount
    probe_error: DecisionCount
    last_probe_error: str
    waited: Spread | None
    destinations: tuple[DestinationStats, ...]


def summary(name: str, past: Sequence[PastJob], order: Sequence[str] = ()) -> RouteStats:
    """Count the decisions of one route. There must be at least one.

    ``order`` has the names of its destinations; those that the configuration no longer has come last.
    """
    errors = _of(past, "probe-error")
    names = dict.fromkeys((*order, *(each.row.destination for each in past if each.row.destination)))
    return RouteStats(
        route=name, first_at=min(each.row.decided_at for each in past),
        last_at=max(each.row.decided_at for each in past),
        calls=count([each for each in past if not each.row.after]), retries=_retries(past),
        gpu=count(_of(past, "started", "gpu")), cpu=count(_of(past, "started", "cpu")),
        fallback=count(_of(past, "fallback")), blocked=count(_of(past, "blocked")),
        blocked_for_good=_never_ran(past), too_large=count(_of(past, "too-large")),
        probe_error=count(errors), last_probe_error=errors[-1].row.reason if errors else "",
        waited=spread([each.row.waited_s for each in past if each.row.result not in _REFUSED]),
        destinations=tuple(
            _destination(each, [job for job in past if job.row.destination == each]) for each in names
        ),
    )  # fmt: skip


def _of(past: Sequence[PastJob], result: str, mode: str = "") -> list[PastJob]:
    return [each for each in past if each.row.result == result and mode in ("", each.row.mode)]


def _destination(name: str, here: Sequence[PastJob]) -> DestinationStats:
    ran = [each for each in here if each.row.result in _RAN]
    jobs = [each.job for each in ran if each.job is not None]
    memory = [job.memory_peak_bytes for job in jobs if job.memory_peak_bytes is not None]
    return DestinationStats(
        name=name, mode=here[-1].row.mode if here else "", started=count(_of(here, "started")),
        fallback=count(_of(here, "fallback")), blocked=count(_of(here, "blocked")),
        ran_out=sum(each.is_out for each in ran), failed=sum(each.ended == "failed" for each in ran),
        waited=spread([each.row.waited_s for each in ran]),
        wall=spread([each.job.wall_s for each in ran if each.job and each.ended == "ok"]),
        vram_peak_mib=max((max(job.vram_peak_mib) for job in jobs if job.vram_peak_mib), default=None),
        memory_peak_bytes=max(memory, default=None),
    )  # fmt: skip


def spread(values: Sequence[float]) -> Spread | None:
    """Median and 95th percentile (the nearest rank); None if there are no values."""
    if not values:
        return None
    return Spread(statistics.median(values), sorted(values)[math.ceil(0.95 * len(values)) - 1])


def _never_ran(past: Sequence[PastJob]) -> int:
    """How many inputs were blocked, and no job has started for them since."""
    last = {each.input: each.row.result for each in past if each.row.result in (*_RAN, "blocked")}
    return sum(result == "blocked" for result in last.values())


def _retries(past: Sequence[PastJob]) -> int:
    in_vain: dict[object, bool] = {}  # the last call for each input
    found = 0
    for each in past:
        if not each.row.after:
            found += in_vain.get(each.input, False)
            in_vain[each.input] = each.row.result in _REFUSED or each.ended in ("failed", "ran-out")
    return found
