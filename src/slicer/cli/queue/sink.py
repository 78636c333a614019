"""Where a queue's output goes: to a reader who may be slow, or gone, without the queue minding."""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import TextIO

_AT_ONCE = 4096  # bytes that a pipe which can be written to takes without blocking
_MOST_BEHIND = 16 << 20  # bytes that are kept for a slow reader; beyond, we wait for him


class Sink:
    """Text to the descriptor behind a stream. A reader who is gone, or a full disk, ends only the output.

    Nothing is written through the stream itself: what it could not get rid of it would try again at exit.
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
        """Write as much as goes at once; the rest comes with what follows."""
        if self._is_gone:
            return
        self._pending += self._encoded(text)
        self._flush(waits=len(self._pending) > _MOST_BEHIND)

    def is_ready(self) -> bool:
        """Whether text would go at once: all before has gone. Not so while Ctrl-S stops a terminal."""
        self._flush(waits=False)
        return not self._is_gone and not self._pending and bool(self._poll.poll(0))

    def close(self) -> None:
        """Write all that is left, however long the reader takes, and nothing after that. Safe to repeat."""
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
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    if waits:
                        continue
                    return
                # Whatever it is: what a queue has to say is worth less than what it runs.
                self._is_gone = True
                self._pending.clear()
                return
            del self._pending[:written]

    def _encoded(self, text: str) -> bytes:
        try:
            return text.encode(self._encoding)
        except UnicodeEncodeError:
            return text.replace("…", "...").encode(self._encoding, "backslashreplace")


def _of_our_own(fd: int) -> int:
    """A descriptor for the same terminal or pipe that never blocks, or else a copy.

    The given one may not be changed: it is the shell's as well, and other programs' in the pipeline.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # another user's terminal (after su), or it is gone: we shall see
    return os.dup(fd)
