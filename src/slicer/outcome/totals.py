"""Sums over all jobs that have ended, by user, profile and result, for counters that only grow.

The history and the broker's accounts forget old jobs. The table ``totals`` beside them does not: each job is
added to it once.
"""

from __future__ import annotations

import os

from slicer.outcome import history
from slicer.outcome.result import result_of
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection

WAITS_S = (1, 10, 60, 300, 1800, 7200, 28800, 86400)  # upper bounds of waiting times; longer ones are beyond
OTHER_PROFILES = "(others)"
_MOST_PROFILES = 50  # of one user, who chooses their names
_BUSY_TIMEOUT_S = 2.0
_SUMS = ("jobs", "gpu_s", "cpu_s", "waited_s", *(f"waited_{bound}" for bound in WAITS_S))
SCHEMA = f"""\
CREATE TABLE IF NOT EXISTS totals (
    uid INTEGER NOT NULL,
    profile TEXT NOT NULL,
    result TEXT NOT NULL,
    {', '.join(f'{name} REAL NOT NULL' for name in _SUMS)},  -- waited_60: jobs that waited for at most 60 s
    PRIMARY KEY (uid, profile, result)
)"""
SELECT = f"SELECT uid, profile, result, {', '.join(_SUMS)} FROM totals ORDER BY 1, 2, 3"


@record
class Total:
    """The sums for one user, profile and result."""

    uid: int
    profile: str
    result: str  # "succeeded", "failed", "signal", "oom-kill", "timeout", "stopped" or "unknown"
    jobs: int
    gpu_s: float
    cpu_s: float
    waited_s: float
    waits: tuple[int, ...]  # the jobs that waited for at most each of WAITS_S


def adding(table: str, gpu_s: str, where: str) -> str:
    """The statement that adds jobs of a table. ``gpu_s``, ``where``: SQL for their GPU time, and which.

    Its connection needs the function ``result``: :func:`slicer.outcome.result.result_of`.
    """
    return f"""\
INSERT INTO totals (uid, profile, result, {', '.join(_SUMS)})
SELECT uid,
    CASE WHEN profile IN (SELECT profile FROM totals AS t WHERE t.uid = {table}.uid)
        OR (SELECT count(DISTINCT profile) FROM totals AS t WHERE t.uid = {table}.uid) < {_MOST_PROFILES}
        THEN profile ELSE '{OTHER_PROFILES}' END,
    CASE result(exit_code, reason, ended_by) WHEN 'ok' THEN 'succeeded' WHEN 'stopped' THEN 'stopped'
        WHEN 'failed' THEN CASE WHEN reason IN ('signal', 'oom-kill', 'timeout') THEN reason ELSE 'failed' END
        ELSE 'unknown' END,
    count(*), total({gpu_s}), total(cpu_s), total(waited_s),
    {', '.join(f'total(waited_s <= {bound})' for bound in WAITS_S)}
FROM {table} WHERE {where} GROUP BY 1, 2, 3
ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"""


def made(row: tuple[int | str | float, ...]) -> Total:
    uid, profile, result, jobs, gpu_s, cpu_s, waited_s, *waits = row
    numbers = (int(jobs), float(gpu_s), float(cpu_s), float(waited_s))
    return Total(int(uid), str(profile), str(result), *numbers, tuple(map(int, waits)))


# Up to which outcome they are added. Ids grow, and begin again only after all outcomes were removed.
_ADDED = "CREATE TABLE IF NOT EXISTS totals_until (id INTEGER NOT NULL)"
_ADD = adding(
    "outcomes", "json_array_length(gpus) * wall_s",
    "id <= ?1 AND id > (SELECT total(id) FROM totals_until WHERE id <= ?1)",
)  # fmt: skip


def of_history(path: str) -> list[Total]:
    """The sums over a user's history, up to now. Raises StateError."""
    found: list[Total] = []

    def add(connection: Connection) -> None:
        connection.create_function("result", 3, result_of)
        connection.execute(SCHEMA)
        connection.execute(_ADDED)
        (last,) = connection.execute("SELECT max(id) FROM outcomes").fetchone()
        if last is not None:
            connection.execute(_ADD, (last,))
            connection.execute("DELETE FROM totals_until")
            connection.execute("INSERT INTO totals_until VALUES (?1)", (last,))
        found[:] = map(made, connection.execute(SELECT).fetchall())

    if os.path.lexists(path):
        history.write(path, add, busy_timeout_s=_BUSY_TIMEOUT_S)
    return found
