"""The attempt file of a queue's job: whether its command began, and how it ended, whoever has died since.

The queue makes it, with room for what will be written, so that a full disk is noticed before a job and not
after it. The keeper flocks it for as long as it lives, and writes: a line with its pid and start time, which
says that the command begins; a provisional outcome where systemd ends the job, and might end the keeper with
it; the outcome. Each is one line, and what is not yet written reads as NUL.

A file is named by its directory's descriptor and the job's id. What is read back is checked here, field by
field: a file that cannot be right costs its own attempt, and nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import stat

from slicer.kernel import proc
from slicer.model import Outcome, Usage
from slicer.outcome.outcome_file import outcome_json
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ROOM = 8192  # bytes: an outcome with a long command has 3000
_LONGEST = 4 << 20  # of a file that is read; the longest command is half of that
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PROVISIONAL = "provisional"
# What is there, but is no file of ours to read: a link, a socket, somebody else's.
_ODD = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EISDIR)


@record
class Attempt:
    """What an attempt file says."""

    is_alive: bool  # its keeper lives
    keeper: int  # its pid; 0 unknown
    keeper_start: int  # field 22 of /proc/PID/stat
    outcome: Outcome | None
    is_final: bool  # whether the outcome is more than what was foreseen when the job was being ended


def reserve(directory: int, job: str) -> None:
    """Make the file, with room in it. Raises OSError; then it is not there."""
    fd = os.open(job, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        os.posix_fallocate(fd, 0, _ROOM)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some file systems cannot promise
            os.unlink(job, dir_fd=directory)
            raise
        os.ftruncate(fd, _ROOM)
    finally:
        os.close(fd)


def begin(directory: int, job: str) -> int:
    """Note that the command begins; the descriptor of the file, flocked. Raises OSError."""
    fd = _open(directory, job)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = os.getpid()
        os.write(fd, f"{pid} {proc.start_time(pid)}\n".encode())
    except OSError:
        os.close(fd)
        raise
    return fd


def _open(directory: int, job: str) -> int:
    """The file for writing, made where somebody removed it. Raises OSError."""
    fd = os.open(job, _FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "is not a regular file")


def take_back(fd: int) -> None:
    """The command did not begin after all. Raises OSError."""
    os.ftruncate(fd, 0)
    os.ftruncate(fd, _ROOM)
    os.lseek(fd, 0, os.SEEK_SET)


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


def note(directory: int, job: str, outcome: Outcome) -> str:
    """As :func:`end`, in place of a keeper that was killed. Raises OSError."""
    fd = _open(directory, job)
    try:
        whole = _whole(_contents(fd))
        if not whole:
            os.pwrite(fd, b"0 0\n", 0)  # it did begin: its keeper is not known any more
            whole = b"0 0\n"
        os.lseek(fd, len(whole), os.SEEK_SET)
        return end(fd, outcome)
    finally:
        os.close(fd)


def read(directory: int, job: str) -> Attempt | None:
    """What became of an attempt; None when its command never began. Raises OSError."""
    try:
        fd = os.open(job, _FLAGS & ~os.O_RDWR, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _ODD:
            raise
        return _NOTHING
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return _NOTHING
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
    return decode(data, job, is_alive=is_alive)


def decode(data: bytes, job: str, *, is_alive: bool) -> Attempt:
    """What the bytes of a file say of the attempt with that id; what cannot be right is left out."""
    first, *rest = _whole(data).split(b"\n")
    keeper, start = _keeper(first)
    found = [each for each in (_outcome(line, job) for line in rest) if each is not None]
    return Attempt(is_alive, keeper, start, *(found[-1] if found else (None, False)))


_NOTHING = Attempt(False, 0, 0, None, False)


def _contents(fd: int) -> bytes:
    return os.pread(fd, min(_LONGEST, max(_ROOM, os.fstat(fd).st_size)), 0).partition(b"\0")[0]


def _whole(data: bytes) -> bytes:
    """The lines that are written to their end."""
    return data[: data.rfind(b"\n") + 1]


# -- what is read back ------------------------------------------------------------------------------------

_MOST = 2**63 - 1  # what the history can keep
_PID_MOST = 2**22  # the kernel's PID_MAX_LIMIT
_SIGNAL_MOST = 64
_CODE_MOST = 255


def _keeper(line: bytes) -> tuple[int, int]:
    """The keeper's pid and start time; zeros for anything else."""
    words = line.split(b" ")
    if len(words) != 2 or not all(word.isdigit() and len(word) < 20 for word in words):
        return 0, 0
    pid, start = map(int, words)
    return (pid, start) if 1 < pid <= _PID_MOST and start <= _MOST else (0, 0)


def _outcome(line: bytes, job: str) -> tuple[Outcome, bool] | None:
    """The outcome in a line, and whether it is final; None for anything else."""
    try:
        data = json.loads(line)
        made = _made(data)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return (made, data.get(_PROVISIONAL) is not True) if made.job == job else None


def _made(data: Any) -> Outcome:
    """Raises ValueError, TypeError, KeyError, AttributeError or OverflowError for what is no outcome."""
    usage = Usage(**{name: _READERS[kind](data["usage"].get(name)) for name, kind in _USAGE.items()})
    said = {**data, "unit": "" if data["unit"] is None else data["unit"], "forced": int(data["forced"])}
    values = {name: _READERS[kind](said[name]) for name, kind in _OUTCOME.items()}
    signo = values["signal"]
    if values["exit_code"] > _CODE_MOST or (signo is not None and not 0 < signo <= _SIGNAL_MOST):
        raise ValueError("no exit code, or no signal")
    return Outcome(usage=usage, **values)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int:  # to isinstance, true is one
        raise TypeError("no whole number")
    if not 0 <= value <= _MOST:
        raise ValueError("out of range")
    return value


def _figure(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError("no number")
    if not (math.isfinite(value) and 0 <= value <= _MOST):
        raise ValueError("out of range")
    return float(value)


def _word(*known: str) -> Callable[[Any], str]:
    def read_word(value: Any) -> str:
        if _text(value) not in known:
            raise ValueError("unknown word")
        return str(value)

    return read_word


def _list(read_one: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_list(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise TypeError("no list")
        return tuple(map(read_one, value))

    return read_list


def _or_none(read_one: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read_one(value)


# How a field is read, by its annotation.
_READERS: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _count,
    "int | None": _or_none(_count),
    "float": _figure,
    "float | None": _or_none(_figure),
    "tuple[str, ...]": _list(_text),
    "tuple[int, ...]": _list(_count),
    "Reason": _word("exited", "signal", "oom-kill", "timeout", "stopped", "unknown"),
    "BackendName": _word("systemd", "plain", "inner"),
    "Manager": _word("system", "user"),
}
_USAGE: dict[str, str] = Usage.__annotations__
_OUTCOME: dict[str, str] = {name: kind for name, kind in Outcome.__annotations__.items() if name != "usage"}
