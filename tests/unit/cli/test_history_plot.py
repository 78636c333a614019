"""`slicer history JOB --plot`: what a job used over time, in a terminal's columns. (X8)"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from slicer.cli import history_plot
from slicer.cli.history_plot import Plotted
from slicer.columns import ASCII, UNICODE, Glyphs, cell_count
from slicer.errors import SlicerError
from slicer.outcome.series import GpuSeries, Series

RISING = tuple(float(number) for number in range(1, 101))
NOTHING = (0.0,) * 100
UNKNOWN = (None,) * 100
SERIES = Series(
    1e9, 2.0, RISING, UNKNOWN, NOTHING, UNKNOWN, NOTHING, UNKNOWN, tuple(each / 200 for each in RISING),
    (GpuSeries((None, *(each * 100 for each in RISING[1:])), (50.0,) * 100),),
)  # fmt: skip


def drawn(width: int = 80, glyphs: Glyphs = UNICODE, most_mib: int | None = 20_000) -> list[str]:
    shown = history_plot.charts(SERIES, ("GPU 3",), most_mib)
    return [line.text for line in history_plot.lines("train", SERIES, shown, width, glyphs)]


def test_only_what_was_used_is_drawn() -> None:
    names = [chart.name for chart in history_plot.charts(SERIES, ("GPU 3",), None)]
    assert names == ["GPU 3 memory", "GPU 3 busy", "CPUs in use", "waits for IO"]


def test_memory_is_drawn_against_what_was_declared() -> None:
    """Half of it was used: of three rows the upper one stays empty."""
    upper, middle, lower = drawn()[2:5]
    assert upper.split() == ["GPU", "3", "memory", "19.5G", "▕"]
    assert middle.split()[:2] == ["peak", "9.8G"]
    assert "█" in lower
    assert "?" in lower  # the first value is unknown


@pytest.mark.parametrize("width", [30, 80, 120, 200])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_it_fits_the_terminal(width: int, glyphs: Glyphs) -> None:
    shown = drawn(width, glyphs)
    assert max(map(cell_count, shown)) <= max(width, 40)
    assert shown[-1].endswith("3m20s")
    if glyphs is ASCII:
        assert all(line.isascii() for line in shown)


def test_a_chart_rises_with_its_values() -> None:
    (row,) = (line for line in drawn(200) if line.lstrip().startswith("CPUs in use"))
    bar = row.split("▕")[1]
    assert bar.startswith(" ")
    assert list(bar) == sorted(bar, key=" ▁▂▃▄▅▆▇█".index)
    assert bar.endswith("█")


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG")):
        history_plot.show(Plotted("tr$ain", SERIES, ("GPU 3",), None), str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(start)
    assert sorted(os.listdir(tmp_path)) == ["a.PNG", "a.svg"]


def test_the_marks_of_its_axes_are_round(tmp_path: Path) -> None:  # X8
    pytest.importorskip("matplotlib")
    history_plot.show(Plotted("train", SERIES, ("GPU 3",), None), str(tmp_path / "a.svg"))
    told = re.findall("<!-- (.*) -->", (tmp_path / "a.svg").read_text())
    times = ["0s", "30s", "1m", "1m30s", "2m", "2m30s", "3m"]
    sizes, parts = ["0B", "4.0G", "8.0G"], ["0%", "50%", "100%"]
    assert [each for each in told if each[0].isdigit()] == [
        *sizes, *parts, "0.0", "50.0", "100.0", *times, *parts,
    ]  # fmt: skip
    assert sum(each.startswith("time since ") for each in told) == 1


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(SlicerError, match="no samples of train"):
        history_plot.show(Plotted("train", None, (), None), "")
    idle = Series(1e9, 1.0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ())
    with pytest.raises(SlicerError, match="nothing"):
        history_plot.show(Plotted("train", idle, (), None), "")
