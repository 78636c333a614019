"""A history of a version before is brought up to this one, whole or not at all."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slicer.errors import StateError
from slicer.outcome import decisions, history, history_schema
from slicer.record import replace
from tests.unit.outcome.outcomes import OTHER, OUTCOME

pytestmark = pytest.mark.both_pythons

SRC = str(Path(history.__file__).parents[2])
VERSIONS = (6, 7, 8)  # history-N.sql: as slicer made it, with two jobs and a decision
JOBS = ["0123456789ab", "ba9876543210"]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def path(tmp_path: Path, version: int) -> str:
    """A history of that version."""
    (tmp_path / "state").mkdir(0o700)
    found = str(tmp_path / "state" / "history.db")
    with closing(sqlite3.connect(found)) as connection:
        connection.executescript(Path(__file__).with_name(f"history-{version}.sql").read_text())
    return found


def sql(path: str, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query).fetchall()


def shape(path: str) -> tuple[object, ...]:
    """The version, the tables and their columns; the order of the columns does not count."""
    tables = sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    columns = [sorted(row[1:] for row in sql(path, f"PRAGMA table_info({name})")) for (name,) in tables]
    return sql(path, "PRAGMA user_version"), tables, columns


def test_a_new_row_migrates_and_keeps_all_rows(path: str, version: int) -> None:  # X3
    assert history.append(OTHER, path) is None
    found = history.read(path)
    assert found[0] == OTHER
    assert [outcome.job for outcome in found[1:]] == JOBS[::-1]
    unknown: dict[str, Any] = {"attempts": ()}  # nobody had noted them
    unknown |= {"git": None} if version < 8 else {}
    unknown |= {"gpu_indices": ()} if version < 7 else {}
    assert found[2] == replace(OUTCOME, **unknown)
    (decision,) = decisions.read(path)
    assert decision.row.job == JOBS[0]
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_reading_migrates_too(path: str) -> None:  # X3
    assert [outcome.job for outcome in history.read(path)] == JOBS[::-1]
    assert sql(path, "PRAGMA user_version") == [(history_schema.SCHEMA_VERSION,)]


def test_a_migrated_file_has_what_a_new_one_has(path: str) -> None:  # X3
    history.append(OTHER, path)
    new = f"{path}.new"
    history.append(OTHER, new)
    assert shape(path) == shape(new)


KILLED = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[1])
    from slicer.outcome import history, history_schema

    class Killed:
        \"\"\"A connection whose process is killed just after the statement of that number.\"\"\"
        def __init__(self, connection):
            self.connection, self.count = connection, 0
        def execute(self, *words):
            found = self.connection.execute(*words)
            self.count += 1
            if self.count > int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)
            return found

    migrate = history_schema.migrate

    def migrated(connection):
        connection.execute("PRAGMA cache_size=1")  # pages go to the file before the commit
        migrate(Killed(connection))
        print("ended", flush=True)

    history_schema.migrate = migrated
    history.read(sys.argv[2])
"""


def test_a_killed_migration_leaves_the_old_file_or_the_new_one(path: str) -> None:  # X3
    """The process is killed after each of its statements; the next one finds everything."""
    old, statement = shape(path), 0
    while True:
        command = [sys.executable, "-c", textwrap.dedent(KILLED), SRC, path, str(statement)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.stdout:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        found = shape(path)
        assert found == old or found[0] == [(history_schema.SCHEMA_VERSION,)]
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]
        statement += 1
        if found != old:  # killed after the commit
            break
    assert statement >= 4
    assert [outcome.job for outcome in history.read(path)] == JOBS[::-1]
    assert history.append(OTHER, path) is None


def test_a_reader_that_may_not_write_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path(path).read_bytes()
    mine = os.geteuid()
    monkeypatch.setattr(history, "_check_directory", lambda directory: None)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(StateError, match=f"belongs to uid {mine}"):
        history.read(path)
    assert Path(path).read_bytes() == before


def test_a_link_is_not_migrated(path: str, tmp_path: Path) -> None:
    """What another user puts in the place of the history is not written to."""
    link = tmp_path / "state" / "link.db"
    link.symlink_to(path)
    before = Path(path).read_bytes()
    with pytest.raises(StateError, match="symbolic link"):
        history.read(str(link))
    assert Path(path).read_bytes() == before


def test_damage_found_by_a_reader_moves_nothing(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 2000)
    with pytest.raises(StateError, match="damaged"):
        history.read(path)
    assert os.listdir(os.path.dirname(path)) == ["history.db"]
