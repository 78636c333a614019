"""Outcomes of jobs, kept in SQLite: one row a job, in plain columns for ``sqlite3`` and ``slicer history``.

When it ends, a job opens the database, inserts one row and closes it. That is on the hot path, so every
choice was measured (two cores, Python 3.11, SQLite 3.40). A row costs 2.8 ms with all imports, and 0.6 ms if
:func:`preload` was called while the job ran.

- It uses the C module ``_sqlite3`` without Python's ``sqlite3`` package (+4 ms: datetime, collections.abc).
- The database has a rollback journal and ``synchronous=OFF``: an insert takes 0.25 ms. After a kill at any
  instant, the next process that opens it finds the journal file and rolls back. The kernel keeps what was
  written, so a kill needs no fsync. If the *power* fails within seconds of a job's end, the order of writes
  is lost. A database damaged that way is set aside, and a new one created. With ``synchronous=FULL`` an
  insert takes 0.9 ms if a flush costs nothing (a virtual disk), and otherwise two more flushes.
- WAL takes 1.2 ms: the last process to close it, here every one, checkpoints with fsync, which Python 3.11
  cannot turn off. Its readers must be able to write, and it does not work on network home directories.
- Writers that collide wait for each other (``busy_timeout``). Each takes its lock in one step, so none
  deadlocks. SQLite waits by sleeping, up to 25 ms at a time. So when many jobs end at once, they take
  turns through a lock file, at 1 ms each. A writer that does not get its turn goes on without it.
- Removing what is too old (``[history] keep``) adds 0.08 ms while there is nothing to remove, and 0.22 ms for
  50 outcomes. There is no VACUUM: SQLite uses the room again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time

from slicer.errors import StateError
from slicer.kernel import home, on_host
from slicer.model import Outcome, Usage
from slicer.outcome import history_schema as schema
from slicer.record import as_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType
    from typing import Any, TypeVar

    from slicer.outcome.series import Series

    T = TypeVar("T")
    Sql = str | int | float | None

SYSTEM_DIRECTORY = "/var/lib/slicer"
FILE = "history.db"
KEPT = ".outcome"  # the end of the names of what slicer.outcome.kept keeps
BUSY_TIMEOUT_S = 5.0
_TURN_S = 0.5  # how long to wait for the lock file
_PAUSE_S = 0.002
_ROOM = 1 << 16  # bytes that a transaction may need
_SMALLEST = 512  # bytes; SQLite's smallest page, and so its smallest file

# SQLite's primary result codes, from sqlite3.h
_SQLITE_CORRUPT, _SQLITE_NOTADB = 11, 26
_HINTS = {
    **dict.fromkeys((5, 6), "another program keeps it open in a transaction"),  # busy, locked
    8: "it, or its directory, is read-only",
    10: "the disk may be full or failing",
    13: "free some space, or some inodes",
    14: "check the permissions of its directory",
}


class _Damaged(Exception):
    """The file is not a usable SQLite database."""


def default_path(environ: Mapping[str, str] | None = None) -> str:
    """The path of this user's history.

    It is ``/var/lib/slicer/history.db`` for root, otherwise ``$XDG_STATE_HOME/slicer/history.db``, with the
    specification's default of ``~/.local/state``. As it demands, a relative $XDG_STATE_HOME is ignored.
    """
    environ = os.environ if environ is None else environ
    if os.geteuid() == 0:
        return on_host(f"{SYSTEM_DIRECTORY}/{FILE}")
    base = environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(home(environ) or "/", ".local/state")
    return os.path.join(base, "slicer", FILE)


def folder(environ: Mapping[str, str] | None = None) -> str:
    """Where files of this user's detached jobs are: :mod:`slicer.outcome.job_files`."""
    return f"{os.path.dirname(default_path(environ))}/jobs"


def preload() -> None:
    """Load SQLite (0.8 ms, about 1 MiB), in a process that has nothing else to do while its job runs."""
    try:
        _sqlite()
    except StateError:
        pass  # reported when there is an outcome to keep


