"""The accounts of all users' jobs, usage.db: its tables, and reading it. Only the broker writes.

Times are seconds, sizes MiB.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, TypeVar

from slicer.broker.protocol.messages import PastLease, UsageRow
from slicer.errors import StateError
from slicer.outcome import history_schema, totals
from slicer.outcome import sums as sums_of
from slicer.outcome.result import result_of
from slicer.outcome.series import Series, decode
from slicer.record import record

_T = TypeVar("_T")

DIRECTORY = "/var/lib/slicer"
FILE = "usage.db"
SCHEMA_VERSION = 1
SCHEMA = """\
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,  -- in the order of their ends
    grant_key TEXT NOT NULL UNIQUE,  -- boot, job and time of the grant: a job's id is of its user's choice
    job TEXT NOT NULL,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,  -- the group that it is booked for
    name TEXT NOT NULL,
    command TEXT NOT NULL,
    profile TEXT NOT NULL,
    gpus TEXT NOT NULL,  -- UUIDs, a blank in between
    vram_peak_mib INTEGER,  -- on one GPU
    slots TEXT NOT NULL,  -- name=count, a blank in between
    granted_at REAL NOT NULL,  -- since 1970
    held_s REAL NOT NULL,
    waited_s REAL NOT NULL,
    gpu_rate REAL NOT NULL,  -- how many GPUs' worth it was
    vram_mib INTEGER NOT NULL,  -- over all its GPUs
    cpu_s REAL,
    memory_peak_bytes INTEGER,
    reason TEXT NOT NULL,
    exit_code INTEGER,  -- NULL: nobody told
    paused_s REAL NOT NULL DEFAULT 0,  -- of held_s
    ended_by TEXT NOT NULL DEFAULT ''
);
CREATE INDEX jobs_by_uid ON jobs (uid, id);
CREATE TABLE days (  -- jobs that are no longer in the table above
    day INTEGER NOT NULL,  -- since 1970, in UTC
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    profile TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    gpu_s REAL NOT NULL,
    vram_mib_s REAL NOT NULL,
    cpu_s REAL NOT NULL,
    waited_s REAL NOT NULL,
    PRIMARY KEY (uid, day, gid, profile)
);
CREATE TABLE users (  -- for the fair share
    uid INTEGER PRIMARY KEY,
    gpu_s REAL NOT NULL,  -- decayed to used_at
    used_at REAL NOT NULL,
    granted_at REAL NOT NULL
)"""
_HAS = "SELECT count(*) FROM pragma_table_info('jobs') WHERE name = ?"
_ADDED = {"paused_s": "REAL NOT NULL DEFAULT 0", "ended_by": "TEXT NOT NULL DEFAULT ''"}
SAMPLES = """\
CREATE TABLE IF NOT EXISTS samples (
    grant_key TEXT PRIMARY KEY,
    uid INTEGER NOT NULL,
    series BLOB NOT NULL  -- slicer.outcome.series
)"""


@record
class AccountRow:
    """A job that has ended: columns of the table ``jobs``."""

    grant_key: str
    job: str
    uid: int
    gid: int
    name: str
    command: str
    profile: str
    gpus: str
    vram_peak_mib: int | None
    slots: str
    granted_at: float
    held_s: float
    waited_s: float
    gpu_rate: float
    vram_mib: int
    cpu_s: float | None
    memory_peak_bytes: int | None
    reason: str
    exit_code: int | None
    ended_by: str = ""


_COLUMNS = tuple(AccountRow.__annotations__)
_INSERTED = (*_COLUMNS, "paused_s")
_PLACES = ", ".join("?" * len(_INSERTED))
INSERT_JOB = f"INSERT OR IGNORE INTO jobs ({', '.join(_INSERTED)}) VALUES ({_PLACES})"
SET_USER = "INSERT OR REPLACE INTO users (uid, gpu_s, used_at, granted_at) VALUES (?, ?, ?, ?)"
USERS = "SELECT uid, gpu_s, used_at, granted_at FROM users"

# Once a user has more jobs than are kept, its oldest go into the days: ?1 uid, ?2 the last id of those,
# ?3 what the profile is called once there are too many names of profiles, ?4 how many names there may be.
FOLD = """\
INSERT INTO days (day, uid, gid, profile, jobs, gpu_s, vram_mib_s, cpu_s, waited_s)
SELECT CAST(granted_at / 86400 AS INTEGER), uid, gid,
    CASE WHEN profile IN (
        SELECT profile FROM days WHERE uid = ?1
        UNION SELECT * FROM (SELECT profile FROM jobs WHERE uid = ?1 AND id <= ?2 GROUP BY profile
            ORDER BY count(*) DESC
            LIMIT max(0, ?4 - (SELECT count(DISTINCT profile) FROM days WHERE uid = ?1)))
    ) THEN profile ELSE ?3 END AS kept,
    count(*), sum(gpu_rate * held_s), sum(vram_mib * held_s), total(cpu_s), sum(waited_s)
