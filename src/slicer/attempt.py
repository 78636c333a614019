"""The attempt file of a queue's job: whether its command began, and how it ended, whoever has died since.

The queue makes it, with room for what will be written, so that a full disk is noticed before a job and not
after it. The keeper flocks it for as long as it lives, and writes: a line with its pid, which says that the
command begins; a provisional outcome where systemd ends the job, and might end the keeper with it; the
outcome. Each is one line, and what is not yet written reads as NUL.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os

from slicer import proc
from slicer.model import Outcome, Usage
from slicer.outcome_file import outcome_json
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROOM = 8192  # bytes: an outcome with a long command has 3000
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_PROVISIONAL = "provisional"


@record
class Attempt:
    """What an attempt file says."""

    is_alive: bool  # its keeper lives
    keeper: int  # its pid; 0 unknown
    outcome: Outcome | None
    is_final: bool  # whether the outcome is more than what was foreseen when the job was being ended


def reserve(path: str) -> None:
    """Make the file, with room in it. Raises OSError; then it is not there."""
    fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(fd, 0, _ROOM)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some file systems cannot promise
            os.unlink(path)
            raise
        os.ftruncate(fd, _ROOM)
    finally:
        os.close(fd)


def begin(path: str) -> int:
    """Note that the command begins; the descriptor of the file, flocked. Raises OSError."""
    fd = os.open(path, _FLAGS | os.O_CREAT, 0o600)  # somebody may have removed it
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = os.getpid()
        os.write(fd, f"{pid} {proc.start_time(pid)}\n".encode())
    except OSError:
        os.close(fd)
        raise
    return fd


def end(fd: int, outcome: Outcome, *, is_final: bool = True) -> str:
    """Note how it ended; "" or what went wrong (then the history has it)."""
    data = outcome_json(outcome)
    if not is_final:
        data[_PROVISIONAL] = True
    line = f"{json.dumps(data)}\n".encode()
    try:
        while line:
            line = line[os.write(fd, line) :]
    except OSError as error:
        return f"how the job ended cannot be written: {error.strerror}"
    return ""


def note(path: str, outcome: Outcome) -> str:
    """As :func:`end`, in place of a keeper that was killed. Raises OSError."""
    fd = os.open(path, _FLAGS)
    try:
        os.lseek(fd, len(_whole(_contents(fd))), os.SEEK_SET)
        return end(fd, outcome)
    finally:
        os.close(fd)


def read(path: str) -> Attempt | None:
    """What became of an attempt; None when its command never began. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_alive = False
        except BlockingIOError:
            is_alive = True
        data = _contents(fd)
        is_damaged = not os.fstat(fd).st_size
    finally:
        os.close(fd)
    if not data and not is_alive and not is_damaged:
        return None
    pid, *rest = _whole(data).splitlines() or [b""]
    keeper = int(pid.split()[0]) if pid[:1].isdigit() else 0
    found = [each for each in map(_outcome, rest) if each is not None]
    if not found:
        return Attempt(is_alive, keeper, None, False)
    return Attempt(is_alive, keeper, *found[-1])


def _contents(fd: int) -> bytes:
    return os.pread(fd, max(_ROOM, os.fstat(fd).st_size), 0).partition(b"\0")[0]


def _whole(data: bytes) -> bytes:
    """The lines that are written to their end."""
    return data[: data.rfind(b"\n") + 1]


def _outcome(line: bytes) -> tuple[Outcome, bool] | None:
    """The outcome in a line, and whether it is final; None for anything else."""
    try:
        data = json.loads(line)
        return _made(data), not data.get(_PROVISIONAL, False)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _made(data: Any) -> Outcome:
    values = {name: data[name] for name in Outcome.__annotations__}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    if not isinstance(values["exit_code"], int) or not isinstance(values["reason"], str):
        raise TypeError("not an outcome")
    values |= {"usage": Usage(**data["usage"]), "unit": data["unit"] or "", "forced": int(data["forced"])}
    return Outcome(**values)
