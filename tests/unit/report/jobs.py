"""Jobs for reports: on two GPUs, with round numbers."""

from __future__ import annotations

from typing import Any

from slicer.outcome.series import GpuSeries, Series
from slicer.report import figures
from slicer.report.parts import Card, Period, Report, ReportedJob

CARDS = (Card("GPU-a", "GPU 0", 24576), Card("GPU-b", "GPU 1", 24576))
PERIOD = Period(1000.0, 4600.0)  # an hour


def job(id: str = "a", **changes: Any) -> ReportedJob:
    """A job on the first GPU from the beginning of the period on, for 600 seconds."""
    values = {
        "name": "train", "user": "ada", "profile": "gpu", "gpus": ("GPU-a",), "began": 1000.0,
        "ended": 1600.0, "waited_s": 0.0, "declared_mib": 8192, "peak_mib": (2048,), "cpu_slots": 0,
        "ending": "ok",
    }  # fmt: skip
    return ReportedJob(id=id, **{"key": id, **values, **changes})


def series(began: float, step_s: float, **values: Any) -> Series:
    """``busy`` and ``mib`` of one GPU, and ``cpu``; one value an interval."""
    busy = values.get("busy", ())
    count = len(busy or values.get("cpu", ()))
    none = (None,) * count
    mib = values.get("mib", none)
    return Series(
        started_at=began, step_s=step_s, cpu=values.get("cpu", none), memory_mib=none, read_mib=none,
        written_mib=none, stalled_cpu=none, stalled_memory=none, stalled_io=none,
        gpus=(GpuSeries(mib=mib, busy=busy or none),),
    )  # fmt: skip


def report(*jobs: ReportedJob, **found: Series) -> Report:
    """The report about these jobs; ``found``: their figures over time, by id."""
    return figures.made(jobs, CARDS, PERIOD, lambda ids: {id: found[id] for id in ids if id in found})
