"""The line that most jobs stay below."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.route import fit
from slicer.route.fit import Point
from tests.examples import examples


def well(metric: float, peak: float) -> Point:
    return Point(metric, peak, ended_well=True, ran_out=False)


def failed(metric: float, peak: float, ran_out: bool = False) -> Point:
    return Point(metric, peak, ended_well=False, ran_out=ran_out)


def cloud(jobs: int, spread: float = 100.0, seed: int = 7) -> list[Point]:
    """Jobs of 2000 MiB and 2 MiB for each second, and up to ``spread`` more."""
    chance = random.Random(seed)
    metrics = [chance.uniform(60, 3600) for _ in range(jobs)]
    return [well(metric, 2000 + 2 * metric + chance.uniform(0, spread)) for metric in metrics]


@pytest.mark.parametrize("jobs", [10, 40, 400])
def test_most_jobs_stay_below_the_line_and_it_is_near_them(jobs: int) -> None:  # C9
    points = cloud(jobs)
    line = fit.upper_line(points)
    assert line.share == (0.9 if jobs < 40 else 0.95)
    assert sum(point.peak_mib <= line.at(point.metric) + 1 for point in points) >= line.share * jobs
    assert line.at(1800) == pytest.approx(2000 + 2 * 1800 + 90, abs=60)
    assert line.jobs == jobs


def test_memory_that_scatters_more_with_larger_inputs_is_followed() -> None:  # C9
    chance = random.Random(3)
    metrics = [chance.uniform(60, 3600) for _ in range(400)]
    points = [well(metric, 2000 + 2 * metric * (1 + chance.random() / 2)) for metric in metrics]
    large = [point for point in points if point.metric > 3000]
    line = fit.upper_line(points)
    assert sum(point.peak_mib > line.at(point.metric) for point in large) <= 0.1 * len(large)


@pytest.mark.parametrize("jobs", [9, 12, 39, 400])
@pytest.mark.parametrize("at", [61.0, 1800.0, 3599.0])
@pytest.mark.parametrize("peak", [20_000.0, 900_000.0])
def test_one_odd_job_does_not_turn_the_line(jobs: int, at: float, peak: float) -> None:  # C9
    line = fit.upper_line([*cloud(jobs), well(at, peak)])
    assert line.at(60) == pytest.approx(2120 + 45, abs=80)
    assert line.at(3600) == pytest.approx(9200 + 45, abs=80)
    assert (line.outliers, line.above >= 1) == (1, True)
    assert line.highest_above_mib == pytest.approx(peak - line.at(at))


def test_many_odd_jobs_are_no_exception() -> None:  # C9
    points = [*cloud(20), *(well(metric, 12_000) for metric in (300.0, 900.0, 1500.0, 2100.0, 3000.0))]
    line = fit.upper_line(points)
    assert line.outliers == 0
    assert line.at(1500) > 11_000


def test_a_job_that_failed_can_only_raise_the_line() -> None:  # C9
    points = cloud(30)
    before = fit.upper_line(points)
    low = [failed(metric, 100) for metric in (500.0, 1000.0, 3000.0)] * 5
    assert fit.upper_line([*points, *low]) == before
    high = [failed(metric, 14_000, ran_out=True) for metric in (3300.0, 3400.0, 3500.0, 3590.0)]
    raised = fit.upper_line([*points, *high])
    assert raised.lower_bounds == 4
    assert raised.at(3500) > before.at(3500) + 1000
    assert raised.jobs == 30


def test_a_line_does_not_fall() -> None:  # C9
    line = fit.upper_line([well(float(number), 9000 - 10 * number) for number in range(20)])
    assert line.slope == 0


@pytest.mark.parametrize(
    ("ooms", "most", "expected"),
    [
        ((), 100.0, 100.0),
        ((50.0,), 100.0, 100.0),  # one may be bad luck
        ((50.0, 60.0), 100.0, 100.0),  # 2 of 101 up to 99
        ((90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 97.0, 98.0), 100.0, 89.0),
        ((99.0, 99.0), 100.0, 98.0),  # few of all, but most of the largest
        ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), 100.0, 1.0),
        ((90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 97.0, 98.0), 80.0, 80.0),
    ],
)
def test_a_threshold_stays_where_few_run_out_of_memory(
    ooms: tuple[float, ...], most: float, expected: float
) -> None:  # C9
    points = [well(float(number), 1.0) for number in range(100)]
    points += [failed(at, 1.0, ran_out=True) for at in ooms]
    assert fit.without_ooms(points, most) == expected


def test_where_all_run_out_of_memory_there_is_no_threshold() -> None:  # C9
    assert fit.without_ooms([failed(5.0, 1.0, ran_out=True)] * 3, 10.0) is None


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 1), (2, 4), (3, 9), (4, 16)], 1.0),
        ([(1, 9), (2, 5), (3, 1)], -1.0),
        ([(1, 5), (2, 5), (3, 5)], 0.0),
        ([(1, 1), (1, 2), (2, 3), (2, 4)], 0.894),
    ],
)
def test_ranks_tell_how_well_the_metric_tells_the_memory(
    pairs: list[tuple[int, int]], expected: float
) -> None:  # C9
    points = [well(float(metric), float(peak)) for metric, peak in pairs]
    assert fit.rank_correlation(points) == pytest.approx(expected, abs=0.001)


@settings(database=None, deadline=None, max_examples=examples(100))  # the checkout may be read-only
@given(
    st.lists(
        st.builds(
            Point, st.floats(0, 1e12), st.floats(1, 1e6), ended_well=st.booleans(), ran_out=st.just(False)
        ),
        min_size=3,
        max_size=30,
    )
)
def test_no_jobs_make_it_fail(points: list[Point]) -> None:  # C9
    whole = fit.known(points)
    if len({point.metric for point in whole}) < 3 or len(whole) < 3:
        return
    line = fit.upper_line(points)
    assert line.slope >= 0
    below = sum(point.peak_mib <= line.at(point.metric) * (1 + 1e-6) + 1 for point in whole)
    assert below + line.above >= len(whole)
