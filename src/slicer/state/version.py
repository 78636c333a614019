"""A state directory without this slicer's version: it is new, or another slicer created it.

This happens once for each boot, so it is separate from :mod:`slicer.state.statedir`.
"""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.state.directory import HINT, Directory, failed

_VERSION_BYTES = 64
_ATTEMPTS = 100


def claim(base: Directory, ours: int) -> None:
    """Write the version into a new directory. Raises StateError for one of another version."""
    name = f"{base.path}/version"
    for attempt in range(_ATTEMPTS):
        text = base.read("version", _VERSION_BYTES).strip()
        if text:  # otherwise it is new, or its creator was killed before it wrote the first byte
            break
        try:
            os.close(base.replace("version", b"%d\n" % ours, mode=0o600))
            return
        except OSError as error:
            is_contended = isinstance(error, FileExistsError | FileNotFoundError)  # another slicer creates it
            if not is_contended or attempt == _ATTEMPTS - 1:
                raise failed(name, error, what="cannot be written") from error
    if not text.isdigit():
        raise StateError(f"is not a version number: {text[:20]!r}", where=name, hint="remove it, or " + HINT)
    if int(text) != ours:
        made_by, advice = _NEWER if int(text) > ours else _OLDER
        message = f"made by {made_by} slicer: version {int(text)}, this one supports {ours}"
        raise StateError(message, where=name, hint=f"{advice}, or {HINT}")


_NEWER = ("a newer", "update this slicer")
_OLDER = ("an older", "let its jobs end, then remove the directory")
