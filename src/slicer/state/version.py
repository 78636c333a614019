"""A state directory that does not say the version of this slicer: it is new, or another slicer made it.

This happens once a boot, so it is apart from :mod:`slicer.state.statedir`.
"""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.state.directory import HINT, Directory, failed

_VERSION_BYTES = 64
_ATTEMPTS = 100


def claim(base: Directory, ours: int) -> None:
    """Write the version into a directory that is new. Raises StateError for one of another version."""
    name = f"{base.path}/version"
    for attempt in range(_ATTEMPTS):
        text = base.read("version", _VERSION_BYTES).strip()
        if text:  # else it is new, or its maker was killed before it wrote the first byte
            break
        try:
            os.close(base.replace("version", b"%d\n" % ours, mode=0o600))
            return
        except OSError as error:
            is_contended = isinstance(error, FileExistsError | FileNotFoundError)  # another slicer makes it
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
