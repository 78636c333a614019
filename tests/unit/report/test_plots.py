"""The plots of a report's page: the numbers beside them (X8)."""

from __future__ import annotations

import re

import pytest

from slicer.report import plots
from tests.unit.report.jobs import job, report, series


@pytest.mark.parametrize(
    ("cpus", "top"),
    [(0.0008, None), (0.3, "0.3"), (3.77, "4"), (12.0, "15"), (1234.0, "1,500")],
)
def test_the_top_of_a_plot_is_a_number_that_one_reads(cpus: float, top: str | None) -> None:
    figures = series(1000.0, 100.0, cpu=(cpus,) * 6)
    drawn = plots.drawn(report(job("a", gpus=()), a=figures), {}, "profile")
    found = re.search("CPUs used</h3><div class=\"row chart\"><span>(.*?)</span>", drawn)
    assert (found and found[1]) == top
