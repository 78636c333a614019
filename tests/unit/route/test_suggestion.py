"""The threshold that past jobs speak for, and when they speak for none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slicer.record import replace
from slicer.route import scatter
from slicer.route.scatter import ASCII
from slicer.route.suggestion import Suggestion, suggest
from tests.unit.route.past import HOUR, Past, part, probes, route

Scene = Callable[[Past], None]


def suggested(scene: Scene, vram_mib: int = 10240, margin: int = 10) -> Suggestion:
    past = Past()
    scene(past)
    of = route()
    return suggest(of, of.destinations[0], past.found, probe=0, vram_mib=vram_mib, margin_percent=margin)


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
    (many_whose_memory_nobody_saw, "too-few", "", ("0 GPU jobs ended well with known GPU memory",)),
    (only_failures, "too-few", "", ("0 GPU jobs",)),
    (alike, "constant", "", ("all 30 jobs measured 10m: a line",)),
    (flat, "flat", "", ("do not grow with duration", "Up to 1h memory sets no threshold")),
    (falling, "flat", "", ("do not grow",)),
    (flat_and_too_much, "nothing-fits", "", ("9.0G is less",)),
    (without_rule, "unrelated", "", ("duration does not tell which jobs fit",)),
    (small_ones_need_all, "nothing-fits", "", ("the smallest jobs, of 1m, need 9.4G already",)),
    (far_below, "threshold", 'threshold = "20m"', ("allows 1h", "nothing above 10m was seen: go up")),
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


def test_a_probe_that_tells_more_is_named() -> None:  # C9
    past = Past()
    past.line(60)
    parts = part(up_to=(2.0**30, None)), part("cpu", up_to=(None, None))
    two = route(*parts, probes=probes("size", "duration"))
    rows = [
        replace(each, row=replace(each.row, metrics=(float(number * 7919 % 60 << 30), *each.row.metrics)))
        for number, each in enumerate(past.found)
    ]
    found = suggest(two, two.destinations[0], rows, probe=0, vram_mib=8192)
    assert found.verdict == "unrelated"
    assert any("duration tells more" in note and "--probe 2" in note for note in found.notes)
    found = suggest(two, two.destinations[0], rows, probe=1, vram_mib=10240)
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
    assert any(ASCII.ran_out in line for line in scatter.lines(found, 80, 16, ASCII)[:16])
    assert f"{ASCII.ran_out} ran out of GPU memory" in "\n".join(scatter.lines(found, 80, 16, ASCII))
