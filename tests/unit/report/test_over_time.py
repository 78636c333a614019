"""What was held and used over time (X8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.report.over_time import Bins
from slicer.report.parts import Period
from tests.unit.report.jobs import PERIOD, job, report, series

_SPANS = st.tuples(st.floats(0, 6000), st.floats(1, 6000)).map(lambda drawn: (drawn[0], sum(drawn)))


def _near(*values: float) -> object:
    return pytest.approx(list(values))


@given(st.lists(_SPANS, max_size=5), st.floats(1, 5000))
def test_what_lasts_is_spread_over_intervals_without_loss(
    spans: list[tuple[float, float]], length: float
) -> None:
    period = Period(1000.0, 1000.0 + length)
    bins = Bins(period)
    assert sum(bins.lengths()) == pytest.approx(length)
    for began, ended in spans:
        bins.add(began, ended, 2.0)
        bins.add_series(began, (ended - began) / 4, [2.0] * 4, Period(0.0, 1e5))
    inside = sum(max(0.0, min(ended, period.ended) - max(began, period.began)) for began, ended in spans)
    assert sum(bins.sums) == pytest.approx(4 * inside, abs=1e-3)


def test_the_intervals_fit_the_period_and_the_last_may_be_shorter() -> None:
    bins = Bins(Period(0.0, 7 * 86400.0 + 100))
    assert (bins.step_s, len(bins.sums), bins.lengths()[-1]) == (3600.0, 169, 100.0)
    bins = Bins(PERIOD)
    bins.add(1030.0, 1060.0, 4.0)
    assert bins.means()[:2] == (2.0, 0.0)


def test_a_series_is_resampled() -> None:
    bins = Bins(PERIOD)  # of 60 s
    bins.add_series(1000.0, 90.0, [10.0, 40.0], PERIOD)
    assert list(bins.means()[:4]) == _near(10, 25, 40, 0)


def test_a_shared_gpu_is_held_once_and_its_utilisation_counts_once() -> None:
    found = report(
        job("a", ended=1120.0), job("b", began=1060.0, ended=1180.0),
        a=series(1000.0, 60.0, busy=(50, 80), mib=(1024, 2048)),
        b=series(1060.0, 60.0, busy=(80, 20), mib=(1024, 1024)),
    ).over_time  # fmt: skip
    assert list(found.gpus_held[:4]) == _near(1, 1, 1, 0)
    assert list(found.gpus_busy[:3]) == _near(0.5, 0.8, 0.2)
    assert found.gpus_busy[3] is None
    assert list(found.declared_gib[:4]) == _near(8, 16, 8, 0)
    assert list(found.used_gib[:3]) == _near(1, 3, 1)
    assert (found.held_s, found.measured_s, found.busy_s) == _near(180, 180, 90)


def test_what_was_not_measured_is_not_made_up() -> None:
    found = report(
        job("a", ended=1120.0), job("b", gpus=("GPU-b",), ended=1120.0),
        a=series(1000.0, 60.0, busy=(50, None)),
    ).over_time  # fmt: skip
    assert (found.gpus_held[0], found.gpus_busy[0], found.gpus_busy[1]) == (2.0, 0.5, None)
    assert (found.held_s, found.measured_s, found.busy_s) == _near(240, 60, 30)
    assert set(found.used_gib) == {None}


def test_cpu_slots_and_the_cpus_that_were_used() -> None:
    found = report(
        job("a", gpus=(), cpu_slots=2, ended=1060.0), job("b", gpus=(), cpu_slots=1, began=1030, ended=1060),
        a=series(1000.0, 30.0, cpu=(4.0, 2.0)),
    ).over_time  # fmt: skip
    assert (found.cpu_slots[:2], found.cpus_used[:2]) == ((2.5, 0.0), (3.0, None))


def test_what_a_user_tells_of_other_times_or_beyond_reason_does_not_count() -> None:  # S11
    found = report(
        job("a", began=1060.0, ended=1120.0), job("b", gpus=("GPU-b",), ended=1060.0),
        a=series(1000.0, 60.0, busy=(90, 50, 70), mib=(1024, 2048, 4096), cpu=(1.0, 2.0, 3.0)),
        b=series(1000.0, 60.0, busy=(101,), mib=(24577,), cpu=(1e12,)),
    ).over_time  # fmt: skip
    assert found.gpus_busy[:3] == (None, 0.5, None)
    assert found.used_gib[:3] == (None, 2.0, None)
    assert found.cpus_used[:3] == (None, 2.0, None)
