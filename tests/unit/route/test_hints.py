"""What is said against a route's configuration, by what its jobs did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slicer.config.routes import Route
from slicer.outcome.decisions import PastDecision
from slicer.record import replace
from slicer.route import hints
from slicer.route.hints import Hint
from slicer.route.past import table
from slicer.route.suggestion import suggest
from tests.unit.route.past import HOUR, Past, part, probes, route

Scene = Callable[[Past], None]


def hints_of(past: list[PastDecision], of: Route) -> tuple[Hint, ...]:
    rows, found = table(past), hints.gpu_part(of)
    made = suggest(of, found[0], rows, probe=found[1], vram_mib=10240) if found else None
    return hints.hints(of, rows, made)


def said(scene: Scene) -> dict[str, tuple[str, tuple[str, ...]]]:
    past = Past()
    scene(past)
    return {hint.id: (hint.text, hint.config) for hint in hints_of(past.found, route())}


def nothing(past: Past) -> None:
    pass


def all_well(past: Past) -> None:
    past.line(40, slope=1.9)
    past.cpu(2 * HOUR)


def some_run_out(past: Past) -> None:
    for number in range(38):
        past.gpu(60.0 * number)
    for metric in (2400.0, 2700.0, 3500.0):
        past.out_of_memory(metric)


def one_of_many_ran_out(past: Past) -> None:
    for number in range(200):
        past.gpu(10.0 * number)
    past.out_of_memory(2100.0)


def ran_out_above_what_the_threshold_is_now(past: Past) -> None:
    for number in range(20):
        past.gpu(60.0 * number)
        past.out_of_memory(2 * HOUR)


def odd_ones_and_the_largest_ran_out(past: Past) -> None:
    for number in range(100):
        past.gpu(30.0 * number)
    past.out_of_memory(40.0)
    for metric in (3100.0, 3200.0, 3300.0):
        past.out_of_memory(metric)


def cpu_blocked(past: Past) -> None:
    past.line(40, last=1800.0)
    for number in range(6):
        past.blocked((1.2 + number) * HOUR, decided_at=10_000.0 + number)
    past.cpu(2 * HOUR, decided_at=20_000.0)


def cpu_blocked_without_figures(past: Past) -> None:
    for number in range(6):
        past.blocked((2 + number) * HOUR)


def same_input_blocked_again_and_again(past: Past) -> None:
    for _ in range(30):
        past.blocked(2 * HOUR, input="a.mp4")


# The scene, the only hint, and the lines for the configuration file. () where there is no hint.
TABLE: list[tuple[Scene, str, tuple[str, ...]]] = [
    (nothing, "", ()),
    (all_well, "", ()),
    (some_run_out, "gpu-out-of-memory", ("[routes.whisper]", 'threshold = "37m"')),
    (one_of_many_ran_out, "", ()),
    (ran_out_above_what_the_threshold_is_now, "", ()),
    (odd_ones_and_the_largest_ran_out, "gpu-out-of-memory", ("[routes.whisper]", 'threshold = "49m"')),
    (cpu_blocked, "cpu-blocked", ("[routes.whisper.cpu]", "max_jobs = 3")),
    (cpu_blocked_without_figures, "cpu-blocked", ("[routes.whisper.cpu]", "max_jobs = 3")),
    (same_input_blocked_again_and_again, "", ()),
]


@pytest.mark.parametrize(("scene", "hint", "lines"), TABLE, ids=[scene.__name__ for scene, *_ in TABLE])
def test_each_hint_comes_when_its_reason_is_there(
    scene: Scene, hint: str, lines: tuple[str, ...]
) -> None:  # C6
    found = said(scene)
    assert {key: config for key, (_, config) in found.items()} == ({hint: lines} if hint else {})


@pytest.mark.parametrize(
    ("scene", "hint", "words"),
    [
        (some_run_out, "gpu-out-of-memory", ("3 of 41 inputs", "smallest measured 40m", "threshold is 1h")),
        (cpu_blocked, "cpu-blocked", ("on the CPU 6 inputs were blocked and 1 ran",)),
        ],
)
def test_a_hint_says_its_reason_in_figures(scene: Scene, hint: str, words: tuple[str, ...]) -> None:  # C6
    text, _ = said(scene)[hint]
    assert all(word in text for word in words), text


def test_a_bound_of_many_destinations_is_written_where_it_stands() -> None:  # C6
    two = probes("duration", "pixels")
    parts = (part("small", up_to=(600.0, None)), part("large", up_to=(HOUR, 8e6)))
    rest = part("rest", mode="cpu", up_to=(None, None))
    many = route(*parts, rest, probes=two, sources={"to.small.up_to": "c:4", "to.large.up_to": "c:7"})
    past = Past()
    for number in range(38):
        past.gpu(60.0 * number, destination="large")
    for metric in (2400.0, 2700.0):
        job = past.gpu(metric, exit_code=1, destination="large")
        past.cpu(metric, result="fallback", after=job, destination="rest")
    # As they were with two probes.
    kinds = ("duration", "pixels")
    rows = [
        PastDecision(replace(each.row, kinds=kinds, metrics=(*each.row.metrics, 1e6)), each.job)
        for each in past.found
    ]
    (hint,) = hints_of(rows, many)
    assert hint.config == ("[routes.whisper.to.large]", 'up_to = ["37m", "8MP"]')


def test_a_route_that_measures_nothing_has_no_threshold_to_speak_of() -> None:  # C6
    bare = route(part(up_to=()), part("cpu", up_to=()), probes=())
    past = Past()
    for _ in range(20):
        past.out_of_memory(0.0)
    rows = [PastDecision(replace(each.row, kinds=(), metrics=(), bounds=()), each.job) for each in past.found]
    assert hints_of(rows, bare) == ()
