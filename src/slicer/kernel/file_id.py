"""What tells whether a file is still what it was when somebody read it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    FileId = tuple[int, int, int, int, int]


def file_id(path: str) -> FileId | None:
    """Figures that change when the file does; None if they cannot be read."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
