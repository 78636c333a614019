"""Jobs as dots in text."""

from __future__ import annotations

import pytest

from slicer.route import scatter
from slicer.route.suggestion import suggest
from tests.unit.route.past import Past, route


def drawn(past: Past, width: int = 60, height: int = 10) -> list[str]:
    of = route()
    found = suggest(of, of.destinations[0], past.found, probe=0, vram_mib=10240)
    return scatter.lines(found, width, height, scatter.ASCII)


def test_jobs_line_limit_and_threshold_are_drawn() -> None:  # C9
    past = Past()
    past.line(30, last=3000.0)
    past.out_of_memory(3500.0, 9000)
    past.gpu(600.0, 7000, exit_code=1)
    lines = drawn(past)
    plot = "\n".join(lines[:10])
    assert plot.count("x") == 1
    assert plot.count("^") == 1
    assert plot.count("!") >= 5
    assert all(mark in plot for mark in "./-")
    assert lines[0].lstrip().startswith("9.0G |")
    assert "duration" in lines[11]
    assert all(len(line) <= 60 for line in lines)


@pytest.mark.parametrize("width", [1, 30, 200])
@pytest.mark.parametrize("jobs", [2, 12])
def test_any_width_will_do(width: int, jobs: int) -> None:  # C9
    past = Past()
    past.line(jobs)
    assert len(drawn(past, width)) >= 14


def test_nothing_is_drawn_of_nothing() -> None:  # C9
    assert drawn(Past()) == []


def test_one_job_at_zero_is_drawn() -> None:  # C9
    past = Past()
    past.gpu(0.0, 1)
    assert drawn(past)
