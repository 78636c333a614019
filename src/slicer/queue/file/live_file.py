"""The jobs file while its user edits it: read again on each change, and ignored while it is invalid.

Editors save by renaming, by truncating and writing, or in pieces; others append with ``>>``. So the file's
directory is watched, and a text counts only if it parses. A file may be missing, unreadable, malformed or
empty for a moment: then the last good version stays in force.

Changes by another machine (NFS, sshfs) or below an overlay cause no event. So the file is also polled, and
checked once more before the queue ends. A pipe is read once.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from slicer.errors import StateError
from slicer.kernel import inotify
from slicer.kernel.inotify import Inotify
from slicer.kernel.open_files import file_id
from slicer.kernel.sleep import seconds_until
from slicer.queue.file import jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.model import Entry
from slicer.state.named_file import hops

if TYPE_CHECKING:
    from slicer.kernel.open_files import FileId


# A writer that keeps the file open may be in the middle of a line. A pause this long ends the line.
_PAUSE_S = 0.1
_REPLACED = inotify.MOVED_TO | inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM
_WHOLE = inotify.CLOSE_WRITE | _REPLACED
_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF
_SEARCH_S = 1.0  # how often to look for a removed directory


class LiveFile:
    """``entries`` are the last good ones, from ``text``.

    ``problem``: why the file cannot be used now; "" if it can.
    """

    def __init__(
        self, path: str, text: str, known: Callable[[], Collection[str]],
        check: Callable[[tuple[Entry, ...]], None], poll_s: float | None,
        *, is_own: bool = False,
    ) -> None:  # fmt: skip
        """``text``: the text of a pipe. ``known``: the names of earlier jobs. ``check`` raises JobsFileError
        for an entry with an unknown profile. ``poll_s``: how often to look without an event; None: never.
        ``is_own``: as in :func:`jobs_file.read`.

        Raises JobsFileError, also if the file does not exist; StateError if it cannot be watched.
        """
        self.path = path
        self._is_own = is_own
        self._poll_s = poll_s
        self._look_at: float | None = None
        self._seen: FileId | None = None  # the file's identity at the last read
        self._is_cut = False  # an unfinished last line was left out
        self._is_unheard = False  # the last change caused no event
        self._known = known
        self._check = check
        self._inotify = Inotify(path)
        self._names: dict[int, set[str]] = {}  # the names to look for, by watched directory
        self._due: float | None = None
        self._search_at: float | None = None
        self.text = ""
        self.entries: tuple[Entry, ...] = ()
        self.problem = ""
        if is_pipe(path):
            self._take(text)
            return
        self._watch()
        self._seen = file_id(path)
        self._take(jobs_file.read(path, is_live=True, is_own=is_own))
        if poll_s is not None:
            self._look_at = time.monotonic() + poll_s

    @property
    def fd(self) -> int:
        """Readable when something may have happened to the file."""
        return self._inotify.fd

    def left_s(self) -> float | None:
        """The seconds until :meth:`look` is due without an event; None: never."""
        return seconds_until(self._due, self._search_at, self._look_at)

    def look_soon(self) -> None:
        """Assume that the file has changed."""
        if self._look_at is not None:  # not a pipe
            self._is_unheard, self._due = False, time.monotonic()

    def look(self, *, is_last: bool = False) -> bool:
        """Process changes; whether ``entries`` or ``problem`` changed. ``is_last``: postpone nothing."""
        now = time.monotonic()
        is_whole = False
        for change in self._inotify.take():
            names = self._names.get(change.watch, set())
            if change.mask & inotify.OVERFLOWED or (names and change.mask & (_GONE | inotify.IGNORED)):
                self._search_at = now
            elif change.name in names:
                self._is_unheard = False
                if change.mask & _REPLACED:
                    self._search_at = now  # it may be a symbolic link with a new target
                is_whole |= bool(change.mask & _WHOLE)
                self._due = now if is_whole else now + _PAUSE_S
        if self._search_at is not None and now >= self._search_at:
            self._due, is_whole = now, True
            try:
                self._watch()
            except StateError as error:
                self._search_at, self._due = now + _SEARCH_S, None
                before, self.problem = self.problem, str(error)
                return self.problem != before
        if self._look_at is not None and (is_last or now >= self._look_at):
            is_whole |= self._look_without_event(now)
        if self._due is None or (now < self._due and not is_last):
            return False
        self._due = None
        return self._read(is_whole=is_whole)

    def _look_without_event(self, now: float) -> bool:
        """Look for a change without an event; whether the file's last line counts as whole now."""
        self._look_at = now + (self._poll_s or 0.0)
        if self._due is not None:
            return False
        if file_id(self.path) != self._seen:
            self._is_unheard = True
            self._due = now
            return False
        if self._is_cut and self._is_unheard:  # nobody continued that line
            self._due = now
            return True
        return False

    def close(self) -> None:
        self._inotify.close()

    def _watch(self) -> None:
        """Watch the directories of its name and its links, and writes to the file. Raises StateError."""
        self._names, self._search_at = {}, None
        for path in hops(self.path):
            directory, name = os.path.split(path)
            watch = self._inotify.add(directory, _WHOLE | _GONE)
            if watch is None:
                self._search_at = time.monotonic() + _SEARCH_S
            else:
                self._names.setdefault(watch, set()).add(name)
        try:
            watch = self._inotify.add(self.path, inotify.MODIFY)
        except StateError:  # it is unreadable for now
            self._search_at = time.monotonic() + _SEARCH_S
        else:
            if watch is not None:
                self._names[watch] = {""}

    def _read(self, *, is_whole: bool) -> bool:
        before = self.entries, self.problem
        self._seen = file_id(self.path)
        try:
            text = jobs_file.read(self.path, is_live=True, is_own=self._is_own)
            self._is_cut = not is_whole and not text.endswith("\n")
            if self._is_cut:  # the last line may be incomplete
                text = text[: text.rfind("\n") + 1]
            self._take(text)
            self.problem = ""
        except (JobsFileError, StateError) as error:
            self.problem = str(error)
        return before[0] is not self.entries or before[1] != self.problem

    def _take(self, text: str) -> None:
        """Use this text. Raises JobsFileError; then nothing has changed."""
        if text == self.text and self.entries:
            return
        entries = jobs_file.parse(text, known=self._known(), name=self.path)
        if not entries and self.entries and not text.strip():
            hint = "to remove all lines, leave a comment in it"
            raise JobsFileError("is empty", name=self.path, hint=hint)
        try:
            self._check(entries)
        except JobsFileError as error:
            raise jobs_file.placed(error, text, self.path) from None
        self.text, self.entries = text, entries


def is_pipe(path: str) -> bool:
    """Whether the file is a pipe, which can be read only once."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False
