"""``slicer status --watch``: the live status, on a terminal or as lines of JSON."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from slicer import broker
from slicer.backend import broker_socket
from slicer.broker.client.standing import status_reader
from slicer.cli import output, say
from slicer.cli.keys import TypedKeys, pause
from slicer.cli.queue import rows
from slicer.cli.status_json import status_json, without_clocks
from slicer.cli.status_text import Section, joined, sections
from slicer.columns import FAINT, WARNING, Line
from slicer.errors import EX_OK, SlicerError, StateError, UsageError
from slicer.kernel import inotify
from slicer.kernel.inotify import Inotify
from slicer.kernel.signal_pipe import SignalPipe
from slicer.kernel.sleep import until_readable
from slicer.ledger.status import LedgerStatus, StatusReader
from slicer.ledger.watch import LedgerWatch
from slicer.quantity import format_duration
from slicer.queue.control.messages import RunningQueue
from slicer.record import replace
from slicer.serve import standings
from slicer.serve.model import ServerStanding
from slicer.state.statedir import StateDir
from slicer.text import visible

_SOONEST_S = 0.1  # between two updates, however much happens
_LOOKING_SHARE = 0.25  # the largest part of the time that goes into reading the status
_LEAVES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run(*, as_json: bool, interval_s: float) -> int:
    """Show the status until told to quit. Returns the exit code.

    Raises UsageError if there is no terminal to draw on, StateError if the ledger cannot be used.
    """
    hint = "slicer status shows one moment, --watch --json one line for each change"
    if not as_json and not output.is_terminal():
        raise UsageError("stdout is not a terminal", where="--watch", hint=hint)
    term = os.environ.get("TERM", "")
    if not as_json and term in ("dumb", "unknown", ""):
        raise UsageError("cannot draw on this terminal", where=f"TERM={term}", hint=hint)
    reader = status_reader(os.environ)
    with closing(reader), closing(ChangeWaiter(reader, interval_s)) as changes:
        if as_json:
            _write_changes(reader, changes)
            return EX_OK
        return _LiveView(reader, changes, interval_s).run()


class ChangeWaiter:
    """Sleeps until something may be new: the ledger has changed, or it is time to check the GPUs again."""

    def __init__(self, reader: StatusReader, interval_s: float) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._watch: LedgerWatch | None = None
        self._directory: StateDir | None = None
        self._others = _watch_of_others()
        self.problem = ""  # why changes of the ledger are noticed only after the interval; "" if they are not
        self._began_s = time.monotonic()

    def begin(self) -> None:
        self._began_s = time.monotonic()

    def wait(self, others: list[int]) -> frozenset[int]:
        """Sleep until something may have changed, or descriptors in ``others`` are ready. Returns those."""
        ended_s = time.monotonic()
        pause_s = max(_SOONEST_S, (ended_s - self._began_s) * (1 / _LOOKING_SHARE - 1))
        if not self._follow():
            own = self._watch.descriptors() if self._watch else []
            own += [self._others.fd] if self._others else []
            due_s = self._watch.due_s() if self._watch else None
            limit_s = self._interval_s if due_s is None else min(due_s, self._interval_s)
            ready = until_readable([*own, *others], limit_s, None).intersection(others)
            if ready:
                return ready
        # Much may happen at once. Nobody can read faster than this.
        ready = until_readable(others, max(0.0, ended_s + pause_s - time.monotonic()), None)
        if self._watch is not None:
            self._watch.take()
        if self._others is not None:
            self._others.take()
        return ready

    def _follow(self) -> bool:
        """Watch the ledger just read. Returns whether it may have changed before the watch began."""
        directory = self._reader.directory
        if directory is not self._directory:
            self._forget()
            self._directory = directory
        is_new = False
        self.problem = ""
        try:
            if self._watch is None and directory is not None:
                folders = (directory.leases, directory.tickets)
                self._watch = LedgerWatch(directory, folders, sees_newcomers=True)
                is_new = True
            if self._watch is not None:
                is_new |= self._watch.follow(self._reader.orphans)
        except StateError as error:
            self.problem = str(error)
        return is_new

    def _forget(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def close(self) -> None:
        self._forget()
        if self._others is not None:
            self._others.close()


def _watch_of_others() -> Inotify | None:
    """A watch on all users' leases. New tickets are noticed only after the interval."""
    found = Inotify(broker.DIRECTORY)
    changes = inotify.CREATE | inotify.MOVED_TO | inotify.DELETE
    if broker_socket(os.environ) and found.add(f"{broker.DIRECTORY}/leases", changes) is not None:
        return found
    found.close()
    return None


# -- for scripts --------------------------------------------------------------------------------------------


def _write_changes(reader: StatusReader, changes: ChangeWaiter) -> None:
    """Write one document a line: at once, and whenever more than the clocks has changed."""
    said: set[str] = set()

    def warn(text: str) -> None:
        if text not in said:
            said.add(text)
            say.line(text)

    pipe = [1] if stat.S_ISFIFO(os.fstat(1).st_mode) else []
    last = None
    while True:
        changes.begin()
        status = reader.read(warn)
        servers = standings.read(os.environ, warn)
        document = status_json(status, servers, rows.running(status.directory))
        if last != (last := without_clocks(document)):
            output.show_json(document, compact=True)
        if changes.problem:
            warn(changes.problem)
        if changes.wait(pipe):
            raise BrokenPipeError  # this is how a pipe reports that its reader is gone


