"""Counts what a route decided in the past. Pure.

A refused caller may try again with the same input, many times. So calls and inputs are counted separately:
the same command with the same input is one input.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from slicer.outcome.decisions import DecisionRow, PastDecision
from slicer.outcome.result import result_of
from slicer.record import record

InputKey = tuple[object, ...]
ENOUGH_JOBS = 10  # successful ones; fewer say nothing
_NAMELESS = ("", "-")  # inputs that can be told apart only by their metrics
_REFUSED = ("blocked", "too-large", "probe-error")


@record
class DecisionCount:
    """The number of decisions, and of the different inputs among them."""

    calls: int
    inputs: int


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


def by_route(past: Iterable[PastDecision]) -> dict[str, list[PastDecision]]:
    """The decisions of each route."""
    found: dict[str, list[PastDecision]] = {}
    for each in past:
        found.setdefault(each.row.route, []).append(each)
    return found


def input_key(row: DecisionRow) -> InputKey:
    """The same key for decisions about the same input. Input from stdin is identified only by its metrics."""
    told_by = row.metrics if row.input in _NAMELESS else ()
    return row.command, row.input, told_by


def calls_of(past: Iterable[PastDecision]) -> list[PastDecision]:
    """The decisions about callers' requests, without those about second attempts."""
    return [each for each in past if not each.row.after]


def out_of_memory(past: Iterable[PastDecision]) -> set[str]:
    """The jobs known to have run out of GPU memory, because a CPU attempt followed."""
    return {each.row.after for each in past if each.row.after}


def count(past: Iterable[PastDecision]) -> DecisionCount:
    """The number of decisions, and of different inputs."""
    keys = [input_key(each.row) for each in past]
    return DecisionCount(len(keys), len(set(keys)))


def spread(values: Sequence[float]) -> Spread | None:
    """Median and 95th percentile (the nearest rank); None if there are no values."""
    if not values:
        return None
    return Spread(statistics.median(values), sorted(values)[math.ceil(0.95 * len(values)) - 1])


def summary(name: str, past: Sequence[PastDecision], order: Sequence[str] = ()) -> RouteStats:
    """Count the decisions of one route, the oldest first. There must be at least one.

    ``order`` has the names of its destinations; those that the configuration no longer has come last.
    """
    calls = calls_of(past)
    errors = _of(past, "probe-error")
    blocked = _of(past, "blocked")
    names = dict.fromkeys((*order, *(each.row.destination for each in past if each.row.destination)))
    return RouteStats(
        route=name, first_at=min(each.row.decided_at for each in past),
        last_at=max(each.row.decided_at for each in past), calls=count(calls), retries=_retries(calls),
        gpu=count(_of(past, "started", "gpu")), cpu=count(_of(past, "started", "cpu")),
        fallback=count(_of(past, "fallback")), blocked=count(blocked), blocked_for_good=len(never_ran(past)),
        too_large=count(_of(past, "too-large")), probe_error=count(errors),
        last_probe_error=errors[-1].row.reason if errors else "",
        waited=spread([each.row.waited_s for each in past if each.row.result not in _REFUSED]),
        destinations=tuple(_destination(each, past) for each in names),
    )  # fmt: skip


def _of(past: Iterable[PastDecision], result: str, mode: str = "") -> list[PastDecision]:
    return [each for each in past if each.row.result == result and mode in ("", each.row.mode)]


def never_ran(past: Sequence[PastDecision]) -> set[InputKey]:
    """The inputs that were blocked, and for which no job has started since."""
    found: set[InputKey] = set()
    for each in past:
        if each.row.result == "blocked":
            found.add(input_key(each.row))
        elif each.row.result in ("started", "fallback"):
            found.discard(input_key(each.row))
    return found


def has_failed(past: PastDecision) -> bool:
    """Whether the job is known to have failed."""
    return _result(past) == "failed"


def _result(past: PastDecision) -> str:
    job = past.job
    return "unknown" if job is None else result_of(job.exit_code, job.reason, job.ended_by)


def _retries(calls: Sequence[PastDecision]) -> int:
    in_vain: set[InputKey] = set()
    found = 0
    for each in calls:
        key = input_key(each.row)
        found += key in in_vain
        if each.row.result in _REFUSED or has_failed(each):
            in_vain.add(key)
        else:
            in_vain.discard(key)
    return found


def _destination(name: str, past: Sequence[PastDecision]) -> DestinationStats:
    here = [each for each in past if each.row.destination == name]
    out = out_of_memory(past)
    ran = [each for each in here if each.row.result in ("started", "fallback")]
    jobs = [each.job for each in ran if each.job is not None]
    vram = [max(job.vram_peak_mib) for job in jobs if job.vram_peak_mib]
    memory = [job.memory_peak_bytes for job in jobs if job.memory_peak_bytes is not None]
    return DestinationStats(
        name=name, mode=here[-1].row.mode if here else "", started=count(_of(here, "started")),
        fallback=count(_of(here, "fallback")), blocked=count(_of(here, "blocked")),
        ran_out=sum(each.row.job in out for each in ran),
        failed=sum(has_failed(each) and each.row.job not in out for each in ran),
        waited=spread([each.row.waited_s for each in ran]),
        wall=spread([each.job.wall_s for each in ran if each.job is not None and _result(each) == "ok"]),
        vram_peak_mib=max(vram, default=None), memory_peak_bytes=max(memory, default=None),
    )  # fmt: skip
