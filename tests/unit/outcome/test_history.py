"""Outcomes in SQLite: kept whatever happens to the writers, refused where the file cannot be trusted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.errors import StateError
from slicer.kernel import SYSROOT
from slicer.model import Usage
from slicer.outcome import decisions, history, history_schema
from slicer.record import replace
from tests.process.harness import unprivileged
from tests.process.hot_path import SQLITE
from tests.unit.outcome.outcomes import OTHER, OUTCOME
from tests.unit.outcome.test_decisions import ROW as DECISION

pytestmark = pytest.mark.both_pythons

SRC = str(Path(history.__file__).parents[2])
HERE = str(Path(__file__).parent)  # where outcomes.py lies


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "slicer" / "history.db")


def sql(path: str, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query).fetchall()


def corrupt_files(path: str) -> list[str]:
    return sorted(name for name in os.listdir(os.path.dirname(path)) if ".corrupt-" in name)


# -- what is kept -------------------------------------------------------------------------------------


def test_an_outcome_comes_back_as_it_was(path: str) -> None:  # X3
    unknown = replace(OUTCOME, job="ba9876543210", usage=Usage(), signal=None, gpus=(), manager="user")
    unknown = replace(unknown, vram_mib=None, vram_peak_mib=(), forced=0)
    assert history.append(OUTCOME, path) is None
    assert history.append(unknown, path) is None
    assert history.read(path) == [unknown, OUTCOME]


def test_people_can_query_it_with_sqlite3(path: str) -> None:  # X3
    history.append(OUTCOME, path)
    row = sql(
        path,
        "SELECT name, reason, exit_code, memory_peak_bytes, json_extract(command, '$[1]'),"
        " json_extract(vram_peak_mib, '$[0]') FROM outcomes",
    )
    assert row == [("train", "oom-kill", 137, 1 << 40, "train.py", 9318)]


def test_reading_filters_and_limits(path: str) -> None:  # X3
    for i in range(5):
        history.append(
            replace(OUTCOME, job=f"{i:012x}", name="train" if i % 2 else "eval", started_at=float(i)), path
        )

    def jobs(**filters: Any) -> list[int]:
        return [int(outcome.job, 16) for outcome in history.read(path, **filters)]

    assert jobs() == [4, 3, 2, 1, 0]
    assert jobs(limit=2) == [4, 3]
    assert jobs(limit=None, name="tr*") == [3, 1]
    assert jobs(job="000000000003") == [3]
    assert jobs(since=3.0) == [4, 3]
    assert jobs(until=2.0) == [1, 0]
    assert jobs(since=1.0, until=3.0) == [2, 1]
    assert jobs(name="' OR 1 --") == []


# -- what is removed ----------------------------------------------------------------------------------

DAY_S = 86400.0


def test_what_ended_too_long_ago_is_removed_by_the_next_job(path: str) -> None:  # X8
    """Outcomes with their samples, and decisions; a long job counts from its end."""
    now = time.time()
    old = replace(OUTCOME, job="a" * 12, started_at=now - 10 * DAY_S)
    long = replace(OTHER, started_at=now - 10 * DAY_S, wall_s=9.5 * DAY_S)
    new = replace(OUTCOME, started_at=now)
    for outcome in (old, long):
        history.append(outcome, path)
        decisions.append(replace(DECISION, job=outcome.job, decided_at=outcome.started_at), path)
        sql(path, f"INSERT INTO samples VALUES ('{outcome.job}', x'00')")
    decisions.append(replace(DECISION, decided_at=now), path)
    history.append(replace(new, job="c" * 12), path)
    assert len(history.read(path)) == 3  # by default all is kept
    history.append(new, path, keep_s=DAY_S)
    assert [outcome.job for outcome in history.read(path)] == [new.job, "c" * 12, long.job]
    assert sql(path, "SELECT job FROM samples") == [(long.job,)]
    assert [past.row.decided_at for past in decisions.read(path)] == [now]


def test_much_that_is_too_old_is_removed_in_parts(path: str) -> None:  # X8
    """No job pays for all of it, and a row from a clock that was wrong is in nobody's way."""
    now = time.time()
    history.append(replace(OUTCOME, job="f" * 12, started_at=now + 1e6), path)
    for number in range(120):
        history.append(replace(OUTCOME, job=f"{number:012x}", started_at=1e9), path)
    counts = []
    for number in range(4):
        history.append(replace(OUTCOME, job=f"e{number:011d}", started_at=now), path, keep_s=DAY_S)
        counts.append(len(history.read(path, limit=None)) - number - 2)
    assert counts[0] > 60
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


