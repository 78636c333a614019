"""Bounds the log of a detached job: frees its beginning while the job appends to its end.

No process stands between the job and its log, so no output is lost if a process of slicer dies. The file's
size and all offsets stay unchanged; readers skip the hole.
"""

from __future__ import annotations

import os
import time

from slicer.kernel import punch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LOOKS_S = 5.0
_STEP = 64 << 10  # bytes: whole blocks of any file system


class LogBound:
    """Keeps at most the last ``most_mib`` of the file ``fd``, plus one step."""

    def __init__(self, fd: int, most_mib: int, warn: Callable[[str], None]) -> None:
        self._fd = fd
        self._most = most_mib << 20
        self._warn = warn
        self._freed = 0
        self._due = time.monotonic() + _LOOKS_S
        self._is_given_up = False

    def left_s(self) -> float | None:
        """Seconds until the next look; None: there will be none."""
        return None if self._is_given_up else max(0.0, self._due - time.monotonic())

    def look(self) -> None:
        """Free the excess."""
        self._due = time.monotonic() + _LOOKS_S
        end = (os.fstat(self._fd).st_size - self._most) // _STEP * _STEP
        if end <= self._freed:
            return
        try:
            punch.free_beginning(self._fd, end)
        except OSError as error:
            self._is_given_up = True
            why = f"its file system cannot free the beginning: {error.strerror}"
            self._warn(f"the log grows without bound: {why}")
            return
        self._freed = end
