"""The tables of the history, their columns, and how a file of a version before is brought up to this one.

slicer leaves a file of any other version alone. This module is on the hot path of ``slicer run``.
"""

from __future__ import annotations

from slicer.model import Outcome, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _sqlite3
    from collections.abc import Iterable

SCHEMA_VERSION = 9

# A column for each field of Outcome and Usage, in the order of insertion; lists are JSON arrays,
# slots, sharing and git JSON objects.
OUTCOME = tuple(name for name in Outcome.__annotations__ if name != "usage")
USAGE = tuple(Usage.__annotations__)
LISTS = ("command", "gpus", "enforced", "not_enforced", "changed", "changed_outside")
NUMBERS = ("vram_peak_mib", "gpu_indices")
COUNTS = "slots"
SHARING = "sharing"
COLUMNS = OUTCOME + USAGE
GIT = "git"
_GPU_INDICES = "gpu_indices TEXT NOT NULL DEFAULT '[]'"
_GIT = "git TEXT"
ATTEMPTS = "attempts"
_ATTEMPTS = "attempts TEXT NOT NULL DEFAULT '[]'"
_SCHEMA = f"""\
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
    slots TEXT NOT NULL DEFAULT '{{}}',  -- JSON object: how many of which name, cpu_slots among them
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
    directory TEXT NOT NULL DEFAULT '',
    log TEXT NOT NULL DEFAULT '',  -- the file with its output
    {_GPU_INDICES},  -- JSON array, in the order of gpus
    {_GIT},  -- JSON object: which code ran
    {_ATTEMPTS},  -- JSON array of objects: of a job that ran again, how each attempt ended
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
# The decisions of `slicer route`: slicer.outcome.decisions.
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
# What a job used while it ran, as a time series.
_SAMPLES = "CREATE TABLE samples (job TEXT PRIMARY KEY, series BLOB NOT NULL)"
# What brings a file of each version before to the next one.
_ADDED = {
    6: (f"ALTER TABLE outcomes ADD COLUMN {_GPU_INDICES}", _SAMPLES),
    7: (f"ALTER TABLE outcomes ADD COLUMN {_GIT}",),
    8: (f"ALTER TABLE outcomes ADD COLUMN {_ATTEMPTS}",),
}
MIGRATED = tuple(_ADDED)
INSERT = f"INSERT OR IGNORE INTO outcomes ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
UNSEEN = "DELETE FROM outcomes WHERE job = ? AND reason = 'unknown'"  # its end turned out to be known
INSERT_SAMPLES = "INSERT OR IGNORE INTO samples (job, series) VALUES (?, ?)"
FAILED = "result(exit_code, reason, ended_by) = 'failed'"  # slicer.outcome.result, for readers
FILTERS = f"""\
(?1 IS NULL OR name GLOB ?1)
    AND (?2 IS NULL OR substr(job, 1, length(?2)) = ?2)
    AND (?3 IS NULL OR started_at >= ?3)
    AND (?4 IS NULL OR started_at < ?4)
    AND (NOT ?5 OR {FAILED})"""
SELECT = f"SELECT {', '.join(COLUMNS)} FROM outcomes WHERE {FILTERS} ORDER BY id DESC LIMIT ?6"

# What ended before ?1 is removed. Each statement only looks at the oldest rows, which costs a job little.
_OLD = """(
    SELECT id FROM (SELECT id, started_at + wall_s AS ended_at FROM outcomes ORDER BY id LIMIT 50)
    WHERE ended_at < ?1
)"""
FORGET = (
    f"DELETE FROM samples WHERE job IN (SELECT job FROM outcomes WHERE id IN {_OLD})",
    f"DELETE FROM outcomes WHERE id IN {_OLD}",
    "DELETE FROM decisions WHERE decided_at < ?1 AND id IN (SELECT id FROM decisions ORDER BY id LIMIT 50)",
)
HELD_GPUS = """\
SELECT gpus, started_at, wall_s FROM outcomes
WHERE gpus != '[]' AND started_at + wall_s >= ?1 ORDER BY id DESC LIMIT ?2"""


def filters(
    *, name: str | None = None, job: str | None = None, since: float | None = None,
    until: float | None = None, failed: bool = False,
) -> tuple[str | float | None, ...]:  # fmt: skip
    """?1 to ?5 of :data:`FILTERS`, by default for all jobs. Times are in seconds since the epoch.

    ``name`` is a shell pattern (``train*``), ``job`` an id or its beginning; ``since``: it began then or
    later; ``until``: it began before that; ``failed``: see :mod:`slicer.outcome.result`.
    """
    return name, job, since, until, int(failed)


def version_of(connection: _sqlite3.Connection) -> int:
    """The schema version of the file; 0 if it is empty. Raises _sqlite3.Error, like all functions here."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def make(connection: _sqlite3.Connection) -> None:
    """Create the tables in a file that has none."""
    _change(connection, 0, (_SCHEMA, _DECISIONS, _SAMPLES))


def migrate(connection: _sqlite3.Connection) -> None:
    """Bring a file of a version before up to this version, or leave it as it was.

    That holds for a kill at any instant and, with ``synchronous=FULL``, if the power fails.
    """
    version = version_of(connection)
    _change(connection, version, [each for step in range(version, SCHEMA_VERSION) for each in _ADDED[step]])


def _change(connection: _sqlite3.Connection, version: int, statements: Iterable[str]) -> None:
    """Make this version of a file of that ``version``, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    if version_of(connection) == version:  # no other job was faster
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
