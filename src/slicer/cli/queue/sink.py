"""The queue's output to a reader that may be slow or gone. Neither stops the queue."""

from __future__ import annotations

import os
import select
import stat
from typing import TextIO

_AT_ONCE = 4096  # bytes that a writable pipe accepts without blocking
_MOST_BEHIND = 16 << 20  # bytes kept for a slow reader; beyond that, the queue waits


class Sink:
    """Writes text to a stream's descriptor. If the reader is gone or the disk full, only the output ends.

    Nothing goes through the stream itself, which would write pending text again at exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self._fd = _of_our_own(stream.fileno())
        self._encoding = stream.encoding or "ascii"
        self._pending = bytearray()
        self._is_gone = False
        self._is_closed = False
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write as much as possible at once. The rest follows with the next call."""
        if self._is_gone:
            return
        self._pending += self._encoded(text)
        self._flush(waits=len(self._pending) > _MOST_BEHIND)

    def is_ready(self) -> bool:
        """Whether text would be written at once, with none pending. Ctrl-S, for example, stops a terminal."""
        self._flush(waits=False)
        return not self._is_gone and not self._pending and bool(self._poll.poll(0))

    def close(self) -> None:
        """Write the rest, however long the reader takes, and nothing after that. Safe to repeat."""
        self._flush(waits=True)
        if not self._is_closed:
            self._is_closed = self._is_gone = True
            os.close(self._fd)

    def _flush(self, *, waits: bool) -> None:
        while self._pending and not self._is_gone:
            if not self._poll.poll(None if waits else 0):
                return
            try:
                written = os.write(self._fd, self._pending[:_AT_ONCE])
                del self._pending[:written]
            except BlockingIOError:
                if not waits:
                    return
            except OSError:  # whatever it is: the queue's jobs matter more than its output
                self._is_gone = True
                self._pending.clear()

    def _encoded(self, text: str) -> bytes:
        try:
            return text.encode(self._encoding)
        except UnicodeEncodeError:
            return text.replace("…", "...").encode(self._encoding, "backslashreplace")


def _of_our_own(fd: int) -> int:
    """A non-blocking descriptor for the same terminal or pipe, or else a copy of ``fd``.

    ``fd`` must not be changed: the shell and other programs of the pipeline share it.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # another user's terminal (after su), or it is gone: the first write will show
    return os.dup(fd)
