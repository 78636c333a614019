"""Bounds the log of a detached job: frees its beginning while the job appends to its end.

No process stands between the job and its log, so no output is lost if a process of slicer dies. The keeper
does this, because it lives as long as the job. The file's size and all offsets stay unchanged; readers skip
the hole.
"""

from __future__ import annotations

import os
import time

_LOOKS_S = 5.0
_STEP = 64 << 10  # bytes: whole blocks of any file system


class LogBound:
    """Keeps at most the last ``most_mib`` of the file ``fd``, plus one step."""

    def __init__(self, fd: int, most_mib: int) -> None:
        self._fd = fd
        self._most = most_mib << 20
        self._freed = 0
        self.due: float | None = time.monotonic() + _LOOKS_S  # when to look again; None: never

    def look(self) -> None:
        """Free the excess, if it is time."""
        if self.due is None or time.monotonic() < self.due:
            return
        self.due = time.monotonic() + _LOOKS_S
        end = (os.fstat(self._fd).st_size - self._most) // _STEP * _STEP
        if end <= self._freed:
            return
        from slicer.kernel import punch

        try:
            punch.free_beginning(self._fd, end)
        except OSError as error:
            self.due = None
            self._say(f"its file system cannot free the beginning: {error.strerror}")
            return
        self._freed = end

    def _say(self, why: str) -> None:
        try:
            os.write(self._fd, f"slicer: the log grows without bound: {why}\n".encode())
        except OSError:
            pass  # its file system is also full