def test_no_history_yet_is_empty(path: str) -> None:
    assert history.read(path) == []


def test_other_users_cannot_read_the_command_lines(path: str) -> None:
    history.append(OUTCOME, path)
    assert os.stat(path).st_mode & 0o007 == 0
    assert os.stat(os.path.dirname(path)).st_mode & 0o007 == 0


@settings(database=None)  # the checkout may be read-only
@given(st.lists(st.text(st.characters())))
def test_commands_are_exact_json(items: list[str]) -> None:
    text = history.json_array(tuple(items))
    text.encode()
    assert json.loads(text) == items


def test_undecodable_arguments_are_kept(path: str) -> None:
    odd = os.fsdecode(b"\xff\n\"\\'\x00;--")
    history.append(replace(OUTCOME, command=(odd, odd), name=odd), path)
    (outcome,) = history.read(path)
    assert outcome.command == (odd, odd)
    assert outcome.name == odd.replace("\udcff", r"\udcff")


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (0, {"HOME": "/root", "XDG_STATE_HOME": "/x"}, "/var/lib/slicer/history.db"),
        (1000, {"HOME": "/home/a"}, "/home/a/.local/state/slicer/history.db"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": "/x"}, "/x/slicer/history.db"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": "x"}, "/home/a/.local/state/slicer/history.db"),
    ],
)
def test_the_place_follows_the_user(
    monkeypatch: pytest.MonkeyPatch, uid: int, environ: dict[str, str], expected: str
) -> None:  # X3
    monkeypatch.delenv(SYSROOT, raising=False)  # in a machine it is not set
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert history.default_path(environ) == expected


# -- many writers, dying writers ----------------------------------------------------------------------

WRITER = """
import os, sys
sys.path[:0] = sys.argv[1:3]
from outcomes import OUTCOME
from slicer.outcome import history
from slicer.record import replace
path, me = sys.argv[3], int(sys.argv[4])
for i in range(25):
    history.append(replace(OUTCOME, job=f"{me:06x}{i:06x}"), path, busy_timeout_s=60)
    os.write(1, b".")
"""


@pytest.mark.slow
def test_twenty_writers_some_killed_lose_nothing_that_was_acknowledged(path: str) -> None:  # X3
    command = [sys.executable, "-c", WRITER, SRC, HERE, path]
    writers = [subprocess.Popen([*command, str(me)], stdout=subprocess.PIPE) for me in range(20)]
    acknowledged = 0
    for me, writer in enumerate(writers):
        assert writer.stdout is not None
        if me % 3 == 0:
            acknowledged += len(writer.stdout.read(1 + me))  # it is in the middle of its work
            writer.kill()
        acknowledged += len(writer.stdout.read())
        writer.stdout.close()
        assert writer.wait() == (-signal.SIGKILL if me % 3 == 0 and writer.returncode else 0)
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    rows = [outcome.job for outcome in history.read(path, limit=None)]
    assert len(set(rows)) == len(rows)
    assert acknowledged <= len(rows) <= acknowledged + 7  # a killed one may not have got round to saying so
    assert acknowledged >= 13 * 25
    assert corrupt_files(path) == []