def append(
    outcome: Outcome, path: str, *, series: Series | None = None, keep_s: float | None = None,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> str | None:  # fmt: skip
    """Add an outcome, and what the job used over time. Creates a missing directory and database.

    Removes some of what ended more than ``keep_s`` seconds ago (None: nothing), a little with each call.

    Returns None, or one line for the user if a damaged database was set aside for a new one. Raises
    StateError if the row could not be kept: the path is a symlink or another user's, the directory is not
    writable, the disk is full, the database has another version, or another program kept it locked for
    ``busy_timeout_s`` seconds. The caller warns and goes on: the history stops no job.
    """
    row, packed = _row(outcome), b""
    if series is not None:
        from slicer.outcome.series import encode

        packed = encode(series)  # before the others wait for the database

    def insert(connection: Connection) -> None:
        connection.execute(schema.UNSEEN, (outcome.job,))
        connection.execute(schema.INSERT, row)
        if packed:
            connection.execute(schema.INSERT_SAMPLES, (outcome.job, packed))
        if keep_s is not None:
            for statement in schema.FORGET:
                connection.execute(statement, (time.time() - keep_s,))

    return write(path, insert, busy_timeout_s=busy_timeout_s)


def write(path: str, act: Callable[[Connection], object], *, busy_timeout_s: float) -> str | None:
    """Call ``act`` with the database, which is created if it is missing, in a transaction. For this folder.

    Returns and raises the same as :func:`append`. If the database turns out to be damaged, ``act`` is called
    again with the new one.
    """
    warning = None
    for _attempt in range(3):
        seen = _prepare(path)
        try:
            if 0 < seen.st_size < _SMALLEST:
                raise _Damaged("file is not a database")  # SQLite would overwrite it
            turn = _await_turn(f"{path}.lock")
            try:
                _write(path, act, busy_timeout_s)
            finally:
                if turn >= 0:
                    os.close(turn)
        except _Damaged as error:
            warning = _set_aside(path, seen.st_ino, str(error)) or warning
        else:
            return warning
    raise StateError("the history is damaged again and again", where=path, hint="move it away")


def read(path: str, *, limit: int | None = 50, **filters: Any) -> list[Outcome]:
    """The last ``limit`` outcomes (None: all), the newest first; none if there is no history yet.

    ``filters`` are arguments of :func:`slicer.outcome.history_schema.filters`. Raises StateError if the
    database is damaged or cannot be read.
    """
    values = (*schema.filters(**filters), -1 if limit is None else limit)
    return list(_outcomes(select(path, schema.SELECT, values)))


def held_gpus(path: str, since: float, most: int = 10_000) -> list[tuple[tuple[str, ...], float, float]]:
    """The GPUs, begins and lengths of the last jobs that ended since then, times in seconds since 1970.

    Raises StateError.
    """
    import json

    return [
        (tuple(json.loads(gpus)), started_at, wall_s)
        for gpus, started_at, wall_s in select(path, schema.HELD_GPUS, (since, most))
    ]


def _row(outcome: Outcome) -> list[Sql]:
    row: list[Sql] = []
    for column in schema.OUTCOME:
        value = getattr(outcome, column)
        if column in (*schema.LISTS, *schema.NUMBERS):
            value = json_array(value)
        elif column == schema.ATTEMPTS:
            value = json_array(map(as_dict, value))
        elif column == schema.COUNTS:
            value = json_text({name: value[name] for name in sorted(value)})
        elif column in (schema.SHARING, schema.GIT):
            value = None if value is None else json_text(as_dict(value))
        elif isinstance(value, str):
            value = encodable(value)
        row.append(value)
    row.extend(getattr(outcome.usage, column) for column in schema.USAGE)
    return row


def encodable(text: str) -> str:
    """``text`` with undecodable bytes (lone surrogates, which SQLite does not allow) as ``\\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode()


_JSON_ESCAPES = {**{c: f"\\u{c:04x}" for c in (*range(0x20), 0x7F)}, ord('"'): '\\"', ord("\\"): "\\\\"}


def json_array(items: Iterable[object]) -> str:
    """A JSON array, without the json module (9 ms). Lone surrogates are kept as ``\\udcff``."""
    return f"[{', '.join(map(json_text, items))}]"


def json_text(value: object) -> str:
    """A value as JSON, likewise. Names in an object are of slots or fields, which need no escapes."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return json_array(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}": {json_text(each)}' for name, each in value.items()) + "}"
    if isinstance(value, str):
        return encodable('"' + value.translate(_JSON_ESCAPES) + '"')
    return repr(round(value, 6)) if isinstance(value, float) else str(value)


def _nested(text: str | None, reader: Callable[[Any], T]) -> T | None:
    """The column's record; None also if another program has written there."""
    if text is None:
        return None
    import json

    try:
        return reader(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


_REPEATED = 1000  # decoded lists that are kept: most columns of most rows are the same few


def _outcomes(rows: Iterable[tuple[Any, ...]]) -> Iterator[Outcome]:
    import functools
    import json

    from slicer.outcome.outcome_file import attempts_from, git_from, sharing_from

    @functools.lru_cache(_REPEATED)
    def listed(text: str) -> tuple[Any, ...]:
        return tuple(json.loads(text))

    for row in rows:
        values = dict(zip(schema.COLUMNS, row, strict=True))
        usage = Usage(**{column: values.pop(column) for column in schema.USAGE})
        for column in (*schema.LISTS, *schema.NUMBERS):
            values[column] = listed(values[column])
        values[schema.COUNTS] = json.loads(values[schema.COUNTS])
        for column, reader in ((schema.SHARING, sharing_from), (schema.GIT, git_from)):
            values[column] = _nested(values[column], reader)
        values[schema.ATTEMPTS] = _nested(values[schema.ATTEMPTS], attempts_from) or ()
        yield Outcome(usage=usage, **values)


def _sqlite() -> ModuleType:
    """The C module of sqlite3. Raises StateError."""
    try:
        import _sqlite3
    except ImportError as error:
        raise StateError(
            f"no history is kept: this Python has no sqlite3 ({error})", where=sys.executable,
            hint="install it, or use another Python",
        ) from error  # fmt: skip
    return _sqlite3


def _await_turn(path: str) -> int:
    """The lock file, flocked; -1 if it is not available. It only saves time; nothing else depends on it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    end = time.monotonic() + _TURN_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:  # busy, or the file system has no such locks
            if time.monotonic() >= end:
                os.close(fd)
                return -1
        time.sleep(_PAUSE_S)


def _write(path: str, act: Callable[[Connection], object], busy_timeout_s: float) -> None:
    def write(connection: Connection) -> None:
        version = _checked_version(connection, path)
        if version in schema.MIGRATED:
            schema.migrate(connection)  # with SQLite's default, synchronous=FULL: it happens once
        connection.execute("PRAGMA synchronous=OFF")
        if not version:
            schema.make(connection)
        connection.execute("BEGIN IMMEDIATE")
        act(connection)
        connection.execute("COMMIT")

    _connected(path, path, write, timeout=busy_timeout_s)


def _checked_version(connection: Connection, path: str) -> int:
    """The version of the tables, this one or one to migrate; 0: there are none. Raises StateError."""
    version = schema.version_of(connection)
    if version not in (0, *schema.MIGRATED, schema.SCHEMA_VERSION):
        is_newer = version > schema.SCHEMA_VERSION
        hint = "a newer slicer made it: upgrade this one" if is_newer else "move it away: a new one is made"
        message = f"the history has schema {version}, this slicer knows {schema.SCHEMA_VERSION}"
        raise StateError(message, where=path, hint=hint)
    return version


def select(path: str, statement: str, values: tuple[Sql, ...], take: Callable[..., Any] = list) -> Any:
    """What ``take`` makes of the rows that a statement finds; they are none if there is no database yet.

    Only for this folder. A file of a version before is migrated first. Raises StateError.
    """
    if not os.path.lexists(path):
        return take(())

    def found(connection: Connection) -> tuple[Any, ...]:
        version = _checked_version(connection, path)
        if version in schema.MIGRATED:
            return ()
        from slicer.outcome.result import result_of

        connection.create_function("result", 3, result_of)
        return (take(connection.execute(statement, values) if version else ()),)

    # Writable if possible, because a reader has to roll back what a killed writer left.
    mode = "rw" if os.access(path, os.W_OK) and os.access(os.path.dirname(path) or ".", os.W_OK) else "ro"
    place = os.fsencode(os.path.abspath(path))  # quoted by hand: importing urllib takes milliseconds
    quoted = "".join(f"%{byte:02x}" if byte > 126 or byte in b"%?#" else chr(byte) for byte in place)
    uri = f"file:{quoted}?mode={mode}"
    try:
        taken = _connected(path, uri, found, timeout=BUSY_TIMEOUT_S, uri=True)
        if not taken:
            _prepare(path)
            _write(path, lambda _: None, BUSY_TIMEOUT_S)
            taken = _connected(path, uri, found, timeout=BUSY_TIMEOUT_S, uri=True)
        return taken[0]
    except _Damaged as damage:
        hint = "the next job sets it aside and creates a new one"
        raise StateError(f"the history is damaged: {damage}", where=path, hint=hint) from damage


def _connected(path: str, database: str, act: Callable[[Connection], T], **options: Any) -> T:
    """Call ``act`` with a connection to the database at ``path``. Raises StateError and _Damaged."""
    sqlite = _sqlite()
    connection = None
    try:
        connection = sqlite.connect(database, isolation_level=None, **options)
        return act(connection)
    except sqlite.Error as error:
        raise _translated(error, path) from error
    finally:
        if connection is not None:
            connection.close()


def _translated(error: Exception, path: str) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (_SQLITE_CORRUPT, _SQLITE_NOTADB):
        return _Damaged(str(error))
    full = _why_full(os.path.dirname(path) or ".") if code in (10, 13, 14) else ""
    hint = _HINTS[13] if full else _HINTS.get(code, "")
    if code in (5, 6) and _lacks_locks(path):
        hint = "its file system has no locks (NFS without them): set XDG_STATE_HOME to a local directory"
    return StateError(f"the history cannot be used: {full or error}", where=path, hint=hint)


def _lacks_locks(path: str) -> bool:
    """Whether the file cannot be locked at all. SQLite calls that busy, too."""
    try:
        with open(path, "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOLCK, errno.EOPNOTSUPP)
    return False


def _why_full(directory: str) -> str:
    """The words of the system if it has no room for another file, else "". SQLite does not know them."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _ROOM)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error.strerror or ""
    return ""


def _prepare(path: str) -> os.stat_result:
    """Make sure that ``path`` is our own file, in a directory where nobody else can replace it.

    SQLite opens by name and follows symlinks. These checks must still hold then, so they include the
    directory. Raises StateError.
    """
    directory = os.path.dirname(path) or "."
    try:
        _check_directory(directory)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            # SQLite accepts an empty file as an empty database, and would create it with mode 0644 itself.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
            found = os.lstat(path)
    except OSError as error:
        raise StateError(f"the history cannot be written: {error.strerror}", where=path) from error
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise StateError(f"the history is {what}", where=path, hint="slicer does not follow it: remove it")
    if found.st_uid != os.geteuid():
        raise StateError(f"the history belongs to uid {found.st_uid}", where=path, hint="move it away")
    if found.st_nlink != 1:
        raise StateError("the history has a second name (hard link)", where=path, hint="remove one of them")
    return found


def _check_directory(directory: str) -> None:
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        # Command lines may contain secrets, so others may not read them.
        os.makedirs(directory, 0o700, exist_ok=True)
        found = os.stat(directory)
    others = stat.S_IWOTH | (stat.S_IWGRP if os.geteuid() == 0 else 0)
    if found.st_mode & others or found.st_uid not in (0, os.geteuid()):
        hint = f"chown and chmod it so that only uid {os.geteuid()} can write there"
        raise StateError("the history's directory is writable by others", where=directory, hint=hint)


def _set_aside(path: str, seen: int, why: str) -> str | None:
    """Rename a damaged database (inode ``seen``) with its journal, unless another job has already done so."""
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        try:
            if os.lstat(path).st_ino != seen:
                return None
            aside = f"{path}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{seen}"
            # The journal first: a writer may still be working on the damaged file, and its journal, rolled
            # back into the new one, would damage that, too.
            if os.path.lexists(f"{path}-journal"):
                os.rename(f"{path}-journal", f"{aside}-journal")
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(
                f"the history is damaged ({why}) and cannot be set aside: {error.strerror}", where=path
            ) from error
    finally:
        os.close(directory)
    return f"{path}: the history was damaged ({why}); it is kept as {aside}, and a new one was created"
