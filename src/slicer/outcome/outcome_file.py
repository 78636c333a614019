"""Outcomes as JSON: the file of ``slicer run --outcome`` and the rows of ``slicer history --json``.

docs/json.md describes the fields. VERSION increases if a field is removed or changes its meaning, not if one
is added. Importing json costs 9 ms, so this module is imported only if JSON is needed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from slicer.errors import StateError
from slicer.model import Git, Outcome, PastAttempt, Sharing, Usage
from slicer.record import as_dict
from slicer.state.directory import Directory, find
from slicer.state.named_file import RULES, names_open_file
from slicer.state.statefile import JsonRules, check_fields, json_reader

VERSION = 1


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome in JSON's types: the record's own fields, with ``unit`` null if there was none."""
    data = as_dict(outcome)
    data["usage"] = {name: _json_value(value) for name, value in as_dict(outcome.usage).items()}
    data["unit"] = outcome.unit or None
    data["forced"] = bool(outcome.forced)
    data["sharing"] = sharing_json(outcome.sharing) if outcome.sharing is not None else None
    data["git"] = git_json(outcome.git) if outcome.git is not None else None
    data["attempts"] = attempts_json(outcome.attempts)
    return {name: _json_value(value) for name, value in data.items()}


def outcome_from(data: Any) -> Outcome:
    """Reverses :func:`outcome_json`, and checks each field. Raises what :data:`INVALID` names."""
    usage = {name: json_reader(kind)(data["usage"].get(name)) for name, kind in _USAGE.items()}
    said = {"gpu_indices": [], "git": None, "attempts": [], **data}  # a version before has none
    said.update(unit="" if data["unit"] is None else data["unit"], forced=int(data["forced"]))
    values = {name: json_reader(kind, RECORDS)(said[name]) for name, kind in _OUTCOME.items()}
    check_fields(values)
    sharing, git = sharing_from(data["sharing"]), git_from(said["git"])
    return Outcome(usage=Usage(**usage), sharing=sharing, git=git, **values)


INVALID = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_USAGE: dict[str, str] = Usage.__annotations__
_OUTCOME: dict[str, str] = {
    name: kind for name, kind in Outcome.__annotations__.items() if name not in ("usage", "sharing", "git")
}


def sharing_json(sharing: Sharing) -> dict[str, Any]:
    """The figures of a job's sharing, in JSON's types."""
    found = {name: _json_value(value) for name, value in as_dict(sharing).items()}
    return {**found, **{name: bool(found[name]) for name in _FLAGS}}


def sharing_from(data: Any) -> Sharing | None:
    """Reverses :func:`sharing_json`. Raises ValueError, TypeError, KeyError."""
    if data is None:
        return None
    said = {**data, **{name: int(data[name]) for name in _FLAGS}}
    values = {name: json_reader(kind)(said[name]) for name, kind in _SHARING.items()}
    check_fields(values)
    return Sharing(**values)


def attempts_json(attempts: Iterable[PastAttempt]) -> list[dict[str, Any]]:
    """A job's attempts, in JSON's types."""
    return [{name: _json_value(value) for name, value in as_dict(each).items()} for each in attempts]


def attempt_from(data: Any) -> PastAttempt:
    """Reverses :func:`attempts_json`, for one. Raises ValueError, TypeError, KeyError."""
    values = {name: json_reader(kind)(data[name]) for name, kind in _ATTEMPT.items()}
    check_fields(values)
    return PastAttempt(**values)


_ATTEMPT: dict[str, str] = PastAttempt.__annotations__
RECORDS = JsonRules(records={"PastAttempt": attempt_from})  # of an outcome's or a job's file
attempts_from = json_reader(Outcome.__annotations__["attempts"], RECORDS)


def git_json(git: Git) -> dict[str, Any]:
    """The code that ran, in JSON's types."""
    return {**as_dict(git), "dirty": None if git.dirty is None else bool(git.dirty)}


