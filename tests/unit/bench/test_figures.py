"""Figures from runs: known answers, and ratios that are those of the right baselines."""

from __future__ import annotations

import pytest

from bench.sharing import figures
from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED, Run, Scenario
from slicer.record import replace
from tests.unit.bench.made_up import CALIBRATION, PARAMETERS, run, runs, sharing

BOTH = Scenario("yield", latency=True, batch=True, share="lock", mode="yield")
OFF = Scenario(UNMANAGED, latency=True, batch=True, share="off")
ALONES = [
    Scenario(name, latency=is_latency, batch=not is_latency, share="off")
    for name in (ALONE, ALONE_LOCKED)
    for is_latency in (True, False)
]


def rows(made: list[Run]) -> dict[str, figures.Row]:
    found = figures.rows(PARAMETERS, CALIBRATION, [*ALONES, OFF, BOTH], made)
    return {row.name: row for row in found}


def test_a_figure_is_the_median_of_the_repetitions_figures() -> None:  # D4
    latency = rows([run(ALONE, 1.0), run(ALONE, 9.0), run(ALONE, 2.0)])[ALONE].latency
    assert latency is not None
    assert (latency.p50_ms, latency.p99_ms, latency.max_ms) == (2.0, 2.0, 9.0)
    assert latency.p99_of_each_ms == (1.0, 9.0, 2.0)


def test_ratios_are_to_the_job_alone_to_unmanaged_and_to_what_is_left() -> None:  # D4
    made = [run(ALONE, 1.0), run(ALONE, done=4000), *runs(UNMANAGED, 3.0, done=3000)]
    made += runs("yield", 1.5, done=3420)
    latency, batch = rows(made)["yield"].latency, rows(made)["yield"].batch
    assert latency is not None
    assert batch is not None
    assert (latency.of_alone, latency.of_unmanaged) == pytest.approx((1.5, 0.5))
    assert batch.per_s == 1710
    assert batch.of_alone == pytest.approx(0.855)
    # 1 ms of GPU time every 10 ms is gone, so 90 % are left.
    assert batch.of_left == pytest.approx(0.95)


def test_requests_that_are_not_served_leave_their_time_to_the_batch_job() -> None:  # D4
    made = [run(ALONE, done=4000), run("yield", *[5.0] * 50, due=100, done=3800)]
    row = rows(made)["yield"]
    assert row.latency is not None
    assert row.batch is not None
    assert row.latency.served == 0.5
    assert row.batch.of_left == pytest.approx(0.95 / 0.95)


def test_a_latency_job_that_needs_all_of_the_gpu_leaves_nothing() -> None:  # D4
    made = [run(ALONE, done=4000), *runs("yield", 1.0, done=10)]
    found = figures.rows(PARAMETERS, replace(CALIBRATION, request_ms=12.0), [*ALONES, BOTH], made)
    batch = found[-1].batch
    assert batch is not None
    assert batch.of_left is None


def test_batch_jobs_are_added_up_and_runs_without_figures_are_left_out() -> None:  # D4
    two = Run("yield", None, (run("yield", done=2000).batch[0], run("yield", done=1000).batch[0]))
    row = rows([two, Run("yield", None, (), error="the GPU is gone")])["yield"]
    assert row.batch is not None
    assert row.batch.per_s == 1500
    assert (row.runs, row.errors) == (1, ("the GPU is gone",))


def test_a_lock_that_was_not_applied_is_told() -> None:  # D4, D5
    told = sharing("mps")
    row = rows(runs("yield", 1.0, 2.0, done=1, told=told))["yield"]
    assert row.troubles == ("mps",)
    assert row.turns == 4 * 7
    assert rows([])["yield"].turns is None
