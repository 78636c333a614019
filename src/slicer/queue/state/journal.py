"""The queue's journal: an append-only file of JSON lines that outlasts the queue.

A committed record is on the disk, complete and once. An incomplete record, left by a crash, is cut off before
anything is appended. :mod:`slicer.queue.state.folding` interprets the records. The lock of the log directory
(:mod:`slicer.queue.state.log_dir`) keeps a second writer out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from slicer.errors import StateError
from slicer.queue.state.log_dir import HINT, failing
from slicer.state.directory import Directory, write_all

Record = dict[str, object]

VERSION = 1  # rises if older readers would misunderstand; not for additional events and fields
_HEADER = b'{"event":"journal","v":%d}\n' % VERSION
_NAME = "journal.jsonl"
_LINES_NAMED = 10  # in the warning about damaged lines


class Journal:
    """An open journal. ``warnings``: sentences about damage that was repaired or skipped at opening."""

    def __init__(self, directory: Directory, fd: int, size: int, warnings: tuple[str, ...] = ()) -> None:
        """For :meth:`open`: ``fd`` is open for writing, and committed up to ``size`` bytes."""
        self.path = path_in(directory.path)
        self.warnings = warnings
        self._fd = fd
        self._size = size  # committed
        self._buffer: list[bytes] = []
        self.is_urgent = False  # an added record must not wait

    @classmethod
    def open(cls, directory: Directory, *, fresh: bool = False) -> tuple[Journal, tuple[Record, ...]]:
        """The journal in ``directory``, created if missing, and its records (without the first).

        With ``fresh``, an existing journal of any version is replaced by an empty one. Raises StateError if
        it cannot be read or repaired, is a newer slicer's, or not a queue's at all.
        """
        with failing(path_in(directory.path)):
            try:
                fd = directory.open_file(_NAME, os.O_RDWR)
            except FileNotFoundError:
                return cls._create(directory), ()
            try:
                return cls._read(directory, fd, fresh)
            except BaseException:
                os.close(fd)
                raise

    @classmethod
    def _create(cls, directory: Directory) -> Journal:
        made = cls(directory, directory.replace(_NAME, _HEADER, sync=True), len(_HEADER))
        directory.sync()
        return made

    @classmethod
    def _read(cls, directory: Directory, fd: int, fresh: bool) -> tuple[Journal, tuple[Record, ...]]:
        head = os.pread(fd, 4096, 0)
        # The file has only the beginning of the first line, or zeros after a power cut.
        is_begin = head != _HEADER and _HEADER.startswith(head)
        is_unborn = is_begin or (not head.strip(b"\0") and os.fstat(fd).st_size <= len(head))
        if not is_unborn:
            _check_head(path_in(directory.path), head, fresh)
        if is_unborn or fresh:
            made = cls._create(directory)
            os.close(fd)
            return made, ()
        records, good, warnings = _scan(fd, path_in(directory.path))
        if good < os.fstat(fd).st_size:
            os.ftruncate(fd, good)
            os.fsync(fd)
        return cls(directory, fd, good, warnings), records

    @classmethod
    def peek(cls, log_dir: str) -> tuple[Record, ...] | None:
        """The complete records of a journal that may be in use; None: no journal. Raises StateError."""
        path = path_in(log_dir)
        with failing(path, "cannot be read"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            except FileNotFoundError:
                return None
            try:
                _check_head(path, os.pread(fd, 4096, 0), fresh=False)
                return _scan(fd, path)[0]
            finally:
                os.close(fd)

    @property
    def pending(self) -> bool:
        return bool(self._buffer)

    def add(self, record: Record, *, durable: bool = True) -> None:
        """Append ``record`` with the next :meth:`commit`. Without ``durable`` it may be written late."""
        self._buffer.append(_encode(record))
        self.is_urgent = self.is_urgent or durable

    def commit(self) -> None:
        """Write all added records to the disk. Raises StateError; then none is written, and all wait."""
        if not self._buffer:
            return
        data = b"".join(self._buffer)
        with failing(self.path, "cannot be written"):
            try:
                write_all(self._fd, data, self._size)
                os.fdatasync(self._fd)
            except OSError:
                # If this also fails, the next call overwrites the data with at least the same records.
                os.ftruncate(self._fd, self._size)
                raise
        self._size += len(data)
        self._empty()

    def is_gone(self, directory: Directory) -> bool:
        """Whether somebody deleted, replaced or truncated the file. Raises StateError."""
        with failing(self.path, "cannot be checked"):
            try:
                ours = os.fstat(self._fd)
                return ours.st_size < self._size or not os.path.samestat(ours, directory.lstat(_NAME))
            except FileNotFoundError:
                return True

    def rewrite(self, directory: Directory, records: Iterable[Record]) -> None:
        """Replace the journal in ``directory``, if any, by one with just these ``records``.

        They represent everything added so far, committed or not. Raises StateError; then pending records stay
        pending, and the call must be repeated while :meth:`is_gone`.
        """
        data = _HEADER + b"".join(map(_encode, records))
        with failing(self.path, "cannot be written"):
            fd = directory.replace(_NAME, data, sync=True)
            try:
                directory.sync()
            except OSError:
                os.close(fd)
                raise
        os.close(self._fd)
        self._fd, self._size = fd, len(data)
        self._empty()

    def close(self) -> None:
        """Close the file; pending records are not written. Safe to repeat, and in a forked child."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _empty(self) -> None:
        self._buffer = []
        self.is_urgent = False


def _scan(fd: int, path: str) -> tuple[tuple[Record, ...], int, tuple[str, ...]]:
    """The records without the first, the end of the last good one, and warnings about damage."""
    records: list[Record] = []
    damaged: list[int] = []  # numbers of lines
    good = size = skipped = 0
    with open(fd, "rb", closefd=False) as file:
        for number, line in enumerate(file, 1):
            size += len(line)
            record = _decode(line)
            if record is None:
                damaged.append(number)
            else:
                records.append(record)
                good, skipped = size, len(damaged)
    said = []
    if skipped:
        named = ", ".join(map(str, damaged[:skipped][:_LINES_NAMED]))
        more = f" and {skipped - _LINES_NAMED} more" if skipped > _LINES_NAMED else ""
        said.append(f"{path}: skipped damaged lines: {named}{more}")
    if good < size:
        said.append(f"{path}: cut off the last {size - good} bytes, an incomplete record")
    return tuple(records[1:]), good, tuple(said)


def _decode(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


# ASCII, because commands may hold lone surrogates: bytes that are not UTF-8.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _encode(record: Record) -> bytes:
    return _ENCODER.encode(record).encode("ascii") + b"\n"


def _check_head(path: str, head: bytes, fresh: bool) -> None:
    """Refuse a file that is not a queue's journal, or has an unknown version."""
    first = _decode(head[: head.find(b"\n") + 1]) or {}
    version = first.get("v")
    if first.get("event") != "journal" or type(version) is not int or version < 1:
        whose = (
            "gpusched's journal" if "key" in first and "event" in first else "not a journal of slicer queue"
        )
        raise StateError(f"is {whose}; it is left unchanged", where=path, hint=f"move it away, or {HINT}")
    if version > VERSION and not fresh:
        raise StateError(
            f"was written by a newer slicer (version {version} of the journal, this one knows {VERSION})",
            where=path,
            hint="upgrade slicer, or start anew with --fresh",
        )


def path_in(log_dir: str) -> str:
    return f"{log_dir}/{_NAME}"