# -- for people ---------------------------------------------------------------------------------------------


class _Screen:
    """The terminal: between :meth:`take` and :meth:`give_back` a separate page, with raw keys and no echo."""

    def __init__(self) -> None:
        self.keys = TypedKeys()

    def take(self) -> None:
        self.keys.take()
        _write("\x1b[?1049h\x1b[H\x1b[?25l")

    def give_back(self) -> None:
        """Restore the terminal. Safe to repeat, and if the terminal is gone."""
        self.keys.give_back()
        try:
            _write("\x1b[?25h\x1b[?1049l")
        except OSError:
            pass

    def draw(self, lines: Sequence[Line]) -> None:
        """Write the whole screen at once, so that it does not flicker."""
        width, height = shutil.get_terminal_size()
        # Clear each line before writing it: afterwards, some terminals would clear a full line's last
        # character.
        rows = [f"\x1b[2K{output.fitted(line, width)}" for line in lines[:height]]
        _write("\x1b[H" + "\r\n".join(rows) + ("\x1b[J" if len(rows) < height else ""))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _LiveView:
    """Draws the page, and handles keys and signals."""

    def __init__(self, reader: StatusReader, changes: ChangeWaiter, interval_s: float) -> None:
        self._reader = reader
        self._changes = changes
        self._interval_s = interval_s
        self._status: LedgerStatus | None = None
        self._servers: tuple[ServerStanding, ...] = ()
        self._queues: tuple[RunningQueue, ...] = ()
        self._looked_at = ""
        self._notes: list[str] = []
        self._screen = _Screen()

    def run(self) -> int:
        """Run until q or Ctrl-C (0), or another terminating signal (128 + its number)."""
        with closing(SignalPipe((*_LEAVES, signal.SIGWINCH, signal.SIGTSTP))) as signals:
            self._look()  # an error here is printed before the page opens
            try:
                self._screen.take()
                return self._show(signals)
            finally:
                self._screen.give_back()

    def _show(self, signals: SignalPipe) -> int:
        screen = self._screen
        keys = screen.keys.descriptors
        while True:
            screen.draw(self._page(shutil.get_terminal_size().lines))
            ready = self._changes.wait([signals.fd, *keys])
            if 0 in ready and screen.keys.ask_to_leave():
                return EX_OK
            for signo in signals.take():
                if signo in _LEAVES:
                    return EX_OK if signo == signal.SIGINT else 128 + signo
                if signo == signal.SIGTSTP:
                    pause(screen)
                    ready = frozenset()  # much may have changed meanwhile: read again
            if not ready:
                self._look()

    def _look(self) -> None:
        """Read the status. The first failure to read is raised; later ones are shown."""
        notes: list[str] = []
        self._changes.begin()
        try:
            self._status = self._reader.read(notes.append)
            self._servers = standings.read(os.environ, notes.append)
            self._queues = rows.running(self._status.directory)
        except SlicerError as error:
            if self._status is None:
                raise
            notes.append(str(error))
        self._notes = notes
        self._looked_at = time.strftime("%H:%M:%S")

    def _page(self, height: int) -> list[Line]:
        assert self._status is not None
        every = format_duration(self._interval_s)
        title = f"{socket.gethostname()}  {self._looked_at}  changes at once, GPUs every {every}; q quits"
        notes = [*self._notes, *([self._changes.problem] if self._changes.problem else [])]
        below = [Line(visible(note), WARNING) for note in notes]
        room = height - 2 - len(below)
        shown = fit(sections(self._status, self._servers, self._queues), max(1, room))
        return [Line(title, FAINT), Line(""), *shown, *below]


# -- what fits ----------------------------------------------------------------------------------------------


def fit(parts: list[Section], height: int) -> list[Line]:
    """The sections in at most ``height`` lines. Entries left out are counted."""
    briefly = [replace(part, entries=tuple(entry[:1] for entry in part.entries)) for part in parts]
    chosen = [brief if part.what == "jobs" else part for part, brief in zip(parts, briefly, strict=True)]
    room = max(1, height - (len(parts) - 1))
    if sum(len(part.lines) for part in parts) <= room:
        return joined([part.lines for part in parts])
    shares = _shares([len(part.lines) for part in chosen], room)
    chosen = [
        part if len(part.lines) <= share or part.what == "waiting" else brief
        for part, brief, share in zip(chosen, briefly, shares, strict=True)
    ]
    shares = _shares([len(part.lines) for part in chosen], room)
    return joined([_cut(part, share) for part, share in zip(chosen, shares, strict=True)])[:height]


def _shares(wanted: list[int], room: int) -> list[int]:
    """``room`` divided fairly: the largest shares are equal, and no share exceeds what is wanted."""
    shares = [0] * len(wanted)
    for served, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], room // (len(wanted) - served))
        room -= shares[index]
    return shares


def _cut(part: Section, most: int) -> list[Line]:
    """At most ``most`` lines of the section."""
    if len(part.lines) <= most:
        return part.lines
    shown = list(part.head)
    entries = list(part.entries)
    while entries and len(shown) + len(entries[0]) < most:
        shown += entries.pop(0)
    if part.what:
        shown.append(Line(f"{output.glyphs().ellipsis} {len(entries)} more {part.what}", FAINT))
    return shown
