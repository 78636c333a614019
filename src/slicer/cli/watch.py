"""``slicer status --watch``: the state of things as it changes, on a terminal or as lines of JSON."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import sys
import termios
import time
import tty

from rich.console import Console
from rich.text import Text

from slicer.cli import output, say
from slicer.cli.status_json import status_json, without_clocks
from slicer.cli.status_text import Section, sections
from slicer.columns import FAINT, Line, clip
from slicer.errors import EX_OK, SlicerError, StateError, UsageError
from slicer.ledger.status import Lookout
from slicer.ledger.watch import LedgerWatch
from slicer.quantity import format_duration
from slicer.record import replace
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

    from slicer.ledger.status import Status
    from slicer.state.statedir import StateDir

_SOONEST_S = 0.1  # between two looks, however much happens
_LOOKING_SHARE = 0.25  # of the time, at most, goes into looking
_LEAVES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_NOTE = "yellow"


def run(*, as_json: bool, interval_s: float) -> int:
    """Show the state of things until told to leave; returns the exit code.

    Raises UsageError where there is no terminal to draw on, StateError where the ledger cannot be used.
    """
    if not as_json:
        _check_terminal()
    lookout = Lookout(os.environ)
    news = Events(lookout, interval_s)
    try:
        if as_json:
            _write_changes(lookout, news)
            return EX_OK
        return _View(lookout, news, interval_s).run()
    finally:
        news.close()
        lookout.close()


def _check_terminal() -> None:
    hint = "slicer status shows one moment, --watch --json one line for each change"
    if not output.is_terminal():
        raise UsageError("stdout is not a terminal", where="--watch", hint=hint)
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise UsageError(
            "this terminal cannot be drawn on", where=f"TERM={os.environ.get('TERM', '')}", hint=hint
        )


class Events:
    """Sleeps until there may be something new: a change of the ledger, or time to look at the GPUs again."""

    def __init__(self, lookout: Lookout, interval_s: float) -> None:
        self._lookout = lookout
        self._interval_s = interval_s
        self._watch: LedgerWatch | None = None
        self._directory: StateDir | None = None
        self.problem = ""  # why changes of the ledger are seen only as the interval has passed; "" for none
        self._began_s = time.monotonic()

    def begin(self) -> None:
        """A look begins."""
        self._began_s = time.monotonic()

    def wait(self, others: Sequence[int]) -> frozenset[int]:
        """Sleep until there is news or one of ``others`` (descriptors) is ready; returns those that are."""
        ended_s = time.monotonic()
        pause_s = max(_SOONEST_S, (ended_s - self._began_s) * (1 / _LOOKING_SHARE - 1))
        if not self._follow():
            own = self._watch.descriptors() if self._watch else []
            due_s = self._watch.due_s() if self._watch else None
            limit_s = self._interval_s if due_s is None else min(due_s, self._interval_s)
            ready = _ready([*own, *others], limit_s).intersection(others)
            if ready:
                return ready
        # Much may happen at once, and nobody reads faster than this.
        ready = _ready(others, max(0.0, ended_s + pause_s - time.monotonic()))
        if self._watch is not None:
            self._watch.take()
        return ready

    def _follow(self) -> bool:
        """Watch what was just looked at; whether it may have changed before that began."""
        directory = self._lookout.directory
        if directory is not self._directory:
            self.close()
            self._directory = directory
        is_new = False
        self.problem = ""
        try:
            if self._watch is None and directory is not None:
                folders = (directory.leases, directory.tickets)
                self._watch = LedgerWatch(directory, folders, sees_newcomers=True)
                is_new = True
            if self._watch is not None:
                is_new |= self._watch.follow(self._lookout.orphans)
        except StateError as error:
            self.problem = str(error)
        return is_new

    def close(self) -> None:
        """Stop watching. Safe to repeat."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _ready(descriptors: Sequence[int], timeout_s: float) -> frozenset[int]:
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return frozenset(fd for fd, _ in poll.poll(timeout_s * 1000))


# -- for scripts --------------------------------------------------------------------------------------------


def _write_changes(lookout: Lookout, news: Events) -> None:
    """One document a line: at once, and whenever it says something else (the clocks apart)."""
    said: set[str] = set()

    def warn(text: str) -> None:
        if text not in said:
            said.add(text)
            say.line(text)

    reader = [1] if stat.S_ISFIFO(os.fstat(1).st_mode) else []
    last = None
    while True:
        news.begin()
        document = status_json(lookout.look(warn))
        if last != (last := without_clocks(document)):
            output.show_json(document, compact=True)
        if news.problem:
            warn(news.problem)
        if news.wait(reader):
            raise BrokenPipeError  # a pipe is ready in this way when nobody reads it any more


# -- for people ---------------------------------------------------------------------------------------------


