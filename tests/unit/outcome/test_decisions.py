"""Decisions of routes in SQLite: beside the outcomes, read with what became of their jobs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.outcome import decisions, history, history_schema
from slicer.outcome.decisions import DecisionRow, PastDecision, RoutedJob
from slicer.record import replace
from tests.process.hot_path import SQLITE
from tests.unit.outcome.outcomes import OUTCOME

pytestmark = pytest.mark.both_pythons

SRC = str(Path(history.__file__).parents[2])
ROW = DecisionRow(
    route="whisper", decided_at=1_700_000_000.25, kinds=("duration", "pixels"), metrics=(723.5, 8e6),
    bounds=(3600.0, None), destination="gpu", mode="gpu", result="started", job=OUTCOME.job, after="",
    waited_s=0.25, input="a b.mp4", command=("whisper", "a b.mp4", "--model=large"), reason="",
    at_least=(False, True),
)  # fmt: skip
BLOCKED = replace(ROW, job="", result="blocked", destination="cpu", mode="cpu", reason="cpu-busy")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "slicer" / "history.db")


def sql(path: str, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query).fetchall()


def test_a_decision_comes_back_with_what_became_of_its_job(path: str) -> None:  # C6
    assert decisions.append(ROW, path) is None
    assert decisions.append(BLOCKED, path) is None
    assert decisions.read(path) == [PastDecision(ROW, None), PastDecision(BLOCKED, None)]
    history.append(OUTCOME, path)  # it ended
    figures = RoutedJob(
        started_at=OUTCOME.started_at, waited_s=0.25, wall_s=12.5, reason="oom-kill", exit_code=137,
        vram_peak_mib=(9318, 0), memory_peak_bytes=1 << 40, ended_by=OUTCOME.ended_by,
    )  # fmt: skip
    assert decisions.read(path) == [PastDecision(ROW, figures), PastDecision(BLOCKED, None)]
    assert history.read(path) == [OUTCOME]


def test_people_can_query_it_with_sqlite3(path: str) -> None:  # C6
    decisions.append(ROW, path)
    row = sql(path, "SELECT route, mode, result, json_extract(metrics, '$[0]'), bounds FROM decisions")
    assert row == [("whisper", "gpu", "started", 723.5, "[3600.0, null]")]


def test_reading_filters(path: str) -> None:  # C6
    for number, route in enumerate(("a", "b", "a")):
        decisions.append(replace(ROW, route=route, decided_at=float(number)), path)
    assert [past.row.decided_at for past in decisions.read(path, route="a")] == [0.0, 2.0]
    assert [past.row.route for past in decisions.read(path, since=1.0)] == ["b", "a"]
    assert decisions.read(path, route="' OR 1 --") == []


def test_no_history_yet_is_empty(path: str) -> None:
    assert decisions.read(path) == []
    history.append(OUTCOME, path)
    assert decisions.read(path) == []


@pytest.mark.parametrize("odd", [os.fsdecode(b"\xff\n\"\\'\x00;--"), "\x1b]0;evil\x07", "a\u202eb", ""])
def test_any_text_is_kept(path: str, odd: str) -> None:  # C6
    decisions.append(replace(ROW, route=odd, command=(odd, odd), input=odd, reason=odd), path)
    ((past,)) = decisions.read(path, route=odd)
    assert past.row.command == (odd, odd)
    assert past.row.input == odd.replace("\udcff", r"\udcff")


def test_numbers_that_json_has_no_word_for_are_kept(path: str) -> None:
    odd = replace(ROW, kinds=("size",) * 3, metrics=(float("inf"), 1e300, 2**80), bounds=(None,) * 3)
    decisions.append(odd, path)
    assert decisions.read(path)[0].row == odd


def test_a_damaged_history_is_set_aside_and_said(path: str) -> None:  # X3
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_bytes(b"not a database" * 1000)
    with pytest.raises(StateError, match="damaged"):
        decisions.read(path)
    warning = decisions.append(ROW, path)
    assert warning is not None
    assert "kept as" in warning
    assert [past.row for past in decisions.read(path)] == [ROW]


def test_a_newer_slicers_history_is_not_written(path: str) -> None:
    decisions.append(ROW, path)
    sql(path, f"PRAGMA user_version={history_schema.SCHEMA_VERSION + 1}")
    before = Path(path).read_bytes()
    with pytest.raises(StateError, match="newer slicer"):
        decisions.append(ROW, path)
    with pytest.raises(StateError, match="newer slicer"):
        decisions.read(path)
    assert Path(path).read_bytes() == before


def test_a_locked_history_is_given_up(path: str) -> None:
    decisions.append(ROW, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StateError, match="another program"):
            decisions.append(ROW, path, busy_timeout_s=0.01)


def test_what_stands_in_place_of_the_history_is_neither_followed_nor_waited_for(
    path: str, tmp_path: Path
) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    os.symlink(tmp_path / "target", path)
    with pytest.raises(StateError, match="symbolic link"):
        decisions.append(ROW, path)
    assert not (tmp_path / "target").exists()
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(StateError, match="not a regular file"):
        decisions.append(ROW, path)


@pytest.mark.parametrize("column", ["metrics", "kinds", "bounds", "command"])
@pytest.mark.parametrize("value", ["{", "3", '["x", {}, 1'])
def test_a_decision_that_makes_no_sense_is_named(path: str, column: str, value: str) -> None:
    decisions.append(ROW, path)
    decisions.append(BLOCKED, path)
    sql(path, f"UPDATE decisions SET {column} = '{value}' WHERE id = 2")
    with pytest.raises(StateError, match="decision 2 of the history cannot be read"):
        decisions.read(path)


def test_a_caller_that_tries_for_ever_does_not_fill_the_disk(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C6
    """What started a job stays; of the rest the newest do."""
    monkeypatch.setattr(decisions, "KEPT", 20)
    monkeypatch.setattr(decisions, "FORGETS_EVERY", 10)
    decisions.append(ROW, path)
    for _ in range(99):
        decisions.append(BLOCKED, path)
    left = decisions.read(path)
    assert left[0].row == ROW
    assert len(left) == 1 + 20
    assert sql(path, "SELECT min(id) FROM decisions WHERE job = ''") == [(81,)]


# slicer route calls it before its command.
def test_appending_imports_little_more_than_a_c_module(path: str) -> None:
    code = """
import sys, os, __future__
sys.path.insert(0, sys.argv[1])
import slicer.model, slicer.errors, slicer.record
before = set(sys.modules)
from slicer.outcome import decisions
fields = {**dict.fromkeys(decisions.DecisionRow.__annotations__, ""), "decided_at": 1.0, "waited_s": 0.0}
decisions.append(decisions.DecisionRow(**fields), sys.argv[2])
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, SRC, path], capture_output=True, text=True, check=True
    )
    ours = {f"slicer.outcome{name}" for name in ("", ".decisions", ".history", ".history_schema")}
    found = {name for name in done.stdout.split() if not name.startswith("_")}
    assert found <= {"errno", "fcntl", "itertools", "slicer.kernel", "time"} | SQLITE | ours
