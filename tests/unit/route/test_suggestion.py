"""The threshold that past jobs suggest, and when they suggest none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.record import replace
from slicer.route import suggestion
from slicer.route.past import table
from slicer.route.suggestion import Point, Suggestion, suggest
from tests.examples import examples
from tests.unit.route.past import HOUR, Past, part, probes, route

Scene = Callable[[Past], None]


def suggested(scene: Scene, vram_mib: int = 10240, margin: int = 10) -> Suggestion:
    past = Past()
    scene(past)
    of, rows = route(), table(past.found)
    return suggest(of, of.destinations[0], rows, probe=0, vram_mib=vram_mib, margin_percent=margin)


def clear(past: Past) -> None:
    past.line(60)


def few(past: Past) -> None:
    past.line(9)


def many_whose_memory_nobody_saw(past: Past) -> None:
    for number in range(50):
        past.gpu(60.0 * number)


def alike(past: Past) -> None:
    for number in range(30):
        past.gpu(600.0, 3000 + number)


def flat(past: Past) -> None:
    past.line(30, slope=0.01)


def flat_and_too_much(past: Past) -> None:
    past.line(30, base=9500, slope=0.01)


def falling(past: Past) -> None:
    for number in range(30):
        past.gpu(60.0 * (number + 1), 8000 - 100 * number)


def without_rule(past: Past) -> None:
    for number in range(60):
        past.gpu(60.0 * (number + 1), 3000 + 10000 * (number * 7919 % 60) // 60)


def small_ones_need_all(past: Past) -> None:
    past.line(30, base=9500)


def far_below(past: Past) -> None:
    past.line(30, last=600.0)


def largest_ran_out(past: Past) -> None:
    past.line(60, last=3000.0)
    for metric in (3010.0, 3100.0, 3200.0):
        past.out_of_memory(metric, 7000)


def only_failures(past: Past) -> None:
    for number in range(30):
        past.gpu(60.0 * number, 4000, exit_code=1)


# The scene, the verdict, the proposal, and words of the reason and the notes.
TABLE: list[tuple[Scene, str, str, tuple[str, ...]]] = [
    (clear, "threshold", 'threshold = "1h"', ("95% of jobs stay below 9.0G",)),
    (few, "too-few", "", ("9 GPU jobs", "10 are needed")),
    (many_whose_memory_nobody_saw, "too-few", "", ("0 GPU jobs succeeded with known GPU memory",)),
    (only_failures, "too-few", "", ("0 GPU jobs",)),
    (alike, "constant", "", ("all 30 jobs measured 10m: a line",)),
    (flat, "flat", "", ("do not grow with duration", "Up to 1h, memory sets no threshold")),
    (falling, "flat", "", ("do not grow",)),
    (flat_and_too_much, "nothing-fits", "", ("9.0G is less",)),
    (without_rule, "unrelated", "", ("duration does not show which jobs fit",)),
    (small_ones_need_all, "nothing-fits", "", ("even the smallest jobs, of 1m, need 9.4G",)),
    (far_below, "threshold", 'threshold = "20m"', ("allows 1h", "no input above 10m was seen: raise")),
    (largest_ran_out, "threshold", 'threshold = "50m"', ("too many jobs ran out", "the smallest at 50m10s")),
]


@pytest.mark.parametrize(
    ("scene", "verdict", "line", "words"), TABLE, ids=[each[0].__name__ for each in TABLE]
)
def test_a_threshold_is_proposed_where_the_past_speaks_for_one(
    scene: Scene, verdict: str, line: str, words: tuple[str, ...]
) -> None:  # C9
    found = suggested(scene)
    assert found.verdict == verdict
    assert found.config == (("[routes.whisper]", line) if line else ())
    assert (found.threshold is None) == (not line)
    told = " ".join((found.reason, *found.notes))
    assert all(word in told for word in words), told


def test_no_past_is_too_few() -> None:  # C9
    assert suggested(lambda past: None).verdict == "too-few"


@pytest.mark.parametrize(
    ("vram_mib", "margin", "line"), [(10240, 0, "1h8m"), (8192, 10, "44m"), (8192, 50, "17m")]
)
def test_it_follows_the_memory_and_the_margin(vram_mib: int, margin: int, line: str) -> None:  # C9
    found = suggested(clear, vram_mib=vram_mib, margin=margin)
    assert found.config[1] == f'threshold = "{line}"'
    assert found.line is not None
    assert found.threshold is not None
    assert found.line.at(found.threshold) <= found.limit_mib


def test_only_jobs_of_its_destination_count() -> None:  # C9
    def scene(past: Past) -> None:
        past.line(60)
        for number in range(60):
            past.gpu(60.0 * number, 20_000, destination="other")
            past.cpu(2 * HOUR)

    assert suggested(scene).config == suggested(clear).config


def test_jobs_that_still_run_or_were_stopped_do_not_set_the_line() -> None:  # C9
    def scene(past: Past) -> None:
        past.line(60)
        for number in range(30):
            past.add(None, metrics=(60.0 * number,))
            past.gpu(60.0 * number, 100, exit_code=143)

    found = suggested(scene)
    assert found.config == suggested(clear).config
    assert found.line is not None
    assert found.line.jobs == 60


def test_each_of_two_probes_has_a_threshold_of_its_own() -> None:  # C9
    past = Past()
    past.line(60)
    parts = part(up_to=(2.0**30, None)), part("cpu", up_to=(None, None))
    two = route(*parts, probes=probes("size", "duration"))
    rows = [
        replace(each, row=replace(each.row, metrics=(float(number * 7919 % 60 << 30), *each.row.metrics)))
        for number, each in enumerate(past.found)
    ]
    found = suggest(two, two.destinations[0], table(rows), probe=0, vram_mib=8192)
    assert found.verdict == "unrelated"
    found = suggest(two, two.destinations[0], table(rows), probe=1, vram_mib=10240)
    assert found.config == ("[routes.whisper]", 'threshold = ["1G", "1h"]')


def test_numbers_that_are_none_do_not_count() -> None:  # C9
    def scene(past: Past) -> None:
        past.line(60)
        for metric in (float("inf"), float("nan")):
            past.gpu(metric, 9000)

    assert suggested(scene).config == suggested(clear).config


def tried(times: int) -> Callable[[Past], None]:
    """One input of 40 minutes ran out of GPU memory so often, and the CPU was busy each time."""

    def scene(past: Past) -> None:
        past.line(60)
        for _ in range(times):
            job = past.gpu(2400.0, exit_code=1, input="one.wav")
            past.blocked(2400.0, after=job, input="one.wav")

    return scene


def test_an_input_that_is_tried_again_and_again_counts_once() -> None:  # C9, N5
    once, often = suggested(tried(1)), suggested(tried(40))
    assert once.threshold is not None
    assert (often.threshold, often.notes, often.line) == (once.threshold, once.notes, once.line)


def test_a_plot_has_the_jobs_that_ran_out_before_anybody_looked() -> None:  # C9, N5
    found = suggested(tried(1))
    assert [point.peak_mib for point in found.drawn if point.ran_out] == [found.limit_mib]


# -- the line ----------------------------------------------------------------------------------------------


def well(metric: float, peak: float) -> Point:
    return Point(metric, peak, ended_well=True, ran_out=False)


def cloud(jobs: int, spread: float = 100.0) -> list[Point]:
    """Jobs of 2000 MiB and 2 MiB for each second, and up to ``spread`` more."""
    chance = random.Random(7)
    metrics = [chance.uniform(60, 3600) for _ in range(jobs)]
    return [well(metric, 2000 + 2 * metric + chance.uniform(0, spread)) for metric in metrics]


@pytest.mark.parametrize("jobs", [10, 40, 400])
def test_most_jobs_stay_below_the_line_and_it_is_near_them(jobs: int) -> None:  # C9
    points = cloud(jobs)
    line = suggestion.upper_line(points)
    assert sum(point.peak_mib <= line.at(point.metric) + 1 for point in points) >= line.share * jobs
    assert line.at(1800) == pytest.approx(2000 + 2 * 1800 + 90, abs=60)
    assert line.jobs == jobs


@pytest.mark.parametrize("at", [61.0, 1800.0, 3599.0])
@pytest.mark.parametrize("peak", [20_000.0, 900_000.0])
def test_one_odd_job_does_not_turn_the_line(at: float, peak: float) -> None:  # C9
    line = suggestion.upper_line([*cloud(39), well(at, peak)])
    assert line.at(60) == pytest.approx(2120 + 90, abs=80)
    assert line.at(3600) == pytest.approx(9200 + 90, abs=80)
    assert line.highest_above_mib == pytest.approx(peak - line.at(at))


def test_of_few_jobs_all_are_below_the_line() -> None:  # C9
    assert suggestion.upper_line([*cloud(12), well(1800.0, 20_000.0)]).at(1800.0) == 20_000.0


@pytest.mark.parametrize(
    ("ooms", "most", "expected"),
    [
        ((), 100.0, 100.0),
        ((50.0,), 100.0, 100.0),  # one may be bad luck
        ((50.0, 60.0), 100.0, 100.0),  # 2 of 101 up to 99
        ((90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 97.0, 98.0), 100.0, 89.0),
        ((99.0, 99.0), 100.0, 98.0),  # few of all, but most of the largest
        ((90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 97.0, 98.0), 80.0, 80.0),
    ],
)
def test_a_threshold_stays_where_few_run_out_of_memory(
    ooms: tuple[float, ...], most: float, expected: float
) -> None:  # C9
    points = [well(float(number), 1.0) for number in range(100)]
    points += [Point(at, 1.0, ended_well=False, ran_out=True) for at in ooms]
    assert suggestion.without_ooms(points, most) == expected


def test_where_all_run_out_of_memory_there_is_no_threshold() -> None:  # C9
    assert suggestion.without_ooms([Point(5.0, 1.0, ended_well=False, ran_out=True)] * 3, 10.0) is None


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
    assert suggestion.rank_correlation(points) == pytest.approx(expected, abs=0.001)


@settings(database=None, max_examples=examples(100))  # the checkout may be read-only
@given(st.lists(st.builds(well, st.floats(0, 1e12), st.floats(1, 1e6)), min_size=3, max_size=30))
def test_no_jobs_make_it_fail(points: list[Point]) -> None:  # C9
    line = suggestion.upper_line(points)
    assert line.slope >= 0
    below = sum(point.peak_mib <= line.at(point.metric) * (1 + 1e-6) + 1 for point in points)
    assert below + line.above >= len(points)
