"""Outcomes in SQLite: kept whatever happens to the writers, refused where the file cannot be trusted."""

from __future__ import annotations

import json
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
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.errors import StateError
from slicer.kernel import SYSROOT
from slicer.model import Usage
from slicer.outcome import history, history_schema
from slicer.record import replace
from tests.process.harness import unprivileged
from tests.unit.outcome.outcomes import OTHER, OUTCOME

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
    assert jobs(name="' OR 1 --") == []


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


# -- a file of an older slicer --------------------------------------------------------------------------

# As slicer 1's own `.schema` prints it.
VERSION_1 = """
CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL UNIQUE, name TEXT NOT NULL, command TEXT NOT NULL,
    profile TEXT NOT NULL, backend TEXT NOT NULL, manager TEXT NOT NULL, unit TEXT NOT NULL,
    slice TEXT NOT NULL, gpus TEXT NOT NULL, cpu_slots INTEGER NOT NULL, uid INTEGER NOT NULL,
    reason TEXT NOT NULL, exit_code INTEGER NOT NULL, signal INTEGER, started_at REAL NOT NULL,
    waited_s REAL NOT NULL, wall_s REAL NOT NULL, leftovers INTEGER NOT NULL, enforced TEXT NOT NULL,
    not_enforced TEXT NOT NULL, cpu_s REAL, cpu_user_s REAL, cpu_system_s REAL, throttled_s REAL,
    memory_peak_bytes INTEGER, io_read_bytes INTEGER, io_write_bytes INTEGER, oom_kills INTEGER,
    pressure_cpu_s REAL, pressure_memory_s REAL, pressure_io_s REAL
);
INSERT INTO outcomes VALUES (
    1, '0123456789ab', 'train', '["python3", "train.py", "--epochs=3"]', 'gpu', 'systemd', 'system',
    'slicer-0123456789ab.scope', 'gpu.slice', '["GPU-a", "GPU-b"]', 0, 0, 'oom-kill', 137, 9,
    1700000000.5, 0.25, 12.5, 2, '["CPUQuota", "MemoryMax"]', '["IOWeight"]', 1.5, NULL, NULL, NULL,
    1099511627776, 0, NULL, 1, NULL, NULL, NULL
);
PRAGMA user_version=1;
"""
# What slicer 2 made of it.
VERSION_2 = f"""{VERSION_1}
ALTER TABLE outcomes ADD COLUMN vram_mib INTEGER;
ALTER TABLE outcomes ADD COLUMN vram_peak_mib TEXT NOT NULL DEFAULT '[]';
ALTER TABLE outcomes ADD COLUMN forced INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version=2;
"""
# What slicer 3 made of that, and of a job with CPU slots.
VERSION_3 = f"""{VERSION_2}
ALTER TABLE outcomes ADD COLUMN paused_s REAL;
ALTER TABLE outcomes ADD COLUMN ended_by TEXT NOT NULL DEFAULT '';
ALTER TABLE outcomes ADD COLUMN changed TEXT NOT NULL DEFAULT '[]';
ALTER TABLE outcomes ADD COLUMN changed_outside TEXT NOT NULL DEFAULT '[]';
PRAGMA user_version=3;
"""
# What slicer 4 made of that.
VERSION_4 = f"""{VERSION_3}
ALTER TABLE outcomes ADD COLUMN slots TEXT NOT NULL DEFAULT '{{}}';
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY, route TEXT NOT NULL, decided_at REAL NOT NULL, kinds TEXT NOT NULL,
    metrics TEXT NOT NULL, bounds TEXT NOT NULL, destination TEXT NOT NULL, mode TEXT NOT NULL,
    result TEXT NOT NULL, job TEXT NOT NULL, after_job TEXT NOT NULL, waited_s REAL NOT NULL,
    input TEXT NOT NULL, command TEXT NOT NULL, reason TEXT NOT NULL, at_least TEXT NOT NULL
);
PRAGMA user_version=4;
"""
# Nobody kept these then.
OLD = replace(
    OUTCOME, vram_mib=None, vram_peak_mib=(), forced=0, paused_s=None, ended_by="", changed=(),
    changed_outside=(), sharing=None,
)  # fmt: skip


@pytest.fixture(params=[VERSION_1, VERSION_2, VERSION_3, VERSION_4], ids=["1", "2", "3", "4"])
def old_path(path: str, request: pytest.FixtureRequest) -> str:
    os.makedirs(os.path.dirname(path), 0o700)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(request.param)
    os.chmod(path, 0o640)
    return path


def test_an_older_slicers_history_is_read_as_it_is(old_path: str) -> None:  # X3
    before = Path(old_path).read_bytes()
    os.chmod(old_path, 0o440)
    assert history.read(old_path) == [OLD]
    assert Path(old_path).read_bytes() == before


def test_the_cpu_slots_of_an_older_slicers_history_are_slots(old_path: str) -> None:  # issue: named slots
    with closing(sqlite3.connect(old_path)) as connection, connection:
        connection.execute("UPDATE outcomes SET cpu_slots = 2")
        if connection.execute("PRAGMA user_version").fetchone() >= (4,):  # which kept them itself
            connection.execute("UPDATE outcomes SET slots = '{\"cpu\": 2}'")
    for _ in range(2):
        old = history.read(old_path)[-1]
        assert (old.cpu_slots, old.slots) == (2, {"cpu": 2})
        assert history.append(OTHER, old_path) is None  # which brings it up to this version
    assert sql(old_path, "SELECT slots FROM outcomes ORDER BY id")[0] == ('{"cpu": 2}',)


