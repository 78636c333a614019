"""Sums over many jobs, for ``slicer history --by``.

The rows stream from SQLite through :func:`add_up`: 1,000,000 jobs take about two seconds. A job that ends
meanwhile waits with its row until then; its lease is free already.
"""

from __future__ import annotations

from array import array
from statistics import median
from typing import TYPE_CHECKING, Any

from slicer.outcome import history
from slicer.outcome import history_schema as schema

if TYPE_CHECKING:
    from collections.abc import Iterable

# A day is of local time, and a job belongs to the day on which it began.
_KEYS = {
    "profile": "profile", "name": "name", "day": "date(started_at, 'unixepoch', 'localtime')", "user": "uid",
    "gpu": "gpu.value",
}  # fmt: skip
BY = tuple(_KEYS)
_COUNT = f"SELECT count(*) FROM outcomes WHERE {schema.FILTERS}"
_ROWS = f"""\
SELECT {{key}}, 1, json_array_length(gpus), wall_s, cpu_s, waited_s,
    CASE WHEN instr(vram_peak_mib, ',') THEN (SELECT max(value) FROM json_each(vram_peak_mib))
        WHEN vram_peak_mib != '[]' THEN CAST(substr(vram_peak_mib, 2) AS INTEGER) END,
    vram_mib, {schema.FAILED}
FROM outcomes WHERE {schema.FILTERS}"""
_ROWS_BY_GPU = f"""\
SELECT {{key}}, gpu.key = 0, 1, wall_s, cpu_s / json_array_length(gpus), waited_s,
    json_extract(vram_peak_mib, '$[' || gpu.key || ']'), vram_mib, {schema.FAILED}
FROM outcomes, json_each(gpus) AS gpu WHERE {schema.FILTERS}"""
_LAST_INDICES = """\
SELECT gpu.value, json_extract(gpu_indices, '$[' || gpu.key || ']') FROM outcomes, json_each(gpus) AS gpu
WHERE gpu_indices != '[]' AND outcomes.id > (SELECT max(id) FROM outcomes) - 1000 ORDER BY outcomes.id"""


class Sum:
    """The sum of some jobs. Of a job on several GPUs, each GPU gets the run and a part of its CPU time."""

    def __init__(self, of: str | None = None) -> None:
        self.of = of  # the profile, name, day, uid or GPU's UUID; None: of all
        self.failed = 0  # how many of them
        self.gpu_s = 0.0  # the time, for each GPU held
        self.cpu_s = 0.0
        self.waits = array("d")  # in seconds, one for each job
        self.vram_peak_mib: int | None = None  # the most that a job used on one GPU; None: unknown
        self.vram_mib: int | None = None  # the most that a job declared for each GPU
        self.vram_part: float | None = None  # the most of its own declaration that a job used; 1.0: all of it

    @property
    def runs(self) -> int:
        return len(self.waits)

    @property
    def waited_median_s(self) -> float:
        return median(self.waits or (0.0,))

    @property
    def waited_longest_s(self) -> float:
        return max(self.waits, default=0.0)

    def saw(self, peak: int | None, declared: int | None, part: float | None) -> None:
        """Take these as the most so far, if they are. None: unknown."""
        self.vram_peak_mib = max(self.vram_peak_mib or 0, peak) if peak is not None else self.vram_peak_mib
        self.vram_mib = max(self.vram_mib or 0, declared) if declared is not None else self.vram_mib
        self.vram_part = max(self.vram_part or 0.0, part) if part is not None else self.vram_part


def add_up(rows: Iterable[tuple[Any, ...]]) -> tuple[list[Sum], Sum]:
    """The sum of each key, the most GPU time first, and the sum of all.

    A row: key, whether this is its job's first row, number of GPUs, seconds, CPU seconds (None: unknown),
    seconds waited, peak and declared MiB of GPU memory (None: unknown), whether the job failed.
    """
    sums: dict[Any, Sum] = {}
    total = Sum()
    for key, is_first, gpus, held_s, cpu_s, waited_s, peak, declared, failed in rows:
        found = sums.get(key)
        if found is None:
            found = sums[key] = Sum(str(key))
        found.failed += failed
        found.gpu_s += gpus * held_s
        found.cpu_s += cpu_s or 0.0
        found.waits.append(waited_s)
        if is_first:
            total.failed += failed
            total.waits.append(waited_s)
        if peak is not None or declared is not None:
            found.saw(peak, declared, peak / declared if declared and peak is not None else None)
    for found in sums.values():
        total.gpu_s += found.gpu_s
        total.cpu_s += found.cpu_s
        total.saw(found.vram_peak_mib, found.vram_mib, found.vram_part)
    return sorted(sums.values(), key=lambda each: (-each.gpu_s, -each.cpu_s, str(each.of))), total


def statement(by: str) -> str:
    """Select the rows of :func:`add_up` from outcomes. By GPU, only jobs that held some count."""
    return (_ROWS_BY_GPU if by == "gpu" else _ROWS).format(key=_KEYS[by])


def sums(path: str, by: str, **filters: Any) -> tuple[list[Sum], Sum]:
    """The sums of this history's jobs by one of :data:`BY`, and the sum of all.

    ``filters`` are arguments of :func:`slicer.outcome.history_schema.filters`. Raises StateError.
    """
    found: tuple[list[Sum], Sum]
    found = history.select(path, statement(by), schema.filters(**filters), add_up)
    return found


def count(path: str, **filters: Any) -> int:
    """The number of outcomes; ``filters`` as in :func:`sums`. Raises StateError."""
    return sum(row[0] for row in history.select(path, _COUNT, schema.filters(**filters)))


def last_indices(path: str) -> dict[str, int]:
    """The indices that the GPUs had last, by UUID, as far as the last jobs show them. Raises StateError."""
    return dict(history.select(path, _LAST_INDICES, ()))
