"""What is said of the lock, from figures: no better than they are."""

from __future__ import annotations

import pytest

from bench.sharing import figures, planning
from bench.sharing.model import ALONE, UNMANAGED, Run
from bench.sharing.verdict import judge
from slicer.record import replace
from tests.unit.bench.made_up import CALIBRATION, PARAMETERS, run, runs, sharing

ALONES = [run(ALONE, 1.0), run(ALONE, done=4000)]
OFF = runs(UNMANAGED, 3.0, 3.1, 2.9, done=3000)

CASES = {
    "helps": runs("yield", 1.2, 1.3, 1.1, done=3000),
    "costs": runs("yield", 1.2, 1.3, 1.1, done=2000),
    "worse": runs("yield", 6.0, 7.0, 5.0, done=3000),
    "as-good": runs("yield", 2.9, 3.0, 2.8, done=3000),
    "unknown": runs("yield", 1.2, 1.3, 1.1, done=3000, told=sharing("mps")),
}


def verdict(made: list[Run], *modes: str) -> tuple[str, str, str]:
    parameters = replace(PARAMETERS, modes=modes or ("yield",))
    found = judge(figures.rows(parameters, CALIBRATION, planning.scenarios(parameters), made))
    return found.kind, found.scenario, found.text


@pytest.mark.parametrize("kind", CASES)
def test_the_verdict_is_the_figures(kind: str) -> None:  # D4
    assert verdict([*ALONES, *OFF, *CASES[kind]])[0] == kind


def test_the_verdict_says_what_it_rests_on() -> None:  # D4
    text = verdict([*ALONES, *OFF, *CASES["helps"]])[2]
    assert "P99 1.2 ms (1.2 times alone) under yield, 3 ms (3.0 times alone) unmanaged" in text
    assert "100% of what they do unmanaged" in text


def test_a_difference_within_that_of_repetitions_is_none() -> None:  # D4
    spread = runs(UNMANAGED, 1.0, 3.0, 5.0, done=3000), runs("yield", 1.1, 2.0, 4.0, done=3000)
    kind, _, text = verdict([*ALONES, *spread[0], *spread[1]])
    assert kind == "as-good"
    assert "repetitions" in text


def test_of_modes_that_are_about_as_short_the_one_with_more_work_is_judged() -> None:  # D4
    made = [*ALONES, *OFF, *runs("yield", 1.25, 1.25, done=3000), *runs("each", 1.2, 1.2, done=900)]
    assert verdict(made, "yield", "each")[:2] == ("helps", "yield")


@pytest.mark.parametrize("made", [[], ALONES, [*ALONES, *OFF], [*ALONES, *CASES["helps"]]])
def test_without_figures_there_is_no_verdict(made: list[Run]) -> None:  # D4
    kind, scenario, text = verdict(made)
    assert (kind, scenario) == ("unknown", "")
    assert text.startswith("No verdict")