FROM jobs WHERE uid = ?1 AND id <= ?2 GROUP BY 1, 2, 3, 4
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs, gpu_s = gpu_s + excluded.gpu_s,
    vram_mib_s = vram_mib_s + excluded.vram_mib_s, cpu_s = cpu_s + excluded.cpu_s,
    waited_s = waited_s + excluded.waited_s"""
FORGET = "DELETE FROM jobs WHERE uid = ?1 AND id <= ?2"
OLDEST_KEPT = "SELECT id FROM jobs WHERE uid = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2"
LAST_RUNS = (  # that held GPUs and succeeded, the newest first
    "SELECT uid, command, max(0, held_s - paused_s) FROM jobs WHERE gpus != '' AND exit_code = 0"
    " ORDER BY id DESC LIMIT 2000"
)
INSERT_SAMPLES = "INSERT OR IGNORE INTO samples (grant_key, uid, series) VALUES (?, ?, ?)"
# Only of a user's last jobs: ?1 uid, ?2 how many.
FORGET_SAMPLES = """\
DELETE FROM samples WHERE uid = ?1 AND rowid <= (
    SELECT rowid FROM samples WHERE uid = ?1 ORDER BY rowid DESC LIMIT 1 OFFSET ?2)"""
LAST_GRANT = (  # of a user's job that has just ended: ?1 uid, ?2 its id
    "SELECT grant_key FROM (SELECT grant_key, job FROM jobs WHERE uid = ?1 ORDER BY id DESC LIMIT 200)"
    " WHERE job = ?2 LIMIT 1"
)
_HAS_SAMPLES = "SELECT count(*) FROM sqlite_master WHERE name = 'samples'"
_ONE_SERIES = "SELECT series FROM samples WHERE grant_key = ?"
COUNTS = "SELECT uid, count(*) FROM jobs GROUP BY uid"
ADD_TO_TOTALS = totals.adding("jobs", "gpu_rate * held_s", "grant_key = ?1")

# Of a job that began before ?1, only the part since then counts. ?2: only this user, or NULL.
USAGE = """\
SELECT {key}, sum(jobs), sum(gpu_s), sum(vram_mib_s), sum(cpu_s), sum(waited_s) FROM (
    SELECT uid, gid, profile, 1 AS jobs, gpu_rate * held_s * part AS gpu_s,
        vram_mib * held_s * part AS vram_mib_s, coalesce(cpu_s, 0) * part AS cpu_s,
        CASE WHEN granted_at >= ?1 THEN waited_s ELSE 0 END AS waited_s
    FROM (
        SELECT *, CASE WHEN granted_at >= ?1 OR held_s <= 0 THEN 1.0
            ELSE (granted_at + held_s - ?1) / held_s END AS part
        FROM jobs WHERE granted_at + held_s >= ?1 AND (?2 IS NULL OR uid = ?2)
    )
    UNION ALL
    SELECT uid, gid, profile, jobs, gpu_s, vram_mib_s, cpu_s, waited_s FROM days
    WHERE (day + 1) * 86400 > ?1 AND (?2 IS NULL OR uid = ?2)
) GROUP BY {key} ORDER BY 3 DESC, 5 DESC, 1 LIMIT ?3"""
KEYS = {"user": "uid", "group": "gid", "profile": "profile"}

# The jobs in the columns of a history's outcomes, as far as both have them. Which GPU the peak was on is not
# known: each gets it. zeroblob(3) is 000000 in hex, and so a list of three.
_AS_OUTCOMES = """\
WITH counted AS (
    SELECT *, length(gpus) - length(replace(gpus, ' ', '')) + (gpus != '') AS gpu_count FROM jobs
), outcomes AS (
    SELECT id, job, name, profile, uid, reason, ended_by, exit_code,
        granted_at AS started_at, held_s AS wall_s, waited_s, cpu_s, vram_mib / gpu_count AS vram_mib,
        CASE gpus WHEN '' THEN '[]' ELSE '["' || replace(gpus, ' ', '","') || '"]' END AS gpus,
        coalesce('[' || substr(replace(hex(zeroblob(gpu_count)), '00', ',' || vram_peak_mib), 2) || ']', '[]')
            AS vram_peak_mib
    FROM counted
)"""
JOBS = f"""\
{_AS_OUTCOMES} SELECT {', '.join(_COLUMNS)} FROM jobs
WHERE id IN (SELECT id FROM outcomes WHERE {history_schema.FILTERS}) ORDER BY id DESC LIMIT ?6"""

RECENT = "SELECT uid, gpus, granted_at, held_s FROM jobs ORDER BY id DESC LIMIT 10000"
_MOST_RECENT_GPUS = 2000  # of all rows together: the answer takes the broker some milliseconds

PATH = f"{DIRECTORY}/{FILE}"
_BUSY_TIMEOUT_S = 5.0


def usage(path: str, since: float | None, by: str, most: int = 10_000) -> list[UsageRow]:
    """Usage of all users' jobs that ended since ``since`` (seconds since 1970). Raises StateError."""
    return _read(path, lambda connection: select_usage(connection, since, None, by, most))


