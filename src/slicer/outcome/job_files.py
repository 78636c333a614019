"""Files of jobs that are detached or wait for others, beside the history: ``jobs/ID.json``.

A detached one has its output in ``jobs/ID.log``, and what slicer says of it in ``jobs/ID.said``. A script
that was submitted is in ``jobs/ID.script``. ``jobs/ID.again`` asks the process to run its job once more.

The job's own process writes the JSON when it starts, before it has a ticket or a lease, and when it ends. So
slicer finds jobs that wait for another job, all logs, and the ends of jobs that never ran, which are not in
the history. The directory belongs to its user alone and is opened once. An invalid file affects no other.
"""

from __future__ import annotations

import errno
import os
import time

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.outcome.history import folder, json_text
from slicer.record import as_dict, record, replace
from slicer.state.directory import LEDGER, Directory, failed, failing, open_or_make
from slicer.state.statefile import check_fields, is_job_id, json_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from slicer.model import PastAttempt

    _T = TypeVar("_T")

_HINT = "move it away"
RULES = replace(LEDGER, hint=_HINT, writable_hint=_HINT, full_hint="make room there", file_hint="remove it")
_LONGEST = 4 << 20  # a command may have 2 MiB
_ROOM = 512  # bytes that its end may need in addition, for why it did not run
_VERSION = 1
_SAID = 16 << 10  # bytes of messages that are shown, the first ones
_KINDS = ("log", "said", "json", "script", "again")
KILLED = "it was killed, and nobody saw how it ended"


@record
class DetachedJob:
    """A job that is detached or waits for others, described by itself."""

    job: str
    name: str
    command: tuple[str, ...]
    directory: str
    profile: str
    log: str  # the path of the file with its output; "" in the foreground
    pid: int  # of its supervisor
    pid_start: int
    boot_id: str
    after: tuple[str, ...]  # JOB:CONDITION, for each job that it waits for
    began_at: float  # seconds since the epoch, when it was detached, or began to wait
    exit_code: int | None = None  # slicer's; None: it has not ended, or was killed
    why: str = ""  # why its command did not run; "" if it ran
    begins_at: float | None = None  # seconds since the epoch, not before then; None: at any time
    again: str = ""  # what it waits to begin after an earlier end: "attempt 2 of 3"; "" nothing
    attempts: tuple[PastAttempt, ...] = ()  # that have ended

    @property
    def begins_later(self) -> bool:
        """Whether it was to begin after other jobs, or at some time."""
        return bool(self.after) or self.begins_at is not None

    @property
    def unseen(self) -> str:
        """What became of it, in words, if it neither lives nor said how it ended."""
        if self.boot_id != proc.boot_id():
            before = f"{self.again} began" if self.again else "it ended"
            return f"the machine was restarted, or lost its power, before {before}"
        return f"it was killed before {self.again} began" if self.again else KILLED

    def is_alive(self) -> bool:
        """Whether its supervisor lives."""
        return self.boot_id == proc.boot_id() and proc.is_running(self.pid, self.pid_start)


_FIELDS: dict[str, str] = DetachedJob.__annotations__


