"""The accounts of all users' jobs: /var/lib/slicer/usage.db, which belongs to root alone.

The broker adds a job when its lease has ended. One transaction writes the job's row and its user's use for
the fair share. SQLite writes ahead (WAL), so nobody waits for the disk, and root may read in the meantime. A
kill loses nothing. A power failure may lose the last jobs, but damages nothing.

The database is bounded: only each user's latest jobs are kept one by one, older ones are added up by day.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable

from slicer import faults
from slicer.broker import accounts
from slicer.broker.accounts import DIRECTORY, FILE, select_recent, select_usage
from slicer.broker.protocol.messages import Finished, PastLease, UsageRow
from slicer.broker.rules.run_lengths import RunLengths
from slicer.broker.rules.shares import Past, decayed, held
from slicer.errors import StateError
from slicer.kernel import proc
from slicer.model import Lease, Usage
from slicer.outcome import totals
from slicer.outcome.history import encodable
from slicer.outcome.result import result_of
from slicer.placement.suspects import RunEnd, how_ended
from slicer.record import record
from slicer.state.directory import LEDGER, check_file, open_trusted

MOST_JOBS = 10_000  # of each user, kept one by one
MOST_SERIES = 1000  # of each user's last jobs, of what they used over time
_FOLDED = 1000  # jobs that are added up by day at a time
_MOST_PROFILES = 50  # names in each user's days
_OTHER_PROFILES = "(others)"
_MOST_COMMAND = 500  # characters
_MOST_UNBOOKED = 1000  # kept in memory while the database cannot be written
_NOTHING_S = 0.01  # GPU-seconds that count as none
_CHECKPOINT_PAGES = 4000  # some 2,000 jobs: a checkpoint waits for the disk, and so do all requests for GPUs
_BUSY_TIMEOUT_S = 0.2  # there should be no other writer


@record
class EndedLease:
    lease: Lease  # with its command
    gid: int  # the group to which it is booked: rules.policy.account_of
    ended_s: float  # CLOCK_BOOTTIME
    waited_s: float
    rate: float  # rules.shares.gpu_rate, when it was granted
    vram_mib: int  # over all its GPUs; a whole GPU counts with all its memory
    finished: Finished | None  # the client's report; None: there is none
    usage: Usage | None  # the cgroup's own figures, if the broker could read them; these count


class Accounts:
    """The database. Its failures keep no lease from being granted or ended: it warns instead."""

    def __init__(
        self, half_life_s: Callable[[], float], *, directory: str = DIRECTORY, warn: Callable[[str], None]
    ) -> None:
        """Open or create the database. Raises nothing: without a database it counts in memory."""
        self._half_life_s = half_life_s
        self._path = f"{directory}/{FILE}"
        self._warn = warn
        self._connection: sqlite3.Connection | None = None
        self._past: dict[int, Past] = {}
        self._counts: dict[int, int] = {}  # rows in jobs, by uid
        self._unbooked: list[EndedLease] = []
        self.runs = RunLengths()
        self._has_warned = False
        try:
            self._open(directory)
        except (OSError, StateError, sqlite3.Error) as error:
            self._failed(error)

    # -- the broker's side -------------------------------------------------------------------------------

    def past(self) -> dict[int, Past]:
        """Each user's use by jobs that have ended."""
        if not self._unbooked:
            return self._past
        found = dict(self._past)
        for ended in self._unbooked:  # not in the database yet, but counted
            found[ended.lease.uid] = self._after(ended, found)
        return found

    def note(self, ended: EndedLease) -> None:
        """Count a job from now on, and add it with the next :meth:`write`."""
        self._unbooked.append(ended)
        lease, told = ended.lease, ended.finished
        if lease.gpus and told is not None:
            length_s = max(0.0, ended.ended_s - lease.since_s - told.paused_s)
            result = result_of(told.exit_code, told.reason, told.ended_by)
            if not told.exit_code:  # a failed run says little about others
                self.runs.note(lease.uid, lease.command, length_s)
            how = how_ended(told.exit_code, told.reason, result, length_s)
            self.runs.note_end(lease.uid, lease.command, RunEnd(ended.ended_s, how, lease.gpus, ""))
        if self._connection is None:  # only for the fair share, until the broker exits
            self._unbooked.clear()
            self._past[ended.lease.uid] = self._after(ended, self._past)

    def note_series(self, uid: int, job: str, lease: Lease | None, data: bytes) -> None:
        """Keep what a job used over time. Without its ``lease`` it is one of the user's last jobs."""
        connection = self._connection
        if connection is None:
            return
        self.write()  # the job may have ended in this turn
        try:
            if lease is None:
                row = connection.execute(accounts.LAST_GRANT, (uid, job)).fetchone()
            else:
                row = (_grant_key(lease),)
            if row is not None:
                connection.execute(accounts.INSERT_SAMPLES, (row[0], uid, data))
                connection.execute(accounts.FORGET_SAMPLES, (uid, MOST_SERIES))
        except sqlite3.Error as error:
            self._failed(error)

    def write(self) -> None:
        """Add the noted jobs. Adding a job twice (after a kill in between) has no effect."""
        while self._unbooked and self._connection is not None:
            try:
                self._book(self._connection, self._unbooked[0])
            except sqlite3.Error as error:
                self._failed(error)
                return
            self._unbooked.pop(0)
            self._has_warned = False

    def usage(self, since: float | None, uid: int | None, by: str, most: int = 1000) -> list[UsageRow]:
        """Use by jobs that ended since ``since`` (seconds since 1970), the most GPU time first.

        ``uid`` None: by all users; ``by``: "user", "group" or "profile". Raises StateError.
        """
        if self._connection is None:
            raise StateError("there are no accounts", where=self._path, hint="see the broker's journal")
        self.write()  # including what has ended in this turn
        try:
            return select_usage(self._connection, since, uid, by, most)
        except sqlite3.Error as error:
            raise StateError(f"the accounts cannot be read: {error}", where=self._path) from error

    def recent(self, since: float) -> tuple[PastLease, ...]:
        """Who held GPUs since then (seconds since 1970). Raises StateError."""
        try:
            return select_recent(self._connection, since) if self._connection is not None else ()
        except sqlite3.Error as error:
            raise StateError(f"the accounts cannot be read: {error}", where=self._path) from error

    def close(self) -> None:
        """Try again to write what could not be written, and close the connection."""
        self.write()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- one job -----------------------------------------------------------------------------------------

    def _book(self, connection: sqlite3.Connection, ended: EndedLease) -> None:
        uid, now_at = ended.lease.uid, time.time()
        past = self._after(ended, self._past)
        connection.execute("BEGIN IMMEDIATE")
        try:
            row = _row(ended, now_at)
            is_new = connection.execute(accounts.INSERT_JOB, row).rowcount == 1
            if is_new:
                connection.execute(accounts.ADD_TO_TOTALS, row[:1])
                faults.point("broker-account-row")
                used_at, granted_at = (now_at - (proc.now_s() - each) for each in (past.at_s, past.granted_s))
                connection.execute(accounts.SET_USER, (uid, past.gpu_s, used_at, granted_at))
                count = self._counts.get(uid, 0) + 1
                if count > MOST_JOBS + _FOLDED:
                    count -= _fold(connection, uid)
                self._counts[uid] = count
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if is_new:
            self._past[uid] = past

    def _after(self, ended: EndedLease, past: dict[int, Past]) -> Past:
        """The user's use once this job is added."""
        lease, now_s, half_life_s = ended.lease, proc.now_s(), self._half_life_s()
        before = past.get(lease.uid, Past(0.0, now_s, -float("inf")))
        gpu_s = decayed(before.gpu_s, now_s - before.at_s, half_life_s)
        gpu_s += held(ended.rate, lease.since_s, ended.ended_s, now_s, half_life_s)
        granted_s = max(before.granted_s, lease.since_s) if lease.gpus else before.granted_s
        return Past(gpu_s, max(now_s, before.at_s), max(granted_s, now_s - _LONG_AGO_S))

    # -- the file ----------------------------------------------------------------------------------------

    def _open(self, directory: str) -> None:
        os.makedirs(directory, 0o755, exist_ok=True)
        # From here on only root can put another file there.
        folder = open_trusted(directory)
        try:
            fd = folder.open(FILE, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                check_file(fd, self._path, LEDGER)
                os.fchmod(fd, 0o600)
            finally:
                os.close(fd)
        finally:
            folder.close()
        try:
            self._connection = _connected(self._path)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise
            aside = f"{self._path}.damaged"
            os.replace(self._path, aside)
            for leftover in (f"{self._path}-wal", f"{self._path}-shm"):
                if os.path.lexists(leftover):
                    os.unlink(leftover)
            self._warn(f"{self._path}: damaged ({error}): kept as {aside}; new accounts begin")
            self._connection = _connected(self._path)
        self._load(self._connection)

    def _load(self, connection: sqlite3.Connection) -> None:
        now_s, now_at, half_life_s = proc.now_s(), time.time(), self._half_life_s()
        for uid, gpu_s, used_at, granted_at in connection.execute(accounts.USERS):
            # A clock that was set back reduces nothing; one that was wrongly in the future stops mattering
            # with this boot.
            past = Past(gpu_s, now_s - max(0.0, now_at - used_at), now_s - max(0.0, now_at - granted_at))
            if decayed(gpu_s, now_s - past.at_s, half_life_s) > _NOTHING_S:
                self._past[uid] = past
        self._counts = dict(connection.execute(accounts.COUNTS))
        for uid, command, length_s in connection.execute(accounts.LAST_RUNS).fetchall()[::-1]:
            self.runs.note(uid, command, length_s)

    def _failed(self, error: Exception) -> None:
        if not self._has_warned:
            self._warn(f"{self._path}: no accounts are kept: {error}")
            self._has_warned = True
        del self._unbooked[:-_MOST_UNBOOKED]


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LONG_AGO_S = 10 * 365 * 86400.0


def _connected(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(
                f"BEGIN;\n{accounts.SCHEMA};\nPRAGMA user_version={accounts.SCHEMA_VERSION};\nCOMMIT;"
            )
        elif version != accounts.SCHEMA_VERSION:
            message = f"has schema {version}, this slicer writes {accounts.SCHEMA_VERSION}"
            raise StateError(message, where=path, hint="upgrade slicer, or move the file away")
        accounts.prepare(connection)
        connection.execute(accounts.SAMPLES)
        connection.execute(totals.SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _fold(connection: sqlite3.Connection, uid: int) -> int:
    """Add up a user's oldest jobs by day; returns how many."""
    last = connection.execute(accounts.OLDEST_KEPT, (uid, MOST_JOBS)).fetchone()
    if last is None:
        return 0
    connection.execute(accounts.FOLD, (uid, last[0], _OTHER_PROFILES, _MOST_PROFILES))
    return connection.execute(accounts.FORGET, (uid, last[0])).rowcount


def _row(ended: EndedLease, now_at: float) -> tuple[str | int | float | None, ...]:
    lease, told, used = ended.lease, ended.finished, ended.usage
    since = now_at - (proc.now_s() - lease.since_s)
    cpu_s, memory = (used.cpu_s, used.memory_peak_bytes) if used is not None else (None, None)
    if told is not None:
        cpu_s = told.cpu_s if cpu_s is None else cpu_s
        memory = told.memory_peak_bytes if memory is None else memory
    peaks = [*lease.vram_peak_mib, *(told.vram_peak_mib if told is not None else ())]
    return (
        _grant_key(lease), lease.job, lease.uid, ended.gid, encodable(lease.name),
        encodable(lease.command[:_MOST_COMMAND]), encodable(lease.profile),
        " ".join(lease.gpus), max(peaks, default=None),
        " ".join(f"{name}={lease.slots[name]}" for name in sorted(lease.slots)), since,
        max(0.0, ended.ended_s - lease.since_s), ended.waited_s, ended.rate, ended.vram_mib, cpu_s, memory,
        told.reason if told is not None else "unknown", told.exit_code if told is not None else None,
        told.ended_by if told is not None else "", told.paused_s if told is not None else 0.0,
    )  # fmt: skip


def _grant_key(lease: Lease) -> str:
    return f"{lease.boot_id or proc.boot_id()} {lease.job} {lease.since_s:.6f}"