def jobs(path: str, *, limit: int | None = 50, **filters: Any) -> list[AccountRow]:
    """The last jobs that ended, the newest first; arguments as in :func:`slicer.outcome.history.read`."""
    values = (*history_schema.filters(**filters), -1 if limit is None else limit)
    rows = _read(path, lambda connection: connection.execute(JOBS, values).fetchall())
    return [AccountRow(*row) for row in rows]


def samples(path: str, grants: Iterable[str]) -> dict[str, Series]:
    """What jobs used over time, by their ``grant_key``. Raises StateError."""

    def select(connection: sqlite3.Connection) -> dict[str, Series]:
        if not connection.execute(_HAS_SAMPLES).fetchone()[0]:
            return {}
        rows = [(key, connection.execute(_ONE_SERIES, (key,)).fetchone()) for key in grants]
        found = {key: decode(row[0]) for key, row in rows if row is not None}
        return {key: series for key, series in found.items() if series is not None}

    return _read(path, select)


def sums(path: str, by: str, **filters: Any) -> tuple[list[sums_of.Sum], sums_of.Sum]:
    """As :func:`slicer.outcome.sums.sums`; the GPU memory that a job held counts as declared."""
    statement, values = f"{_AS_OUTCOMES} {sums_of.statement(by)}", history_schema.filters(**filters)
    return _read(path, lambda connection: sums_of.add_up(connection.execute(statement, values)))


def select_usage(
    connection: sqlite3.Connection, since: float | None, uid: int | None, by: str, most: int
) -> list[UsageRow]:
    """Usage of one user's jobs (None: all users'), the most GPU time first. Raises sqlite3.Error."""
    statement = USAGE.format(key=KEYS[by])
    found = connection.execute(statement, (-1.0 if since is None else since, uid, most))
    return [
        UsageRow(str(key), jobs, 0, gpu_s, vram_mib_s, cpu_s, waited_s)
        for key, jobs, gpu_s, vram_mib_s, cpu_s, waited_s in found
    ]


def select_recent(connection: sqlite3.Connection, since: float) -> tuple[PastLease, ...]:
    """The last leases on GPUs that ended since then, the latest first. Raises sqlite3.Error."""
    found: list[PastLease] = []
    room = _MOST_RECENT_GPUS
    for uid, gpus, granted_at, held_s in connection.execute(RECENT):
        room -= len(gpus.split())
        if granted_at + held_s < since or room < 0:  # jobs are in the order of their ends
            break
        if gpus:
            found.append(PastLease(uid, tuple(gpus.split()), granted_at, held_s))
    return tuple(found)


def all_totals(path: str) -> list[totals.Total]:
    """Sums over all users' jobs that have ended since the broker keeps them. Raises StateError."""
    return _read(path, lambda connection: list(map(totals.made, connection.execute(totals.SELECT))))


def prepare(connection: sqlite3.Connection) -> None:
    """Add columns that a file of an older broker lacks, and the function ``result``. Raises sqlite3.Error."""
    for name, kind in _ADDED.items():
        if not connection.execute(_HAS, (name,)).fetchone()[0]:
            connection.execute(f"ALTER TABLE jobs ADD COLUMN {name} {kind}")
    connection.create_function("result", 3, result_of)


def _read(path: str, act: Callable[[sqlite3.Connection], _T]) -> _T:
    if not os.path.lexists(path):
        hint = "the broker keeps them: see slicer install --broker"
        raise StateError("there are no accounts on this machine", where=path, hint=hint)
    try:
        # Writable, because the first process to open it rolls back what a killed broker left unfinished.
        database = sqlite3.connect(f"file:{path}?mode=rw", timeout=_BUSY_TIMEOUT_S, uri=True)
        with closing(database) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != SCHEMA_VERSION:
                message = f"has schema {version}, this slicer reads {SCHEMA_VERSION}"
                raise StateError(message, where=path, hint="the broker is of another version")
            prepare(connection)
            return act(connection)
    except sqlite3.Error as error:
        hint = "" if os.access(path, os.R_OK | os.W_OK) else "only root may read it"
        raise StateError(f"the accounts cannot be read: {error}", where=path, hint=hint) from error
