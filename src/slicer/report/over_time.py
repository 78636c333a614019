"""What was held and used in each interval of a report's period. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from slicer.outcome.series import Series
from slicer.quantity import MAX_CPU
from slicer.report.parts import Card, OverTime, Period, ReportedJob

Values = Sequence[float | None]
ReadSeries = Callable[[Sequence[str]], dict[str, Series]]

_HOURS = (1, 2, 4, 12, 24, 7 * 24, 28 * 24, 91 * 24, 364 * 24)
_STEPS_S = (1, 10, 60, 300, 900, 1800, *(hours * 3600 for hours in _HOURS))
_MOST = 180  # intervals
_LARGEST_MIB = 1 << 20  # of one GPU
_AT_ONCE = 200  # jobs whose series are in memory


def step_of(period: Period, most: int) -> int:
    """The shortest usual length, in seconds, of which a period has at most so many."""
    span = period.ended - period.began
    return next((step for step in _STEPS_S if span / step <= most), _STEPS_S[-1])


class Bins:
    """Sums over intervals of values that last for a time."""

    def __init__(self, period: Period) -> None:
        self.began, self.ended = period.began, period.ended
        self.step_s = float(step_of(period, _MOST))
        self.sums = [0.0] * max(1, int(-(-(period.ended - period.began) // self.step_s)))

    def lengths(self) -> list[float]:
        last = self.ended - self.began - (len(self.sums) - 1) * self.step_s
        return [*[self.step_s] * (len(self.sums) - 1), last]

    def means(self) -> tuple[float, ...]:
        return tuple(
            total / length if length else 0.0
            for total, length in zip(self.sums, self.lengths(), strict=True)
        )  # fmt: skip

    def add(self, began: float, ended: float, value: float) -> None:
        """Something that was ``value`` from ``began`` to ``ended``."""
        for place, start, end in self._parts(began, ended):
            self.sums[place] += value * (end - start)

    def add_series(self, began: float, step_s: float, values: Sequence[float], job: Period) -> None:
        """The same for values that each last for ``step_s``, the first from ``began``; only within a time."""
        totals = [0.0, *accumulate(values)]
        ended = began + step_s * len(values)
        for place, start, end in self._parts(max(began, job.began), min(ended, job.ended)):
            low, high = (start - began) / step_s, (end - began) / step_s
            self.sums[place] += (_at(totals, high) - _at(totals, low)) * step_s

    def _parts(self, began: float, ended: float) -> list[tuple[int, float, float]]:
        """The intervals that a time touches, with the beginning and the end of its part in each."""
        began, ended = max(began, self.began), min(ended, self.ended)
        if began >= ended:
            return []
        first = int((began - self.began) / self.step_s)
        last = min(int((ended - self.began) / self.step_s), len(self.sums) - 1)
        return [
            (place, max(began, self.began + place * self.step_s),
             min(ended, self.began + (place + 1) * self.step_s) if place < last else ended)
            for place in range(min(first, last), last + 1)
        ]  # fmt: skip


def _at(totals: Sequence[float], place: float) -> float:
    """A running total between two of its values."""
    low = min(int(place), len(totals) - 1)
    high = min(low + 1, len(totals) - 1)
    return totals[low] + (place - low) * (totals[high] - totals[low])


class _Measured:
    """Sums of measured values, and for how long there were any."""

    def __init__(self, period: Period) -> None:
        self.values, self.known = Bins(period), Bins(period)

    def add(self, job: ReportedJob, series: Series, values: Values, most: float) -> None:
        """Users tell their own figures: none counts above ``most``, or while the job did not run."""
        own = Period(job.began, job.ended)
        believed = [value if value is not None and value <= most else None for value in values]
        self.values.add_series(series.started_at, series.step_s, [value or 0.0 for value in believed], own)
        known = [float(value is not None) for value in believed]
        self.known.add_series(series.started_at, series.step_s, known, own)

    def means(self, scale: float) -> tuple[float | None, ...]:
        """The mean of each interval, with all jobs together. None: nothing is known of it."""
        return tuple(
            mean / scale if known else None
            for mean, known in zip(self.values.means(), self.known.sums, strict=True)
        )  # fmt: skip


def made(jobs: Sequence[ReportedJob], cards: Sequence[Card], period: Period, series: ReadSeries) -> OverTime:
    """What the jobs held and used. ``series`` returns their figures over time, by their keys."""
    by_uuid = {card.uuid: card for card in cards}
    declared, slots = Bins(period), Bins(period)
    for job in jobs:
        mib = sum(job.declared_on(by_uuid[uuid]) for uuid in job.gpus)
        declared.add(job.began, job.ended, mib / 1024)
        slots.add(job.began, job.ended, job.cpu_slots)
    memory, cpus = _Measured(period), _Measured(period)
    busy = {card.uuid: _Measured(period) for card in cards}
    for at in range(0, len(jobs), _AT_ONCE):
        some = jobs[at : at + _AT_ONCE]
        found = series([job.key for job in some])
        for job in some:
            if job.key in found:
                cpus.add(job, found[job.key], found[job.key].cpu, MAX_CPU)
                for uuid, gpu in zip(job.gpus, found[job.key].gpus, strict=False):
                    memory.add(job, found[job.key], gpu.mib, by_uuid[uuid].memory_mib or _LARGEST_MIB)
                    busy[uuid].add(job, found[job.key], gpu.busy, 100)
    held = {card.uuid: _held(jobs, card.uuid, period) for card in cards}
    parts = [_busy(held[uuid], busy[uuid]) for uuid in held]
    sums = [tuple(part[place] for part in parts) for place in range(len(slots.sums))]
    lengths = slots.lengths()
    return OverTime(
        began=period.began, step_s=slots.step_s, ended=period.ended,
        gpus_held=_added([bins.means() for bins in held.values()], len(slots.sums)),
        gpus_busy=tuple(map(_known_sum, sums)), declared_gib=declared.means(),
        used_gib=memory.means(1024), cpu_slots=slots.means(), cpus_used=cpus.means(1.0),
        held_s=sum(sum(bins.sums) for bins in held.values()),
        measured_s=sum(
            bins.sums[place] for part, bins in zip(parts, held.values(), strict=True)
            for place, value in enumerate(part) if value is not None
        ),
        busy_s=sum((_known_sum(each) or 0.0) * length for each, length in zip(sums, lengths, strict=True)),
    )  # fmt: skip


def _held(jobs: Sequence[ReportedJob], uuid: str, period: Period) -> Bins:
    """How long a GPU was held, by one job or several. ``jobs`` are in the order of their beginnings."""
    bins, free_from = Bins(period), period.began
    for job in jobs:
        if uuid in job.gpus:
            bins.add(max(job.began, free_from), job.ended, 1.0)
            free_from = max(free_from, job.ended)
    return bins


def _busy(held: Bins, measured: _Measured) -> list[float | None]:
    """How much of a GPU computed for those who held it. Jobs that share it all measured the whole GPU."""
    shares = zip(held.means(), measured.values.sums, measured.known.sums, strict=True)
    return [total / known / 100 * mean if known and mean else None for mean, total, known in shares]


def _known_sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _added(rows: Sequence[Sequence[float]], length: int) -> tuple[float, ...]:
    return tuple(map(sum, zip(*rows, strict=True))) if rows else (0.0,) * length
