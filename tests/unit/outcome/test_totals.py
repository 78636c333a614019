"""Sums over ended jobs: each job counts once, and they survive that the history forgets it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from slicer.model import Outcome
from slicer.outcome import history, totals
from slicer.outcome.totals import WAITS_S, Total
from slicer.record import replace
from tests.unit.outcome.outcomes import OUTCOME

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "slicer" / "history.db")


def outcome(number: int, **fields: object) -> Outcome:
    return replace(OUTCOME, job=f"{number:012x}", **fields)


def test_there_is_nothing_without_a_history_and_none_is_made(path: str) -> None:  # X8
    assert totals.of_history(path) == []
    assert not Path(path).exists()


def test_each_job_counts_once_however_often_one_asks(path: str) -> None:  # X8
    history.append(outcome(1, waited_s=0.5), path)
    first = Total(0, "gpu", "oom-kill", 1, 2 * 12.5, 1.5, 0.5, (1,) * len(WAITS_S))
    assert totals.of_history(path) == [first]
    assert totals.of_history(path) == [first]
    history.append(outcome(2, waited_s=61.0), path)
    (both,) = totals.of_history(path)
    assert (both.jobs, both.gpu_s, both.cpu_s, both.waited_s) == (2, 50.0, 3.0, 61.5)
    assert dict(zip(WAITS_S, both.waits, strict=True)) == {
        each: 2 if each >= 300 else 1 for each in WAITS_S
    }  # fmt: skip


@pytest.mark.parametrize("kept", [1, 0])
def test_no_sum_gets_smaller_when_outcomes_are_removed(path: str, kept: int) -> None:  # X8
    for number in range(3):
        history.append(outcome(number), path)
    (before,) = totals.of_history(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM outcomes WHERE id <= ?", (3 - kept,))
    assert totals.of_history(path) == [before]
    history.append(outcome(4), path)  # after all were removed, its id is 1 again
    assert [each.jobs for each in totals.of_history(path)] == [4]


def test_a_result_is_one_of_few_words_and_profiles_are_bounded(path: str) -> None:  # X8
    for number, (reason, code) in enumerate([("exited", 0), ("exited", 3), ("stopped", 143), ("odd", 1)]):
        by = "slicer stop" if reason == "stopped" else ""
        history.append(outcome(number, reason=reason, exit_code=code, ended_by=by), path)
    found = [(each.result, each.jobs) for each in totals.of_history(path)]
    assert found == [("failed", 2), ("stopped", 1), ("succeeded", 1)]
    for number in range(100, 160):
        history.append(outcome(number, profile=f"p{number}"), path)
        totals.of_history(path)
    names = {each.profile for each in totals.of_history(path)}
    assert len(names) == 51
    assert totals.OTHER_PROFILES in names
