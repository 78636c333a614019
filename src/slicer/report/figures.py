"""The tables of a report, from jobs. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from slicer.record import replace
from slicer.report import over_time
from slicer.report.over_time import ReadSeries
from slicer.report.parts import (
    RUNNING,
    Bar,
    Card,
    EndingCount,
    MemoryUse,
    Period,
    Report,
    ReportedJob,
    WaitTimes,
)
from slicer.text import but_numbers

# A job on one GPU: its declared memory and its peak in MiB, for how long.
_Held = tuple[ReportedJob, int, int, float]

# The columns of the distribution of waiting times: each ends where the next begins.
WAITS = (
    (1.0, "<1s"), (10.0, "<10s"), (60.0, "<1m"), (600.0, "<10m"), (3600.0, "<1h"), (6 * 3600.0, "<6h"),
    (86400.0, "<1d"), (math.inf, "more"),
)  # fmt: skip
_NAMED = 3  # names that are alike but for numbers, which have a row each
_MARGIN = 1.1  # what a declaration should have above the highest peak
_ROUND_MIB = 512


def made(jobs: Iterable[ReportedJob], cards: Sequence[Card], period: Period, series: ReadSeries) -> Report:
    """The report about the jobs that ran in the period.

    ``cards`` are the machine's GPUs; others that jobs held are added. ``series`` returns the figures over
    time of jobs by their keys, as far as some were kept.
    """
    shown = [job for job in jobs if job.ended >= period.began and job.began <= period.ended]
    shown.sort(key=lambda job: (job.began, job.key))
    known = {card.uuid for card in cards}
    gone = sorted({uuid for job in shown for uuid in job.gpus} - known)
    every = (*cards, *(Card(uuid, uuid[:12], 0) for uuid in gone))
    return Report(
        period=period, jobs=tuple(shown), cards=every, bars=tuple(bars(shown, every, period)),
        over_time=over_time.made(shown, every, period, series),
        memory=tuple(memory_uses(shown, every, period)),
        by_profile=tuple(waits(shown, lambda job: job.profile)),
        by_user=tuple(waits(shown, lambda job: job.user)), endings=tuple(endings(shown, period)),
    )  # fmt: skip


def bars(jobs: Sequence[ReportedJob], cards: Sequence[Card], period: Period) -> list[Bar]:
    """The timeline: jobs on the same GPU at the same time are on lanes of their own."""
    places = {card.uuid: number for number, card in enumerate(cards)}
    rows: list[list[Bar]] = [[] for _ in cards]
    for number, job in enumerate(jobs):
        began, ended = period.overlap(job)
        for order, uuid in enumerate(job.gpus):
            card = places[uuid]
            used = _used(job, order, cards[card])
            rows[card].append(Bar(number, card, began, ended, 0.0, 1.0, used))
    return [bar for row in rows for group in _groups(row) for bar in _on_lanes(group)]


def _used(job: ReportedJob, order: int, card: Card) -> float | None:
    declared = job.declared_on(card)
    if not declared or order >= len(job.peak_mib):
        return None
    return min(1.0, job.peak_mib[order] / declared)


def _groups(row: list[Bar]) -> Iterable[list[Bar]]:
    """Bars in the order of their beginnings, apart wherever the GPU was free."""
    group: list[Bar] = []
    until = -math.inf
    for bar in row:
        if group and bar.began >= until:
            yield group
            group = []
        group.append(bar)
        until = max(until, bar.ended)
    if group:
        yield group


def _on_lanes(group: list[Bar]) -> list[Bar]:
    ends: list[float] = []
    lanes = []
    for bar in group:
        lane = next((lane for lane, end in enumerate(ends) if end <= bar.began), len(ends))
        ends[lane : lane + 1] = [bar.ended]
        lanes.append(lane)
    high = 1.0 / len(ends)
    placed = zip(group, lanes, strict=True)
    return [replace(bar, bottom=lane * high, top=(lane + 1) * high) for bar, lane in placed]


def memory_uses(jobs: Sequence[ReportedJob], cards: Sequence[Card], period: Period) -> list[MemoryUse]:
    """What was declared and used, by name and profile, of jobs of which both are known.

    Many names that are alike but for numbers, as in a sweep, count as one.
    """
    by_uuid = {card.uuid: card for card in cards}
    names = Counter(map(but_numbers, {job.name for job in jobs}))
    found: dict[tuple[str, str], list[_Held]] = {}
    for job in jobs:
        if job.ending != RUNNING:  # its peak may be yet to come
            began, ended = period.overlap(job)
            alike = but_numbers(job.name)
            key = (alike if names[alike] > _NAMED else job.name, job.profile)
            for uuid, peak in zip(job.gpus, job.peak_mib, strict=False):
                if declared := job.declared_on(by_uuid[uuid]):
                    found.setdefault(key, []).append((job, declared, peak, ended - began))
    uses = [_memory_use(profile, held) for (_, profile), held in found.items()]
    return sorted(uses, key=lambda use: (-use.saving_gib_h, use.name, use.profile))


def _memory_use(profile: str, held: list[_Held]) -> MemoryUse:
    name, *others = dict.fromkeys(job.name for job, _, _, _ in held)
    peaks = sorted(peak for _, _, peak, _ in held)
    most = max(declared for _, declared, _, _ in held)
    enough = min(most, _ROUND_MIB * max(1, math.ceil(peaks[-1] * _MARGIN / _ROUND_MIB)))
    saving_mib_s = sum(max(0, declared - enough) * held_s for _, declared, _, held_s in held)
    return MemoryUse(
        name=f"{name} and {len(others)} alike" if others else name, profile=profile,
        jobs=len({job.key for job, _, _, _ in held}), gpu_s=sum(held_s for _, _, _, held_s in held),
        declared_mib=most, is_whole=any(job.declared_mib is None for job, _, _, _ in held),
        typical_mib=quantile(peaks, 0.5), peak_mib=peaks[-1], enough_mib=enough,
        saving_gib_h=saving_mib_s / 1024 / 3600,
    )  # fmt: skip


def waits(jobs: Sequence[ReportedJob], of: Callable[[ReportedJob], str]) -> list[WaitTimes]:
    found: dict[str, list[float]] = {}
    for job in jobs:
        if job.waited_s is not None:
            found.setdefault(of(job), []).append(job.waited_s)
    made = [_waiting(name, sorted(waited)) for name, waited in found.items()]
    return sorted(made, key=lambda each: (-each.jobs, each.of))


def _waiting(name: str, waited: list[float]) -> WaitTimes:
    counts = [0] * len(WAITS)
    for each in waited:
        counts[next(place for place, (end, _) in enumerate(WAITS) if each < end)] += 1
    median, p90 = quantile(waited, 0.5), quantile(waited, 0.9)
    return WaitTimes(name, len(waited), median, p90, waited[-1], tuple(counts))


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value below which ``part`` of the values are, interpolated. ``ordered`` is sorted, not empty."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def endings(jobs: Sequence[ReportedJob], period: Period) -> list[EndingCount]:
    """How jobs ended, with the GPU time that they held in the period."""
    found: dict[str, list[ReportedJob]] = {}
    for job in jobs:
        found.setdefault(job.ending, []).append(job)
    made = [
        EndingCount(ending, len(some), sum(gpu_seconds(job, period) for job in some))
        for ending, some in found.items()
    ]
    return sorted(made, key=lambda each: (-each.jobs, each.ending))


def gpu_seconds(job: ReportedJob, period: Period) -> float:
    began, ended = period.overlap(job)
    return len(job.gpus) * (ended - began)