def test_a_writer_killed_in_the_middle_is_rolled_back(path: str) -> None:  # X3
    history.append(OUTCOME, path)
    code = """
        import os, signal, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("PRAGMA cache_size=1")  # pages go to the file before the commit
        connection.execute("BEGIN")
        connection.execute("UPDATE outcomes SET name = 'half'")
        connection.execute("CREATE TABLE filler AS SELECT hex(randomblob(1000000))")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    size = os.stat(path).st_size
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.path.getsize(path) > size
    assert os.path.getsize(f"{path}-journal") > 0
    assert history.append(replace(OUTCOME, job="b" * 12), path) is None
    assert [outcome.name for outcome in history.read(path)] == ["train", "train"]
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


# -- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"x", b"not a database" * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_database_is_kept_aside_and_a_new_one_begun(path: str, content: bytes) -> None:  # X3
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_bytes(content)
    warning = history.append(OUTCOME, path)
    assert warning is not None
    assert "damaged" in warning
    (database,) = corrupt_files(path)
    assert database in warning
    assert Path(path).with_name(database).read_bytes() == content
    assert history.append(OTHER, path) is None
    assert history.read(path) == [OTHER, OUTCOME]


def test_the_journal_of_a_writer_at_work_leaves_with_its_damaged_database(path: str) -> None:  # X3
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_bytes(b"damaged")
    Path(f"{path}-journal").write_bytes(b"pages of the damaged one")
    assert history._set_aside(path, os.stat(path).st_ino + 1, "seen") is None  # somebody was faster
    assert history._set_aside(path, os.stat(path).st_ino, "seen") is not None
    database, journal = corrupt_files(path)
    assert journal == f"{database}-journal"
    assert not os.path.exists(f"{path}-journal")


def test_damage_behind_a_good_header_is_found_too(path: str) -> None:  # X3
    for _ in range(50):
        history.append(OUTCOME, path)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(path) - 4096))
    assert history.append(OUTCOME, path) is not None
    assert history.read(path) == [OUTCOME]


def test_eight_writers_set_a_damaged_database_aside_once(path: str) -> None:  # X3
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_bytes(b"not a database" * 1000)
    command = [sys.executable, "-c", WRITER, SRC, HERE, path]
    writers = [
        subprocess.Popen([*command, str(me)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for me in range(8)
    ]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 8
    assert len(corrupt_files(path)) == 1
    assert len(history.read(path, limit=None)) == 8 * 25


def test_reading_a_damaged_database_says_so_and_moves_nothing(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_bytes(b"not a database" * 1000)
    with pytest.raises(StateError, match="damaged"):
        history.read(path)
    assert corrupt_files(path) == []


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "advice"), [(1, "upgrade"), (-4, "move it away")])
def test_a_history_of_another_version_is_left_alone(path: str, by: int, advice: str) -> None:
    history.append(OUTCOME, path)
    other = history_schema.SCHEMA_VERSION + by
    sql(path, f"PRAGMA user_version={other}")
    before = Path(path).read_bytes()
    for use in (lambda: history.append(OUTCOME, path), lambda: history.read(path)):
        with pytest.raises(StateError, match=rf"schema {other}.*{advice}"):
            use()
    assert Path(path).read_bytes() == before


def test_a_symlink_is_not_followed(path: str, tmp_path: Path) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    target = tmp_path / "target"
    os.symlink(target, path)
    with pytest.raises(StateError, match="symbolic link"):
        history.append(OUTCOME, path)
    assert not target.exists()


def test_a_hard_link_or_a_pipe_is_refused(path: str, tmp_path: Path) -> None:
    history.append(OUTCOME, path)
    os.link(path, tmp_path / "second")
    with pytest.raises(StateError, match="hard link"):
        history.append(OUTCOME, path)
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(StateError, match="not a regular file"):
        history.append(OUTCOME, path)


def test_another_users_history_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history.append(OUTCOME, path)
    mine = os.geteuid()
    monkeypatch.setattr(history, "_check_directory", lambda directory: None)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(StateError, match=f"belongs to uid {mine}"):
        history.append(OUTCOME, path)


def test_a_directory_where_others_write_is_refused(path: str) -> None:
    history.append(OUTCOME, path)
    os.chmod(os.path.dirname(path), 0o777)
    with pytest.raises(StateError, match="writable by others"):
        history.append(OUTCOME, path)


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "history.db", Path("/proc/none/history.db")):
        with pytest.raises(StateError, match="cannot be written"):
            history.append(OUTCOME, str(place))


def in_child(directory: Path, body: str, *prefix: str) -> str:
    """Run ``body`` in ``directory`` in another process, since it changes what that process may do."""
    code = "import os, resource, sys\nsys.path[:0] = sys.argv[1:]\nfrom outcomes import OUTCOME\n"
    code += "from slicer.outcome import history\nfrom slicer.errors import StateError\n"
    code += textwrap.dedent(body)
    command = [*prefix, sys.executable, "-c", code, SRC, HERE]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout


def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o555)
    said = in_child(
        tmp_path,
        """
        try:
            history.append(OUTCOME, "state/history.db")
        except StateError as error:
            print(error)
        """,
        *unprivileged(65534),  # root may write everywhere
    )
    assert "state/history.db: the history cannot be written: Permission denied" in said


def test_an_outcome_that_both_halves_write_is_kept_once(path: str) -> None:  # X3
    history.append(OUTCOME, path)
    history.append(OTHER, path)
    assert history.append(replace(OUTCOME, waited_s=9.0), path) is None
    assert history.read(path) == [OTHER, OUTCOME]


def test_a_full_disk_is_an_error_and_leaves_the_history_whole(path: str) -> None:
    history.append(OUTCOME, path)
    said = in_child(
        Path(path).parent,
        """
        import slicer.record
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))  # for files as a full disk would be
        count = 1
        try:
            while True:
                history.append(slicer.record.replace(OUTCOME, job=f"{count:012x}"), "history.db")
                count += 1
        except StateError as error:
            print(count, error)
        """,
    )
    count, message = said.split(" ", 1)
    assert "the disk may be full" in message
    assert history.append(OTHER, path) is None
    assert len(history.read(path, limit=None)) == int(count) + 1
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_database_that_somebody_keeps_locked_is_given_up(path: str) -> None:
    history.append(OUTCOME, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StateError, match=r"locked.*another program"):
            history.append(OUTCOME, path, busy_timeout_s=0.01)
    assert history.append(OUTCOME, path) is None


def test_a_file_system_without_locks_is_the_reason_that_is_said(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes ENOLCK, as of NFS, for another program's lock."""
    history.append(OUTCOME, path)

    def lockf(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StateError, match="has no locks") as caught:
            history.append(OUTCOME, path, busy_timeout_s=0.01)
    assert "XDG_STATE_HOME" in caught.value.hint


# -- the hot path -------------------------------------------------------------------------------------


def test_appending_imports_little_more_than_a_c_module(path: str) -> None:
    code = """
import sys, os, __future__
sys.path.insert(0, sys.argv[1])
import slicer.model, slicer.errors, slicer.record
from slicer.model import Outcome, Usage
none = dict.fromkeys(("signal", "sharing", "git"))
fields = {**dict.fromkeys(Outcome.__annotations__, ""), **none, "usage": Usage()}
before = set(sys.modules)
from slicer.outcome import history
history.append(Outcome(**fields), sys.argv[2])
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, SRC, path], capture_output=True, text=True, check=True
    )
    ours = {"slicer.outcome", "slicer.outcome.history", "slicer.outcome.history_schema"}
    found = {name for name in done.stdout.split() if not name.startswith("_")}
    assert found <= {"errno", "fcntl", "itertools", "slicer.kernel", "time"} | SQLITE | ours
