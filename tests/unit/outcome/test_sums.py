"""Sums over the jobs of a history: each job counts once, and what is not known is not made up."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.errors import StateError
from slicer.model import Usage
from slicer.outcome import history
from slicer.outcome.sums import BY, add_up, count, last_indices, sums
from slicer.record import replace
from tests.unit import made_up

pytestmark = pytest.mark.both_pythons

OK = made_up.outcome(started_at=1_795_229_999.0, waited_s=0.0, uid=1000)  # 2026-11-21 02:59:59 UTC
TWO = replace(
    OK, job="1" * 12, name="two", profile="gpu", gpus=("GPU-a", "GPU-b"), gpu_indices=(0, 1), vram_mib=1000,
    vram_peak_mib=(250, 900), wall_s=100.0, waited_s=30.0, exit_code=1, usage=Usage(cpu_s=40.0),
)  # fmt: skip
ONE = replace(
    OK, job="2" * 12, name="one", profile="gpu", gpus=("GPU-b",), gpu_indices=(3,), vram_mib=None,
    vram_peak_mib=(70_000,), wall_s=10.0, waited_s=10.0, started_at=OK.started_at + 3600,
)  # fmt: skip
NONE = replace(OK, job="3" * 12, name="none", profile="light", wall_s=1000.0, usage=Usage(cpu_s=500.0), uid=0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "slicer" / "history.db")
    for outcome in (TWO, ONE, NONE):
        history.append(outcome, found)
    return found


# X8
def test_sums_of_a_profile(path: str) -> None:
    (gpu, light), total = sums(path, "profile")
    assert (gpu.of, gpu.runs, gpu.failed, gpu.gpu_s, gpu.cpu_s) == ("gpu", 2, 1, 210.0, 40.0)
    assert (gpu.waited_median_s, gpu.waited_longest_s) == (20.0, 30.0)
    assert (gpu.vram_peak_mib, gpu.vram_mib, gpu.vram_part) == (70_000, 1000, 0.9)
    assert (light.of, light.gpu_s, light.vram_peak_mib, light.vram_part) == ("light", 0.0, None, None)
    assert (total.runs, total.failed, total.gpu_s, total.cpu_s) == (3, 1, 210.0, 540.0)
    assert (total.waited_median_s, total.vram_part) == (10.0, 0.9)


def test_sums_of_a_gpu_have_their_part_of_a_job_and_the_total_has_it_once(path: str) -> None:  # X8
    (b, a), total = sums(path, "gpu")
    assert (b.of, b.runs, b.gpu_s, b.cpu_s, b.vram_peak_mib) == ("GPU-b", 2, 110.0, 20.0, 70_000)
    assert (a.of, a.runs, a.gpu_s, a.cpu_s, a.vram_part) == ("GPU-a", 1, 100.0, 20.0, 0.25)
    assert (total.runs, total.failed, total.gpu_s, total.cpu_s) == (2, 1, 210.0, 40.0)
    assert last_indices(path) == {"GPU-a": 0, "GPU-b": 3}


def test_a_day_is_one_of_local_time(path: str) -> None:  # X8
    found, _ = sums(path, "day")
    assert {each.of for each in found} == {"2026-11-21"}
    late = replace(OK, job="4" * 12, started_at=OK.started_at + 12 * 3600 + 1)  # midnight in Tokyo
    history.append(late, path)
    assert {each.of for each in sums(path, "day")[0]} == {"2026-11-21", "2026-11-22"}


@pytest.mark.parametrize("by", BY)
def test_sums_take_the_filters_of_a_list(path: str, by: str) -> None:  # X8
    assert sums(path, by, name="[ot]*", failed=True)[1].runs == 1
    assert sums(path, by, since=ONE.started_at, until=ONE.started_at + 1)[1].runs == 1
    assert sums(path, by, job="9")[1].runs == 0
    assert count(path, name="[ot]*") == 2
    assert count(path, failed=True) == 1


@pytest.mark.parametrize("by", BY)
def test_without_a_history_there_are_no_sums(tmp_path: Path, by: str) -> None:
    found, total = sums(str(tmp_path / "none.db"), by)
    assert (found, total.runs, total.waited_median_s) == ([], 0, 0.0)


FIGURES = st.tuples(
    st.sampled_from("abc"), st.just(1), st.integers(0, 3), st.integers(0, 1000),
    st.none() | st.integers(0, 9), st.integers(0, 100).map(float),
    st.none() | st.integers(0, 99), st.none() | st.integers(0, 99),
    st.integers(0, 1),
)  # fmt: skip


# X8
@given(st.lists(FIGURES))
def test_the_total_is_that_of_all(rows: list[tuple[object, ...]]) -> None:
    found, total = add_up(rows)
    (alone,), _ = add_up([("", *row[1:]) for row in rows]) if rows else ([total], total)
    assert vars(total) == {**vars(alone), "of": None}
    assert sum(each.runs for each in found) == total.runs == len(rows)
    assert [each.gpu_s for each in found] == sorted((each.gpu_s for each in found), reverse=True)


def test_a_list_of_other_programs_is_refused_and_costs_nothing_else(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE outcomes SET gpus = 'x' WHERE name = 'one'")
    with pytest.raises(StateError, match="malformed JSON"):
        sums(path, "profile")
    assert sums(path, "profile", name="two")[1].runs == 1