class _Screen:
    """The terminal, ours from entering to leaving: another page, keys at once and not shown."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.has_keys = os.isatty(0)
        self._before: list[object] | None = None

    def __enter__(self) -> _Screen:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def take(self) -> None:
        if self.has_keys:
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)
        self.console.set_alt_screen(True)
        self.console.show_cursor(False)

    def give_back(self) -> None:
        """As it was before. Safe to repeat; a terminal that is gone needs nothing."""
        try:
            if self._before is not None:
                termios.tcsetattr(0, termios.TCSAFLUSH, self._before)  # type: ignore[arg-type]
                self._before = None
            self.console.show_cursor(True)
            self.console.set_alt_screen(False)
        except (OSError, termios.error):
            pass

    def draw(self, lines: Sequence[Line]) -> None:
        """All of the screen in one piece, or it would flicker."""
        width, height = self.console.size
        # The line is cleared first: after a full one, some terminals would clear its last character.
        rows = [f"\x1b[2K{self._styled(line, width)}" for line in lines[:height]]
        sys.stdout.write("\x1b[H" + "\r\n".join(rows) + ("\x1b[J" if len(rows) < height else ""))
        sys.stdout.flush()

    def _styled(self, line: Line, width: int) -> str:
        text = clip(output.encodable(visible(line.text)), width, output.glyphs())
        with self.console.capture() as drawn:
            self.console.print(Text(text, style=line.style), end="", no_wrap=True, overflow="crop")
        return drawn.get()


class _View:
    """The live view: what is drawn, and what the keys and signals do."""

    def __init__(self, lookout: Lookout, news: Events, interval_s: float) -> None:
        self._lookout = lookout
        self._news = news
        self._interval_s = interval_s
        self._status: Status | None = None
        self._looked_at = ""
        self._notes: list[str] = []
        self._signals: list[int] = []  # that came

    def run(self) -> int:
        """Until q or Ctrl-C (0), or another signal that ends (128 + its number)."""
        inner, outer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        wakeup = signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
        handled = (*_LEAVES, signal.SIGWINCH, signal.SIGTSTP)
        before = {signo: signal.signal(signo, self._note) for signo in handled}
        try:
            self._look()  # what is wrong from the start is said on the page as it was
            with _Screen() as screen:
                return self._show(screen, inner)
        finally:
            for signo, handler in before.items():
                signal.signal(signo, handler)
            signal.set_wakeup_fd(wakeup)
            os.close(inner)
            os.close(outer)

    def _note(self, signo: int, frame: FrameType | None) -> None:
        self._signals.append(signo)

    def _show(self, screen: _Screen, inner: int) -> int:
        keys = [0] if screen.has_keys else []
        while True:
            screen.draw(self._page(screen.console.size.height))
            ready = self._news.wait([inner, *keys])
            if inner in ready:
                os.read(inner, 4096)
            if 0 in ready and _keys() in (b"", b"q", b"Q"):
                return EX_OK
            while self._signals:
                signo = self._signals.pop(0)
                if signo in _LEAVES:
                    return EX_OK if signo == signal.SIGINT else 128 + signo
                if signo == signal.SIGTSTP:
                    _pause(screen)
                    ready = frozenset()  # much may have happened meanwhile
            if not ready:
                self._look()

    def _look(self) -> None:
        """What cannot be looked at for the moment is said; it may be mended while we stay."""
        notes: list[str] = []
        self._news.begin()
        try:
            self._status = self._lookout.look(notes.append)
        except SlicerError as error:
            if self._status is None:
                raise
            notes.append(str(error))
        self._notes = notes
        self._looked_at = time.strftime("%H:%M:%S")

    def _page(self, height: int) -> list[Line]:
        assert self._status is not None
        every = format_duration(self._interval_s)
        title = (
            f"{socket.gethostname()}  {self._looked_at}  each change at once, GPUs every {every}; q leaves"
        )
        notes = [*self._notes, *([self._news.problem] if self._news.problem else [])]
        below = [Line(visible(note), _NOTE) for note in notes]
        room = height - 2 - len(below)
        return [Line(title, FAINT), Line(""), *fit(sections(self._status), max(1, room)), *below]


def _keys() -> bytes:
    """What was typed; nothing when the terminal is gone."""
    try:
        return os.read(0, 4096)
    except OSError:
        return b""


def _pause(screen: _Screen) -> None:
    """Ctrl-Z: the shell gets its terminal as it was, and we ours when we go on."""
    screen.give_back()
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    screen.take()


# -- what fits ----------------------------------------------------------------------------------------------


def fit(parts: list[Section], height: int) -> list[Line]:
    """The sections in at most ``height`` lines; what is left out is counted."""
    briefly = [replace(part, entries=tuple(entry[:1] for entry in part.entries)) for part in parts]
    chosen = [brief if part.what == "jobs" else part for part, brief in zip(parts, briefly, strict=True)]
    room = max(1, height - (len(parts) - 1))
    if sum(map(_length, parts)) <= room:
        return _joined([_all(part) for part in parts])
    shares = _shares([_length(part) for part in chosen], room)
    chosen = [
        part if _length(part) <= share or part.what == "waiting" else brief
        for part, brief, share in zip(chosen, briefly, shares, strict=True)
    ]
    shares = _shares([_length(part) for part in chosen], room)
    return _joined([_cut(part, share) for part, share in zip(chosen, shares, strict=True)])[:height]


def _length(part: Section) -> int:
    return len(part.head) + sum(map(len, part.entries))


def _shares(wanted: list[int], room: int) -> list[int]:
    """``room`` divided fairly: nobody gets more than wanted, nor less than others while wanting more."""
    shares = dict.fromkeys(range(len(wanted)), 0)
    left = len(wanted)
    for index in sorted(shares, key=lambda index: wanted[index]):
        shares[index] = min(wanted[index], room // left)
        room -= shares[index]
        left -= 1
    return list(shares.values())


def _all(part: Section) -> list[Line]:
    return [*part.head, *(line for entry in part.entries for line in entry)]


def _cut(part: Section, most: int) -> list[Line]:
    """At most ``most`` lines of it."""
    if _length(part) <= most:
        return _all(part)
    shown = list(part.head)
    entries = list(part.entries)
    while entries and len(shown) + len(entries[0]) < most:
        shown += entries.pop(0)
    return (
        [*shown, Line(f"{output.glyphs().ellipsis} {len(entries)} more {part.what}", FAINT)]
        if part.what
        else shown
    )


def _joined(parts: list[list[Line]]) -> list[Line]:
    """With an empty line between them."""
    lines: list[Line] = []
    for part in parts:
        lines += [Line(""), *part] if lines else part
    return lines
