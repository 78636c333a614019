"""The records of wraps on disk: one file for each, in a directory next to the user's history.

Root's is ``/var/lib/slicer/wraps``, a user's ``~/.local/state/slicer/wraps``. Only files of the caller or of
root are trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Mapping

from slicer.errors import StateError
from slicer.outcome import history
from slicer.state import statefile
from slicer.state.directory import Directory, Rules, failing, open_or_make, try_lock
from slicer.wrap.terms import INTENTS, SUFFIX, Wrap

_FOLDER = "wraps"
_MOST_BYTES = 1 << 16
_LOCK_WAIT_S = 10.0
_PAUSE_S = 0.02
_NAME = 24  # hex digits of a file's name
_END = ".wrap"
_HINT = "take ownership of it: chown, chmod go-w"
RULES = Rules(
    may_be_roots=True, is_sticky_safe=False, is_probed=False, is_closed=False,
    foreign="belongs to uid {uid}, not to you", writable="is writable by {others} (mode {mode})",
    no_directory="is not a directory", no_file="is not a regular file",
    second_name="has a second name (a hard link)", hint=_HINT, writable_hint="chmod go-w {path}",
    full_hint="make room there", file_hint="remove it",
)  # fmt: skip


def folder_of(environ: Mapping[str, str]) -> str:
    """The directory of the caller's records, which may not exist."""
    return os.path.join(os.path.dirname(history.default_path(environ)), _FOLDER)


def read(environ: Mapping[str, str]) -> tuple[tuple[Wrap, ...], tuple[str, ...]]:
    """The caller's records by their paths, and a warning for each file that is not trusted.

    Changes nothing. Raises StateError for a directory that others can write.
    """
    path = folder_of(environ)
    if not os.path.lexists(path):
        return (), ()
    with contextlib.closing(open_or_make(path, RULES)) as folder:
        return _read(folder)


def _read(folder: Directory) -> tuple[tuple[Wrap, ...], tuple[str, ...]]:
    found: list[Wrap] = []
    warnings: list[str] = []
    for name in sorted(folder.names()):
        if not name.endswith(_END):
            continue
        try:
            found.append(_decoded(name, folder.read(name, _MOST_BYTES)))
        except StateError as error:
            warnings.append(f"ignoring a record of a wrap: {error}")
        except ValueError as error:
            warnings.append(f"ignoring a record of a wrap: {folder.path}/{name}: {error}")
    return tuple(sorted(found, key=lambda wrap: wrap.path)), tuple(warnings)


def _decoded(name: str, data: bytes) -> Wrap:
    """Raises ValueError for anything that slicer cannot have written."""
    wrap = statefile.decode(Wrap, data)
    if name != _name_of(wrap.path) or wrap.path != os.path.normpath(wrap.path):
        raise ValueError("is not named after its path")
    if not wrap.path.startswith("/") or wrap.real != f"{wrap.path}{SUFFIX}" or wrap.intent not in INTENTS:
        raise ValueError("is not a record of a wrap")
    if "\0" in f"{wrap.path}{wrap.slicer}{wrap.route}{wrap.diverted}" or not wrap.slicer.startswith("/"):
        raise ValueError("is not a record of a wrap")
    return wrap


def _name_of(path: str) -> str:
    return f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:_NAME]}{_END}"


class WrapRecords:
    """The records, locked for changes by this process."""

    def __init__(self, folder: Directory) -> None:
        self._folder = folder

    def find(self, path: str) -> Wrap | None:
        """The program's record. Raises StateError."""
        return next((wrap for wrap in _read(self._folder)[0] if wrap.path == path), None)

    def write(self, wrap: Wrap) -> None:
        """Write a record, which is on the disk when this returns. Raises OSError."""
        data = statefile.encode(wrap)
        os.close(self._folder.replace(_name_of(wrap.path), data, mode=0o600, sync=True))
        self._folder.sync()

    def remove(self, wrap: Wrap) -> None:
        """Remove a record. Raises OSError."""
        self._folder.remove(_name_of(wrap.path))
        self._folder.sync()


@contextlib.contextmanager
def opened(environ: Mapping[str, str]) -> Iterator[WrapRecords]:
    """The caller's records, locked; their directory is created if it is missing.

    Raises StateError.
    """
    path = folder_of(environ)
    with failing(path, rules=RULES):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # the history uses the same mode
    with contextlib.closing(open_or_make(path, RULES)) as folder:
        lock = folder.open_lock()
        try:
            _await(lock, f"{path}/lock")
            yield WrapRecords(folder)
        finally:
            os.close(lock)


def _await(lock: int, path: str) -> None:
    end_s = time.monotonic() + _LOCK_WAIT_S
    while not try_lock(lock):
        if time.monotonic() > end_s:
            hint = "is another `slicer wrap` stopped? see lslocks"
            raise StateError(f"the lock has been held for {_LOCK_WAIT_S:.0f} s", where=path, hint=hint)
        time.sleep(_PAUSE_S)
