"""Counts lines, tokens and files, with a deadline.

Once the count exceeds ``enough``, counting may stop early: more would not change where the job goes.
"""

from __future__ import annotations

import errno
import math
import os
import time

from slicer.errors import ProbeError
from slicer.kernel.signals import INTERRUPTS, block_interrupts, signal
from slicer.quantity import format_duration
from slicer.route.deciding import Metric

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINES_BYTES = 2**20  # read at a time
_WORDS_BYTES = 2**17  # fewer, because each word becomes an object
_ENOUGH_BYTES = 2**28  # up to here a file is counted in any case, which takes a second or two
_ENOUGH_FILES = 100_000
_LOOK_FILES = 1000
_SUBDIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST = 200  # each level needs a descriptor


class Deadline:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise ProbeError after the deadline. An interrupt that is pending acts now."""
        if time.monotonic() >= self._end_s:
            hint = "probe_timeout sets the limit"
            raise ProbeError(f"could not be counted within {format_duration(self._timeout_s)}", hint=hint)
        if INTERRUPTS & signal.sigpending():
            before = signal.pthread_sigmask(signal.SIG_SETMASK, block_interrupts())
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lines(fd: int, start: int, deadline: Deadline, enough: float | None) -> Metric:
    """Count a text's lines from an offset on; the last may lack its newline. Raises ProbeError, OSError."""
    ended, last = 0, b"\n"

    def count(piece: bytes) -> float:
        nonlocal ended, last
        ended += piece.count(b"\n")
        last = piece[-1:]
        return ended

    stopped = _read(fd, start, _LINES_BYTES, count, deadline, enough)
    return Metric("lines", float(ended + (last != b"\n")), stopped)


def tokens(fd: int, start: int, per_word: float, deadline: Deadline, enough: float | None) -> Metric:
    """Estimate a text's tokens: its words (between blanks) times ``per_word``, rounded up.

    Raises ProbeError, OSError.
    """
    words, in_word = 0, False

    def count(piece: bytes) -> float:
        nonlocal words, in_word
        words += len(piece.split()) - (in_word and not piece[:1].isspace())
        in_word = not piece[-1:].isspace()
        return words * per_word

    stopped = _read(fd, start, _WORDS_BYTES, count, deadline, enough)
    return Metric("tokens", float(math.ceil(round(words * per_word, 6))), stopped)


def _read(
    fd: int, start: int, most: int, count: Callable[[bytes], float], deadline: Deadline, enough: float | None
) -> bool:
    """Pass a text to ``count``, which returns the sum so far. Returns whether it stopped before the end."""
    position = start
    while piece := os.pread(fd, most, position):
        if b"\0" in piece:
            raise ProbeError("is not text: it contains NUL bytes", hint='probe = "size" measures any file')
        so_far = count(piece)
        position += len(piece)
        deadline.check()
        if enough is not None and so_far > enough and position - start >= _ENOUGH_BYTES:
            return True
    return False


def files(directory: int, deadline: Deadline, enough: float | None) -> Metric:
    """Count everything but directories in and below an open directory. Follows no links.

    Raises ProbeError, OSError.
    """
    found = 0
    for number in _below(directory, deadline, 0):
        found += number
        if enough is not None and found > max(enough, _ENOUGH_FILES):
            return Metric("count", float(found), True)
    return Metric("count", float(found))


def _below(directory: int, deadline: Deadline, depth: int) -> Iterator[int]:
    if depth > _DEEPEST:
        raise ProbeError(f"has more than {_DEEPEST} levels of directories")
    names, found = [], 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
                continue
            found += 1
            if found == _LOOK_FILES:
                deadline.check()
                yield found
                found = 0
    yield found
    for name in names:
        deadline.check()
        try:
            fd = os.open(name, _SUBDIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            yield 1  # a file or a link has replaced the directory
            continue
        try:
            yield from _below(fd, deadline, depth + 1)
        finally:
            os.close(fd)
