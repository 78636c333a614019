"""The tables of a report, from jobs (X8)."""

from __future__ import annotations

import pytest

from slicer.record import as_dict
from slicer.report import figures
from slicer.report.figures import WAITS
from slicer.report.parts import EndingCount, ReportedJob
from tests.unit.report.jobs import CARDS, PERIOD, job, report


def _bars(*jobs: ReportedJob) -> list[tuple[str, int, float, float, float, float]]:
    made = report(*jobs)
    return [
        (made.jobs[bar.job].id, bar.card, bar.began, bar.ended, round(bar.bottom, 3), round(bar.top, 3))
        for bar in made.bars
    ]


def test_each_gpu_of_a_job_has_a_bar_that_ends_with_the_period() -> None:
    both = job("a", gpus=("GPU-b", "GPU-a"), began=0.0, ended=9000.0, peak_mib=(4096, 16384))
    assert _bars(both) == [("a", 0, 1000.0, 4600.0, 0, 1), ("a", 1, 1000.0, 4600.0, 0, 1)]
    assert [bar.used for bar in report(both).bars] == [1.0, 0.5]  # at most all; in the order of its GPUs


def test_jobs_that_share_a_gpu_share_its_row_only_while_they_do() -> None:
    jobs = [
        job("a", began=1000, ended=1300), job("b", began=1100, ended=1200), job("c", began=1250, ended=1400),
        job("d", began=1400, ended=1500),
    ]  # fmt: skip
    assert _bars(*jobs) == [
        ("a", 0, 1000, 1300, 0, 0.5), ("b", 0, 1100, 1200, 0.5, 1), ("c", 0, 1250, 1400, 0.5, 1),
        ("d", 0, 1400, 1500, 0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, 0.25),
        ({"declared_mib": None}, 2048 / 24576),  # of a whole GPU
        ({"peak_mib": ()}, None),
        ({"gpus": ("GPU-gone",), "declared_mib": None}, None),  # whose memory is not known any more
    ],
)
def test_a_bar_tells_how_much_was_used(changes: dict[str, object], used: float | None) -> None:
    assert [bar.used for bar in report(job(**changes)).bars] == [used]


def test_only_jobs_of_the_period_count_and_gpus_that_are_gone_are_shown() -> None:
    made = report(
        job("before", began=0, ended=999), job("after", began=4601, ended=5000), job("in", gpus=("GPU-gone",))
    )
    assert [each.id for each in made.jobs] == ["in"]
    assert [card.label for card in made.cards] == ["GPU 0", "GPU 1", "GPU-gone"]


def test_the_saving_is_what_was_declared_above_the_highest_peak_and_a_tenth() -> None:
    jobs = [
        job("a", began=0.0, ended=4600.0), job("b", ended=9000.0, peak_mib=(3000,)),
        job("runs", ended=4600.0, peak_mib=(8000,), ending="running"), job("unknown", peak_mib=()),
        job("cpu", gpus=(), peak_mib=()), job("whole", name="all", declared_mib=None, peak_mib=(24000,)),
    ]  # fmt: skip
    used, whole = report(*jobs).memory
    # Enough are 3300 MiB, in steps of 512. Each job counts for the hour that it was in the period.
    assert as_dict(used) == {
        "name": "train", "profile": "gpu", "jobs": 2, "declared_mib": 8192, "is_whole": False,
        "typical_mib": 2524, "peak_mib": 3000, "enough_mib": 3584, "gpu_s": 7200, "saving_gib_h": 2 * 4.5,
    }  # fmt: skip
    assert (whole.is_whole, whole.declared_mib, whole.enough_mib) == (True, 24576, 24576)
    assert whole.saving_gib_h == 0


def test_a_sweep_is_one_row_with_its_count() -> None:  # X8
    sweep = [job(f"{n}", name=f"jobs.txt#{n}", peak_mib=(1024 + n,)) for n in range(1, 41)]
    few = [job(name, name=name, gpus=("GPU-b",)) for name in ("resnet-50", "resnet-101")]
    whole, *models = report(*sweep, *few).memory
    assert (whole.name, whole.jobs, whole.peak_mib) == ("jobs.txt#1 and 39 alike", 40, 1064)
    assert [use.name for use in models] == ["resnet-101", "resnet-50"]



def test_waiting_times_are_told_by_profile_and_user_as_quantiles_and_distribution() -> None:
    waited = [0.0, 0.5, 5.0, 30.0, 7200.0]
    jobs = [job(str(number), waited_s=each) for number, each in enumerate(waited)]
    made = report(*jobs, job("x", user="bob", profile="p"))
    ada, bob = made.by_user
    assert (ada.of, ada.jobs, ada.median_s, ada.longest_s) == ("ada", 5, 5.0, 7200.0)
    assert ada.p90_s == pytest.approx(30 + 0.6 * 7170)
    assert dict(zip((word for _, word in WAITS), ada.counts, strict=True)) == {
        "<1s": 2, "<10s": 1, "<1m": 1, "<10m": 0, "<1h": 0, "<6h": 1, "<1d": 0, "more": 0,
    }  # fmt: skip
    assert (bob.of, [each.of for each in made.by_profile]) == ("bob", ["gpu", "p"])


def test_endings_are_counted_with_the_gpu_time_that_was_held() -> None:
    made = report(
        job("a"), job("b", gpus=("GPU-a", "GPU-b"), ending="exit 1"), job("c", began=400, ending="exit 1"),
        job("d", gpus=(), ending="running"),
    )  # fmt: skip
    counts = EndingCount("exit 1", 2, 1800.0), EndingCount("ok", 1, 600.0), EndingCount("running", 1, 0.0)
    assert made.endings == counts
    assert [each.id for each in made.jobs if each.has_failed] == ["c", "b"]


def test_a_report_about_nothing_is_empty() -> None:
    made = figures.made([], CARDS, PERIOD, lambda ids: {})
    assert (made.jobs, made.bars, made.memory, made.by_user, made.endings) == ((), (), (), (), ())
    assert not any(made.over_time.gpus_held)