class JobFiles:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def log_of(self, job: str) -> str:
        """The default path of the job's log."""
        return f"{self._directory.path}/{job}.log"

    def write(self, file: DetachedJob) -> None:
        """Write the job's file atomically. Raises StateError.

        The end also fits into the place of the beginning, so a disk that is full by then does not lose it.
        """
        name = f"{file.job}.json"
        said = as_dict(file) | {"attempts": tuple(map(as_dict, file.attempts))}
        data = json_text({"version": _VERSION, **said}).encode()
        try:
            try:
                os.close(self._directory.replace(name, data.ljust(len(data) + _ROOM) + b"\n", mode=0o600))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or file.exit_code is None:
                    raise
                self._overwrite(name, data)
        except OSError as error:
            path = f"{self._directory.path}/{name}"
            raise failed(path, error, RULES, "cannot be written") from error

    def _overwrite(self, name: str, data: bytes) -> None:
        """Write into the file as it is, with one call, so that no reader sees half of it. Raises OSError."""
        fd = self._directory.open(name, os.O_WRONLY)
        try:
            os.pwrite(fd, data.ljust(os.fstat(fd).st_size - 1) + b"\n", 0)
        finally:
            os.close(fd)

    def read(self, job: str) -> DetachedJob | None:
        """The job's file; None: there is none. Raises StateError."""
        name = f"{job}.json"
        data = self._directory.read(name, _LONGEST)
        if not data:
            return None
        import json  # only others read it

        from slicer.outcome.outcome_file import RECORDS

        try:
            said = {"again": "", "attempts": [], **json.loads(data)}  # a version before knew none
            values = {field: json_reader(kind, RECORDS)(said[field]) for field, kind in _FIELDS.items()}
            check_fields(values)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            path = f"{self._directory.path}/{name}"
            raise StateError("is not a job's file", where=path, hint=_HINT) from error
        return DetachedJob(**values) if values["job"] == job else None

    def say(self, job: str, text: str) -> None:
        """Add a message of slicer's about the job. Raises OSError, StateError."""
        fd = self._directory.open_file(f"{job}.said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)

    def said(self, job: str) -> tuple[str, ...]:
        """The messages about the job, in their order. Raises StateError."""
        data = self._directory.read(f"{job}.said", _SAID)
        return tuple(data.decode("utf-8", "replace").splitlines())

    def keep_script(self, job: str, data: bytes) -> str:
        """Keep a script that the job executes; its path. Raises OSError."""
        os.close(self._directory.replace(f"{job}.script", data, mode=0o700))
        return f"{self._directory.path}/{job}.script"

    def ask_again(self, job: str) -> None:
        """Ask the process of a job to run it again, as another job, once it has ended. Raises OSError."""
        os.close(self._directory.replace(f"{job}.again", b"", mode=0o600))

    def take_again(self, job: str) -> bool:
        """Whether it was asked to. Raises OSError."""
        if not self._directory.has(f"{job}.again"):
            return False  # and removes nothing, which a file system that is read-only now would refuse
        self._directory.remove(f"{job}.again")
        return True

    def all(self, warn: Callable[[str], None]) -> list[DetachedJob]:
        """The files of all jobs, the newest first. ``warn`` gets messages about bad files."""
        found = []
        for name in self._directory.names():
            job, _, kind = name.rpartition(".")
            if kind != "json" or not is_job_id(job):
                continue
            try:
                file = self.read(job)
            except StateError as error:
                warn(str(error))
                continue
            found += [file] if file is not None else []
        return sorted(found, key=lambda file: -file.began_at)

    def remove(self, job: str) -> None:
        """Remove the job's files. Raises OSError."""
        for kind in _KINDS:
            self._directory.remove(f"{job}.{kind}")

    def prune(self, keep_s: float | None, holds: Callable[[str], bool], warn: Callable[[str], None]) -> None:
        """Remove files of jobs that ended ``keep_s`` seconds ago. ``holds``: whether a job has a lease.

        ``warn`` gets messages about files that cannot be removed. Raises OSError.
        """
        if keep_s is None:
            return
        before, newest = time.time() - keep_s, dict[str, float]()
        for name in self._directory.names():
            job = name.partition(".")[0]
            if not is_job_id(job) or name.removeprefix(f"{job}.") not in _KINDS:
                continue
            try:
                newest[job] = max(newest.get(job, 0.0), self._directory.lstat(name).st_mtime)
            except FileNotFoundError:
                continue  # another process removes old files, too
        for job, changed_at in newest.items():
            if changed_at < before and not holds(job) and not self._may_live(job):
                try:
                    self.remove(job)
                except OSError as error:
                    warn(f"{self.log_of(job)}: cannot be removed: {error.strerror}")

    def _may_live(self, job: str) -> bool:
        try:
            file = self.read(job)
        except StateError:
            return False
        return file is not None and file.is_alive()

    def close(self) -> None:
        self._directory.close()


def opened(environ: Mapping[str, str]) -> JobFiles:
    """The directory of this user, created if missing. Raises StateError."""
    return JobFiles(open_folder(folder(environ)))


def open_folder(path: str) -> Directory:
    """A directory beside the history, for this user alone, created if missing. Raises StateError."""
    with failing(path, "cannot be made", RULES):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    return open_or_make(path, RULES)


def known(environ: Mapping[str, str], warn: Callable[[str], None]) -> list[DetachedJob]:
    """All detached jobs that still have files, the newest first. Raises StateError."""
    return _looked(environ, lambda files: files.all(warn)) or []


def of_job(environ: Mapping[str, str], job: str) -> DetachedJob | None:
    """The file of a job; None: it was not detached, or its file was removed. Raises StateError."""
    return _looked(environ, lambda files: files.read(job))


def said_of(environ: Mapping[str, str], job: str) -> tuple[str, ...]:
    """What slicer said of a detached job since its caller has left. Raises StateError."""
    return _looked(environ, lambda files: files.said(job)) or ()


def _looked(environ: Mapping[str, str], look: Callable[[JobFiles], _T]) -> _T | None:
    """The result of ``look`` for the directory; None if it does not exist. Raises StateError."""
    path = folder(environ)
    if not os.path.lexists(path):
        return None
    files = JobFiles(open_or_make(path, RULES))
    try:
        return look(files)
    except OSError as error:
        raise failed(path, error, RULES) from error
    finally:
        files.close()


def new(job: str, name: str, command: tuple[str, ...], profile: str, log: str, **more: Any) -> DetachedJob:
    """A new file for this process's job."""
    pid = os.getpid()
    return DetachedJob(
        job=job, name=name, command=command, directory=os.getcwd(), profile=profile, log=log, pid=pid,
        pid_start=proc.start_time(pid) or 0, boot_id=proc.boot_id(), began_at=time.time(), **more,
    )  # fmt: skip