def git_from(data: Any) -> Git | None:
    """Reverses :func:`git_json`. Raises ValueError, TypeError, KeyError."""
    if data is None:
        return None
    said = {**data, "dirty": None if data["dirty"] is None else int(data["dirty"])}
    return Git(**{name: json_reader(kind)(said[name]) for name, kind in _GIT.items()})


_GIT: dict[str, str] = Git.__annotations__
_FLAGS = ("got_past_cap", "driver_cap")
_SHARING: dict[str, str] = Sharing.__annotations__


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)  # no clock is more precise
    return list(value) if isinstance(value, tuple) else value


def write(outcome: Outcome, path: str) -> None:
    """Write an outcome to ``path``, like :func:`put`. Raises StateError."""
    data = (json.dumps({"version": VERSION, **outcome_json(outcome)}, indent=2) + "\n").encode()
    try:
        put(data, path)
    except OSError as error:
        raise StateError(f"the outcome cannot be written: {error.strerror}", where=path) from error


def put(data: bytes, path: str) -> None:
    """Write data to ``path`` atomically, even for concurrent readers. Raises OSError, StateError.

    Links that are ours or root's are followed. If the path is not a regular file (/dev/stdout, a FIFO), the
    data is written into it.
    """
    if names_open_file(path):
        # /dev/stdout may be a regular file: the one that the shell's ">" opened.
        _write_into(os.open(path, _INTO | os.O_CLOEXEC | os.O_NOCTTY), data)
        return
    folder, name, info = _place(path)
    try:
        if info is None or stat.S_ISREG(info.st_mode):
            folder.replace_shared(name, data)
        else:
            fd = folder.open(name, _INTO)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise StateError("was replaced meanwhile", where=path)
            _write_into(fd, data)
    finally:
        folder.close()


def put_own(data: bytes, path: str, mode: int) -> None:
    """Write data to a new file, or atomically in place of a regular file of ours. Raises OSError, StateError.

    No link at the end of the path is followed, and nothing else is written into.
    """
    folder, name = find(path, RULES, follows=False)
    try:
        try:
            info = folder.lstat(name)
        except FileNotFoundError:
            info = None
        if info is not None and not (stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()):
            what = f"belongs to uid {info.st_uid}" if stat.S_ISREG(info.st_mode) else "is not a regular file"
            raise StateError(f"{what}, and is left alone", where=path, hint="name another file")
        folder.replace_shared(name, data, mode)
    finally:
        folder.close()


def check(path: str) -> None:
    """Raise OSError or StateError if :func:`put` could not write."""
    if names_open_file(path):
        is_fine = os.access(path, os.W_OK)
    else:
        folder, name, info = _place(path)
        is_stream = info is not None and not stat.S_ISREG(info.st_mode)
        is_fine = os.access(folder.handle, os.X_OK if is_stream else os.W_OK | os.X_OK)
        is_fine &= not is_stream or os.access(name, os.W_OK, dir_fd=folder.fd)
        folder.close()
    if not is_fine or os.path.isdir(path):
        raise StateError("cannot be written there", where=path)


# Do not wait for a FIFO's reader, who may never come. Once there is one, writing may take its time.
_INTO = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK


def _place(path: str) -> tuple[Directory, str, os.stat_result | None]:
    """The directory for the file, the name in it, and what has that name. Raises OSError, StateError.

    In a directory where everybody may create files (/tmp), another user's file is left alone: it may be a
    trap.
    """
    folder, name = find(path, RULES)
    try:
        info = folder.lstat(name)
    except FileNotFoundError:
        return folder, name, None
    except BaseException:
        folder.close()
        raise
    is_theirs = info.st_uid != os.geteuid() and not stat.S_ISCHR(info.st_mode)  # only root makes devices
    if os.fstat(folder.fd).st_mode & stat.S_ISVTX and is_theirs:
        folder.close()
        raise StateError(f"belongs to uid {info.st_uid}", where=path, hint="name a file of your own")
    return folder, name, info


def _write_into(fd: int, data: bytes) -> None:
    os.set_blocking(fd, True)
    with open(fd, "wb") as file:
        file.write(data)
