"""Counting lines, tokens and files, with a deadline.

If ``enough`` is given and passed, counting ends after a while: it cannot change where the job goes.
"""

from __future__ import annotations

import errno
import math
import os
import time

from slicer.errors import ProbeError
from slicer.kernel.signals import INTERRUPTS, block_interrupts, signal
from slicer.quantity import format_duration
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINES_BYTES = 2**20  # read at a time
_WORDS_BYTES = 2**17  # less: each word becomes an object
_ENOUGH_BYTES = 2**28  # so far a file is counted to the end in any case: a second or two
_ENOUGH_FILES = 100_000
_LOOK_FILES = 1000
_SUBDIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST = 200  # each level needs a descriptor


@record
class Count:
    """What was counted. ``at_least``: there is more."""

    value: float
    at_least: bool = False


class Deadline:
    """The end of the time that a probe has."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise ProbeError once it has passed. An interrupt that came meanwhile acts now."""
        if time.monotonic() >= self._end_s:
            hint = "probe_timeout says how long it may take"
            raise ProbeError(f"was not counted after {format_duration(self._timeout_s)}", hint=hint)
        if INTERRUPTS & signal.sigpending():
            before = signal.pthread_sigmask(signal.SIG_SETMASK, block_interrupts())
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lines(fd: int, start: int, deadline: Deadline, enough: float | None) -> Count:
    """The lines of a text from an offset on; the last need not have an end. Raises ProbeError, OSError."""
    ended, last = 0, b"\n"

    def count(piece: bytes) -> float:
        nonlocal ended, last
        ended += piece.count(b"\n")
        last = piece[-1:]
        return ended

    stopped = _read(fd, start, _LINES_BYTES, count, deadline, enough)
    return Count(float(ended + (last != b"\n")), stopped)


def tokens(fd: int, start: int, per_word: float, deadline: Deadline, enough: float | None) -> Count:
    """About how many tokens a text has: its words (between blanks) times ``per_word``, rounded up.

    Raises ProbeError, OSError.
    """
    words, in_word = 0, False

    def count(piece: bytes) -> float:
        nonlocal words, in_word
        words += len(piece.split()) - (in_word and not piece[:1].isspace())
        in_word = not piece[-1:].isspace()
        return words * per_word

    stopped = _read(fd, start, _WORDS_BYTES, count, deadline, enough)
    return Count(float(math.ceil(round(words * per_word, 6))), stopped)


def _read(
    fd: int, start: int, most: int, count: Callable[[bytes], float], deadline: Deadline, enough: float | None
) -> bool:
    """Give a text to ``count``, which returns the sum so far; whether there was enough before its end."""
    position = start
    while piece := os.pread(fd, most, position):
        if b"\0" in piece:
            raise ProbeError("is not text: it has NUL bytes", hint='probe = "size" measures any file')
        so_far = count(piece)
        position += len(piece)
        deadline.check()
        if enough is not None and so_far > enough and position - start >= _ENOUGH_BYTES:
            return True
    return False


def files(directory: int, deadline: Deadline, enough: float | None) -> Count:
    """How many files are in an open directory and below: all that is no directory. No link is followed.

    Raises ProbeError, OSError.
    """
    found = 0
    for number in _below(directory, deadline, 0):
        found += number
        if enough is not None and found > max(enough, _ENOUGH_FILES):
            return Count(float(found), True)
    return Count(float(found))


def _below(directory: int, deadline: Deadline, depth: int) -> Iterator[int]:
    if depth > _DEEPEST:
        raise ProbeError(f"has directories more than {_DEEPEST} deep")
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
            yield 1  # a file or a link has taken its place
            continue
        try:
            yield from _below(fd, deadline, depth + 1)
        finally:
            os.close(fd)
