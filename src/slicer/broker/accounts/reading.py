"""Reading usage.db: by the broker for one user, by root for all."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from slicer.broker.accounts import DIRECTORY, FILE, schema
from slicer.broker.protocol.messages import UsageRow
from slicer.errors import StateError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

PATH = f"{DIRECTORY}/{FILE}"
_BUSY_TIMEOUT_S = 5.0


@record
class AccountRow:
    """A job that has ended, as the broker knows it. Its columns are those of the table, in their order."""

    grant_key: str
    job: str
    uid: int
    gid: int  # the group that it is booked for
    name: str
    command: str
    profile: str
    gpus: str  # UUIDs, a blank in between
    vram_peak_mib: int | None  # on one GPU
    slots: str  # name=count, a blank in between
    granted_at: float  # seconds since 1970
    held_s: float
    waited_s: float
    gpu_rate: float  # how many GPUs' worth it was
    vram_mib: int  # over all its GPUs
    cpu_s: float | None
    memory_peak_bytes: int | None
    reason: str
    exit_code: int | None  # None: nobody told


def usage(path: str, since: float | None, by: str, most: int = 10_000) -> list[UsageRow]:
    """What all users' jobs used that ended since then (seconds since 1970). Raises StateError."""
    return _read(path, lambda connection: select_usage(connection, since, None, by, most))


def jobs(
    path: str, *, limit: int | None = 50, name: str | None = None, job: str | None = None,
    since: float | None = None, uid: int | None = None,
) -> list[AccountRow]:  # fmt: skip
    """The last jobs that ended, the newest first; arguments as in :func:`slicer.outcome.history.read`."""
    values = (name, job, since, uid, -1 if limit is None else limit)
    rows = _read(path, lambda connection: connection.execute(schema.JOBS, values).fetchall())
    return [AccountRow(*row) for row in rows]


def select_usage(
    connection: sqlite3.Connection, since: float | None, uid: int | None, by: str, most: int
) -> list[UsageRow]:
    """What was used by a user's jobs (None: all users'), the most GPU time first. Raises sqlite3.Error."""
    statement = schema.USAGE.format(key=schema.KEYS[by])
    found = connection.execute(statement, (-1.0 if since is None else since, uid, most))
    return [
        UsageRow(str(key), jobs, 0, gpu_s, vram_mib_s, cpu_s, waited_s)
        for key, jobs, gpu_s, vram_mib_s, cpu_s, waited_s in found
    ]


def _read(path: str, act: Callable[[sqlite3.Connection], _T]) -> _T:
    if not os.path.lexists(path):
        hint = "the broker keeps them: see slicer install --broker"
        raise StateError("there are no accounts on this machine", where=path, hint=hint)
    try:
        # Writable, because the first to open it rolls back what a killed broker left.
        database = sqlite3.connect(f"file:{path}?mode=rw", timeout=_BUSY_TIMEOUT_S, uri=True)
        with closing(database) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != schema.SCHEMA_VERSION:
                message = f"has schema {version}, this slicer reads {schema.SCHEMA_VERSION}"
                raise StateError(message, where=path, hint="the broker is of another version")
            return act(connection)
    except sqlite3.Error as error:
        hint = "" if os.access(path, os.R_OK | os.W_OK) else "only root may read it"
        raise StateError(f"the accounts cannot be read: {error}", where=path, hint=hint) from error
