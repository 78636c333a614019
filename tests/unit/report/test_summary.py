"""The report's summary says what was measured, and nothing else (X8)."""

from __future__ import annotations

from slicer.report.summary import summary
from tests.unit.report.jobs import job, report, series


def test_a_summary_says_how_jobs_ended_what_was_held_who_waited_and_what_was_not_needed() -> None:
    made = report(
        job("a", ended=4600.0, waited_s=60.0), job("b", gpus=("GPU-b",), user="bob", ending="exit 1"),
        job("c", gpus=(), ending="running", waited_s=None), a=series(1000.0, 3600.0, busy=(40,)),
    )  # fmt: skip
    assert summary(made) == [
        "3 jobs of 2 users: 1 ended well, 1 failed, 1 still running.",
        "2 GPUs were held 58% of the time (1.2 GPU-hours); while held, they were 40% busy, as far as that "
        "was measured (86% of those hours).",
        "Jobs that failed held GPUs for 0.17 hours.",
        "Half of the jobs waited 30s at most, nine of ten 54s; the longest wait was 1m.",
        "6 GiB-hours of GPU memory were held without need, the largest part by train: it declares 8.0G, and "
        "2.5G would have been enough.",
    ]


def test_a_summary_leaves_out_what_there_was_not() -> None:
    assert summary(report()) == ["No job ran in this time."]
    assert summary(report(job(gpus=(), ending="unknown"))) == [
        "1 job of 1 user: 1 ended in an unknown way.", "No job waited for a second.",
    ]  # fmt: skip
