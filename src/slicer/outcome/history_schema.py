"""The two tables of the history: their columns, and how they came to be what they are.

slicer writes only its own version of the schema. Its first write brings an older file up to that version; a
newer file is left alone. This module is on the hot path of ``slicer run``.
"""

from __future__ import annotations

from slicer.model import Outcome, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _sqlite3

SCHEMA_VERSION = 5

# A column for each field of Outcome and Usage, in the order of insertion; lists are JSON arrays,
# slots and sharing JSON objects.
OUTCOME = tuple(name for name in Outcome.__annotations__ if name != "usage")
USAGE = tuple(Usage.__annotations__)
LISTS = ("command", "gpus", "enforced", "not_enforced", "changed", "changed_outside")
NUMBERS = "vram_peak_mib"
COUNTS = "slots"
SHARING = "sharing"
# What each version added to the one before, and what stands for it in a file that was not written to since.
_SLOTS_BEFORE_4 = "CASE cpu_slots WHEN 0 THEN '{}' ELSE '{\"cpu\": ' || cpu_slots || '}' END"
_ADDED = {
    "vram_mib": (2, "INTEGER", "NULL"),
    "vram_peak_mib": (2, "TEXT NOT NULL DEFAULT '[]'", "'[]'"),
    "forced": (2, "INTEGER NOT NULL DEFAULT 0", "0"),
    "paused_s": (3, "REAL", "NULL"),
    "ended_by": (3, "TEXT NOT NULL DEFAULT ''", "''"),
    "changed": (3, "TEXT NOT NULL DEFAULT '[]'", "'[]'"),
    "changed_outside": (3, "TEXT NOT NULL DEFAULT '[]'", "'[]'"),
    "slots": (4, "TEXT NOT NULL DEFAULT '{}'", _SLOTS_BEFORE_4),
    "sharing": (5, "TEXT", "NULL"),
}
DECISIONS_SINCE = 4  # the version that brought the table of decisions
COLUMNS = OUTCOME + USAGE
_SCHEMA = """\
CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY,  -- in the order of the jobs' ends
    job TEXT NOT NULL UNIQUE,  -- both halves of a supervisor may write the same outcome
    name TEXT NOT NULL,
    command TEXT NOT NULL,  -- JSON array
    profile TEXT NOT NULL,
    backend TEXT NOT NULL,
    manager TEXT NOT NULL,
    unit TEXT NOT NULL,
    slice TEXT NOT NULL,
    gpus TEXT NOT NULL,  -- JSON array of UUIDs
    vram_mib INTEGER,
    vram_peak_mib TEXT NOT NULL DEFAULT '[]',  -- JSON array, in the order of gpus
    cpu_slots INTEGER NOT NULL,
    slots TEXT NOT NULL DEFAULT '{}',  -- JSON object: how many of which name, cpu_slots among them
    forced INTEGER NOT NULL DEFAULT 0,
    uid INTEGER NOT NULL,
    reason TEXT NOT NULL,
    exit_code INTEGER NOT NULL,
    signal INTEGER,
    started_at REAL NOT NULL,  -- seconds since 1970: datetime(started_at, 'unixepoch', 'localtime')
    waited_s REAL NOT NULL,
    wall_s REAL NOT NULL,
    leftovers INTEGER NOT NULL,
    enforced TEXT NOT NULL,  -- JSON array of directives
    not_enforced TEXT NOT NULL,  -- JSON array of directives
    paused_s REAL,
    ended_by TEXT NOT NULL DEFAULT '',
    changed TEXT NOT NULL DEFAULT '[]',  -- JSON array of NAME=VALUE
    changed_outside TEXT NOT NULL DEFAULT '[]',  -- JSON array of NAME=VALUE
    sharing TEXT,  -- JSON object, of a job that was run with --share
    cpu_s REAL,
    cpu_user_s REAL,
    cpu_system_s REAL,
    throttled_s REAL,
    memory_peak_bytes INTEGER,
    io_read_bytes INTEGER,
    io_write_bytes INTEGER,
    oom_kills INTEGER,
    pressure_cpu_s REAL,
    pressure_memory_s REAL,
    pressure_io_s REAL
)"""
# What `slicer route` decided: slicer.outcome.decisions.
_DECISIONS = """\
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY,  -- in the order of the decisions
    route TEXT NOT NULL,
    decided_at REAL NOT NULL,  -- seconds since 1970
    kinds TEXT NOT NULL,  -- JSON array
    metrics TEXT NOT NULL,  -- JSON array of numbers, in the order of kinds
    bounds TEXT NOT NULL,  -- JSON array of numbers and nulls, in the same order
    destination TEXT NOT NULL,
    mode TEXT NOT NULL,
    result TEXT NOT NULL,
    job TEXT NOT NULL,  -- its outcome is in outcomes, once it has ended
    after_job TEXT NOT NULL,
    waited_s REAL NOT NULL,
    input TEXT NOT NULL,
    command TEXT NOT NULL,  -- JSON array
    reason TEXT NOT NULL,
    at_least TEXT NOT NULL  -- JSON array of 0 and 1, in the order of kinds: the metric is more than that
)"""
INSERT = f"INSERT OR IGNORE INTO outcomes ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
SELECT = """\
SELECT {columns} FROM outcomes
WHERE (?1 IS NULL OR name GLOB ?1)
    AND (?2 IS NULL OR substr(job, 1, length(?2)) = ?2)
    AND (?3 IS NULL OR started_at >= ?3)
ORDER BY id DESC LIMIT ?4"""


def version_of(connection: _sqlite3.Connection) -> int:
    """The schema version of the file; 0: there is nothing in it yet. Raises _sqlite3.Error, as all here."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def bring_up(connection: _sqlite3.Connection) -> int:
    """Make the tables, or add what an older file lacks; returns the version that is there now.

    All rows stay. An older slicer leaves the file alone from then on.
    """
    version = version_of(connection)
    if version < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        version = version_of(connection)  # another job may have been faster
        if version == 0:
            connection.execute(_SCHEMA)
        elif version < SCHEMA_VERSION:
            for column, (since, kind, _) in _ADDED.items():
                if since > version:
                    connection.execute(f"ALTER TABLE outcomes ADD COLUMN {column} {kind}")
            if version < 4:
                connection.execute(f"UPDATE outcomes SET slots = {_SLOTS_BEFORE_4}")
        if version < DECISIONS_SINCE:
            connection.execute(_DECISIONS)
        if version < SCHEMA_VERSION:
            version = SCHEMA_VERSION
            connection.execute(f"PRAGMA user_version={version}")
        connection.execute("COMMIT")
    return version


def select_outcomes(version: int) -> str:
    """SELECT for a file of that version."""
    return SELECT.format(columns=columns(version))


def columns(version: int) -> str:
    """COLUMNS for a SELECT from a file of that version: reading migrates nothing."""
    stand_ins = {column: value for column, (since, _, value) in _ADDED.items() if since > version}
    return ", ".join(stand_ins.get(column, column) for column in COLUMNS)
