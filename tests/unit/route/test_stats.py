"""Decisions, counted."""

from __future__ import annotations

from slicer.route import past as stats
from slicer.route.past import DecisionCount, Spread, count, table
from tests.unit.route.past import HOUR, Past


def busy_day() -> Past:
    """Five inputs on the GPU, one of them again on the CPU; three on the CPU, one late; one in vain."""
    past = Past()
    for wait in (0.0, 0.0, 1.0, 9.0):
        past.gpu(600.0, 4000, waited_s=wait)
    past.out_of_memory(3000.0, 9000)
    past.cpu(2 * HOUR)
    past.cpu(3 * HOUR)
    for _ in range(3):
        past.blocked(4 * HOUR, input="late.mp4")
    past.cpu(4 * HOUR, input="late.mp4")
    past.blocked(5 * HOUR, input="never.mp4")
    past.add(None, result="too-large", metrics=(99 * HOUR,), destination="", mode="")
    past.add(None, result="probe-error", metrics=(), destination="", mode="", reason="no such stream")
    return past


def test_calls_and_inputs_are_counted_apart() -> None:  # C6
    found = stats.summary("whisper", table(busy_day().found), ("gpu", "cpu"))
    assert found.calls == DecisionCount(14, 11)
    assert found.retries == 3  # late.mp4: twice in vain, then well
    assert found.gpu == DecisionCount(5, 5)
    assert found.cpu == DecisionCount(3, 3)
    assert found.fallback == DecisionCount(1, 1)
    assert found.blocked == DecisionCount(4, 2)
    assert found.blocked_for_good == 1
    assert found.too_large == DecisionCount(1, 1)
    assert found.probe_error == DecisionCount(1, 1)
    assert found.last_probe_error == "no such stream"
    assert found.waited == Spread(0.0, 9.0)


def test_each_destination_has_its_own_figures() -> None:  # C6
    gpu, cpu, gone = stats.summary("whisper", table(busy_day().found), ("gpu", "cpu", "gone")).destinations
    assert (gpu.name, gpu.started, gpu.ran_out, gpu.failed) == ("gpu", DecisionCount(5, 5), 1, 0)
    assert gpu.vram_peak_mib == 9000
    assert (cpu.fallback, cpu.blocked) == (DecisionCount(1, 1), DecisionCount(4, 2))
    assert cpu.wall == Spread(10.0, 10.0)
    assert (gone.started, gone.waited) == (DecisionCount(0, 0), None)


def test_a_job_that_failed_is_retried_and_one_that_went_well_is_repeated() -> None:  # C6
    past = Past()
    for code in (1, 1, 0, 0):
        past.gpu(600.0, exit_code=code, input="a.mp4")
    found = stats.summary("whisper", table(past.found))
    assert found.calls == DecisionCount(4, 1)
    assert found.retries == 2
    assert found.destinations[0].failed == 2


def test_a_second_attempt_that_is_blocked_is_no_call() -> None:  # C6, C8
    past = Past()
    job = past.gpu(3000.0, exit_code=1, input="a.mp4")
    past.blocked(3000.0, input="a.mp4", after=job)
    found = stats.summary("whisper", table(past.found))
    assert (found.calls, found.retries, found.blocked) == (DecisionCount(1, 1), 0, DecisionCount(1, 1))
    assert found.blocked_for_good == 1
    assert found.destinations[0].ran_out == 1


def test_standard_inputs_are_told_apart_by_their_metrics() -> None:  # C6
    past = Past()
    for metric in (60.0, 60.0, 90.0):
        past.gpu(metric, input="-")
    assert count(table(past.found)) == DecisionCount(3, 2)


def test_the_same_input_with_other_options_is_another() -> None:  # C6
    past = Past()
    for model in ("small", "large"):
        past.gpu(60.0, input="a.mp4", command=("whisper", model, "a.mp4"))
    assert count(table(past.found)).inputs == 2


def test_the_spread_is_the_middle_and_the_nearest_rank() -> None:  # C6
    assert stats.spread([]) is None
    assert stats.spread([3.0]) == Spread(3.0, 3.0)
    assert stats.spread([float(each) for each in range(1, 101)]) == Spread(50.5, 95.0)