def test_an_older_slicers_history_goes_on(old_path: str) -> None:  # X3
    assert history.append(OTHER, old_path) is None
    assert history.read(old_path) == [OTHER, OLD]
    assert sql(old_path, "PRAGMA user_version") == [(history_schema.SCHEMA_VERSION,)]
    assert corrupt_files(old_path) == []


def test_an_upgraded_history_is_what_a_new_one_is(old_path: str, tmp_path: Path) -> None:
    """Column for column: same names, types, defaults, but for their order."""
    history.append(OTHER, old_path)
    new_path = str(tmp_path / "new" / "history.db")
    history.append(OTHER, new_path)
    for table in ("outcomes", "decisions"):
        columns = 'name, type, "notnull", dflt_value, pk'
        info = f"SELECT {columns} FROM pragma_table_info('{table}') ORDER BY name"
        assert sql(old_path, info) == sql(new_path, info) != []


def test_many_writers_upgrade_an_older_slicers_history_once(old_path: str) -> None:  # X3
    command = [sys.executable, "-c", WRITER, SRC, HERE, old_path]
    writers = [subprocess.Popen([*command, str(me)], stdout=subprocess.DEVNULL) for me in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8
    found = history.read(old_path, limit=None)
    assert len(found) == 1 + 8 * 25
    assert found[-1] == OLD
    assert {outcome.vram_peak_mib for outcome in found[:-1]} == {OUTCOME.vram_peak_mib}


def test_two_that_upgrade_it_at_the_same_time_agree(old_path: str) -> None:  # X3
    code = """
        import sys
        sys.path[:0] = sys.argv[1:3]
        from outcomes import OUTCOME
        from slicer.outcome import history, history_schema
        from slicer.record import replace
        def version_of(connection, real=history_schema.version_of):
            version = real(connection)
            print("sees version", version, flush=True)
            return version
        history_schema.version_of = version_of
        history.append(replace(OUTCOME, job=sys.argv[4]), sys.argv[3], busy_timeout_s=60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), SRC, HERE, old_path]
    with closing(sqlite3.connect(old_path, isolation_level=None)) as door:
        door.execute("BEGIN IMMEDIATE")
        both = [subprocess.Popen([*command, job * 12], stdout=subprocess.PIPE) for job in "cd"]
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() in {b"sees version %d\n" % version for version in (1, 2, 3, 4)}
        door.execute("COMMIT")
    for process in both:
        process.communicate()
    assert [process.returncode for process in both] == [0, 0]
    assert {outcome.job for outcome in history.read(old_path)} == {OLD.job, "c" * 12, "d" * 12}


def test_an_upgrade_killed_in_the_middle_is_begun_anew(old_path: str) -> None:  # X3
    code = """
        import os, signal, sys
        sys.path[:0] = sys.argv[1:3]
        from outcomes import OTHER
        from slicer.outcome import history, history_schema
        def version_of(connection, real=history_schema.version_of):
            if connection.in_transaction:
                connection.execute("ALTER TABLE outcomes ADD COLUMN sharing TEXT")
                os.kill(os.getpid(), signal.SIGKILL)
            return real(connection)
        history_schema.version_of = version_of
        history.append(OTHER, sys.argv[3])
    """
    command = [sys.executable, "-c", textwrap.dedent(code), SRC, HERE, old_path]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert history.read(old_path) == [OLD]
    assert history.append(OTHER, old_path) is None
    assert history.read(old_path) == [OTHER, OLD]


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


def test_a_newer_slicers_history_is_not_written(path: str) -> None:
    history.append(OUTCOME, path)
    newer = history_schema.SCHEMA_VERSION + 1
    sql(path, f"PRAGMA user_version={newer}")
    before = Path(path).read_bytes()
    with pytest.raises(StateError, match=rf"schema {newer}.*upgrade"):
        history.append(OUTCOME, path)
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
        with pytest.raises(StateError, match="cannot be kept"):
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
    assert "state/history.db: the history cannot be kept: Permission denied" in said


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


# -- the hot path -------------------------------------------------------------------------------------


def test_appending_imports_c_modules_only(path: str) -> None:
    code = """
import sys, os, __future__
sys.path.insert(0, sys.argv[1])
import slicer.model, slicer.errors, slicer.record
from slicer.model import Outcome, Usage
fields = {**dict.fromkeys(Outcome.__annotations__, ""), "signal": None, "sharing": None, "usage": Usage()}
before = set(sys.modules)
from slicer.outcome import history
history.append(Outcome(**fields), sys.argv[2])
print(*sorted(set(sys.modules) - before))
import functools, sqlite3
assert functools.reduce
"""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, SRC, path], capture_output=True, text=True, check=True
    )
    ours = {"slicer.outcome", "slicer.outcome.history", "slicer.outcome.history_schema"}
    assert set(done.stdout.split()) <= {"_functools", "_sqlite3", "fcntl", "slicer.kernel", "time"} | ours
