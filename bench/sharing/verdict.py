"""Does the lock help here? In words, from the figures. Pure."""

from __future__ import annotations

from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from bench.sharing.figures import Batch, Latency, Row

    Kind = Literal["helps", "costs", "as-good", "worse", "unknown"]

_BETTER = 0.9  # of the unmanaged P99: what is closer counts as the same
_WORTH = 0.9  # of the unmanaged throughput: a smaller loss is no price
_GOOD_ENOUGH = 1.3  # times alone: a tail that needs no lock


@record
class Verdict:
    """``scenario`` is the one it is about, "" for none.

    ``kind``: helps; costs (it helps the latency job, and the batch jobs pay for it); as-good (the driver's
    own time-slicing is); worse; unknown (what it needs was not measured).
    """

    kind: Kind
    scenario: str
    text: str


def judge(rows: Sequence[Row]) -> Verdict:
    """The best of the scenarios with the lock, against no lock.

    The best has the shortest tail; of those that are about as short, it does the most work.
    """
    both = {row.name: (row, row.latency, row.batch) for row in rows if row.latency and row.batch}
    base = both.pop(UNMANAGED, None)
    managed = [each for name, each in both.items() if name not in (ALONE, ALONE_LOCKED)]
    applied = [(row.name, latency, batch) for row, latency, batch in managed if not row.troubles]
    if base is None:
        return Verdict("unknown", "", "No verdict: the jobs were not measured together without the lock.")
    if not applied:
        why = "the lock was not applied" if managed else "no mode of the lock was measured"
        return Verdict("unknown", "", f"No verdict: {why}.")
    shortest = min(latency.p99_ms for _, latency, _ in applied)
    short = [each for each in applied if each[1].p99_ms * _BETTER <= shortest]
    return _compared(*max(short, key=lambda each: each[2].per_s), *base[1:])


def _compared(name: str, latency: Latency, batch: Batch, base: Latency, base_batch: Batch) -> Verdict:
    tail = latency.p99_ms / base.p99_ms if base.p99_ms > 0 else 1.0
    kept = batch.per_s / base_batch.per_s if base_batch.per_s > 0 else 1.0
    tails = f"P99 {_ms(latency)} under {name}, {_ms(base)} unmanaged"
    works = f"the batch jobs do {kept:.0%} of what they do unmanaged"
    if tail >= 1 / _BETTER and _apart(base, latency):
        return Verdict("worse", name, f"The lock makes it worse here: {tails}. Leave it off.")
    if tail > _BETTER or not _apart(latency, base):
        why = "" if tail > _BETTER else ", a difference that repetitions have among themselves, too"
        good = "; that is short enough" if (base.of_alone or 9) <= _GOOD_ENOUGH else ""
        same = f"The driver's own time-slicing is as good here: {tails}{why}{good}; {works}."
        return Verdict("as-good", name, same)
    if kept < _WORTH:
        return Verdict("costs", name, f"The lock helps the latency job, at a price: {tails}; {works}.")
    return Verdict("helps", name, f"The lock helps here: {tails}; {works}.")


def _apart(lower: Latency, higher: Latency) -> bool:
    """Whether all repetitions of the one have a shorter tail than all of the other."""
    return max(lower.p99_of_each_ms) < min(higher.p99_of_each_ms)


def _ms(found: Latency) -> str:
    times = "" if found.of_alone is None else f" ({found.of_alone:.1f} times alone)"
    return f"{found.p99_ms:.3g} ms{times}"
