"""Outcomes as JSON: the file of ``slicer run --outcome`` and the rows of ``slicer history --json``.

docs/json.md describes the fields. VERSION counts up when a field goes or changes its meaning, not when one is
added. Importing json costs 3 ms, so this module is imported only where JSON is wanted.
"""

from __future__ import annotations

import json
import os
import stat

from slicer.errors import StateError
from slicer.model import Sharing
from slicer.record import as_dict
from slicer.state.statefile import check_fields, json_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Outcome

VERSION = 1


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome in JSON's types: the record's own fields, ``unit`` null where there was none."""
    data = as_dict(outcome)
    data["usage"] = {name: _json_value(value) for name, value in as_dict(outcome.usage).items()}
    data["unit"] = outcome.unit or None
    data["forced"] = bool(outcome.forced)
    data["sharing"] = sharing_json(outcome.sharing) if outcome.sharing is not None else None
    return {name: _json_value(value) for name, value in data.items()}


def sharing_json(sharing: Sharing) -> dict[str, Any]:
    """What became of a job's sharing, in JSON's types."""
    found = {name: _json_value(value) for name, value in as_dict(sharing).items()}
    return {**found, **{name: bool(found[name]) for name in _FLAGS}}


def sharing_from(data: Any) -> Sharing | None:
    """What :func:`sharing_json` wrote, or an older slicer. Raises ValueError, TypeError, KeyError."""
    if data is None:
        return None
    said = {**data, **{name: int(data.get(name, False)) for name in _FLAGS}}
    # What a field with a default is for may not have been known to an older slicer.
    known = {name: kind for name, kind in _SHARING.items() if name in said or not hasattr(Sharing, name)}
    values = {name: json_reader(kind)(said[name]) for name, kind in known.items()}
    check_fields(values)
    return Sharing(**values)


_FLAGS = ("got_past_cap", "driver_cap")
_SHARING: dict[str, str] = Sharing.__annotations__


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)  # no clock here is finer
    return list(value) if isinstance(value, tuple) else value


def write(outcome: Outcome, path: str) -> None:
    """Write one outcome to ``path``, as :func:`put`. Raises StateError."""
    data = (json.dumps({"version": VERSION, **outcome_json(outcome)}, indent=2) + "\n").encode()
    try:
        put(data, path)
    except OSError as error:
        raise StateError(f"the outcome cannot be written: {error.strerror}", where=path) from error


def put(data: bytes, path: str) -> None:
    """Write data to ``path``: all of it or nothing, whoever reads meanwhile. Raises OSError.

    A symbolic link is followed; what is not a regular file (/dev/stdout, a FIFO) is written into.
    """
    if is_stream(path):
        _write_into(path, data)
    else:
        _replace(os.path.realpath(path), data)


def is_stream(path: str) -> bool:
    """Whether ``path`` is something to write into rather than a file to replace."""
    try:
        # /dev/stdout may well be a regular file: the one that the shell's ">" opened.
        return not stat.S_ISREG(os.stat(path).st_mode) or path.startswith(("/dev/fd/", "/dev/std", "/proc/"))
    except OSError:
        return False


def _write_into(path: str, data: bytes) -> None:
    # Not waiting for a FIFO's reader, who may never come; once it is there, writing may take its time.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    with open(fd, "wb") as file:
        file.write(data)


def _replace(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
