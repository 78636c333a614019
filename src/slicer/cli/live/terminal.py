"""The live view at its terminal: reads keys and the status, draws pages, and starts what keys ask for."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from slicer.cli import output
from slicer.cli.keys import TypedKeys, decode, pause
from slicer.cli.live.changes import ChangeWaiter
from slicer.cli.live.page import page
from slicer.cli.live.view import Act, Content, View, settled, step
from slicer.cli.queue import rows
from slicer.cli.status_text import beside, lock_lines, people, slot_line
from slicer.columns import Line
from slicer.detach.starting import program
from slicer.errors import EX_OK, EX_SLICER, SlicerError
from slicer.kernel.signal_pipe import SignalPipe
from slicer.kernel.sleep import until_readable
from slicer.ledger.status import StatusReader
from slicer.model import CPU
from slicer.quantity import format_duration
from slicer.state import standings
from slicer.text import one_line, visible

_LEAVES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOST_SAID = 4096  # bytes of what a command says
_ESCAPE_S = 0.05  # after which an escape that nothing follows is the key of that name
_DOING = {"stop": "stopping", "pause": "pausing", "resume": "resuming"}


class _Screen:
    """The terminal: between :meth:`take` and :meth:`give_back` a separate page, with raw keys and no echo."""

    def __init__(self) -> None:
        self.keys = TypedKeys()

    def take(self) -> None:
        self.keys.take()
        self.turn_page()

    def give_back(self) -> None:
        """Restore the terminal. Safe to repeat, and if the terminal is gone."""
        self.keys.give_back()
        try:
            self.turn_back()
        except OSError:
            pass

    def turn_page(self) -> None:
        """Show the separate page, whatever a job's output has done to colours and character sets."""
        _write("\x1b[0m\x1b(B\x1b[?1049h\x1b[H\x1b[?25l")

    def turn_back(self) -> None:
        """Show the terminal's own page, with the cursor."""
        _write("\x1b[?25h\x1b[?1049l")

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """Write the whole page at once, so that it does not flicker."""
        # Clear each line before writing it: afterwards, some terminals would clear a full line's last
        # character.
        _write("\x1b[H" + "\r\n".join(f"\x1b[2K{output.fitted(line, width)}" for line in lines))

    def typed(self) -> list[str] | None:
        """The keys that were typed; None: the terminal is gone."""
        keys: list[str] = []
        rest = b""
        while True:
            typed = self.keys.read()
            if typed is None:
                return None
            found, rest = decode(rest + typed, is_all=False)
            keys += found
            if not rest:
                return keys
            if not until_readable(self.keys.descriptors, _ESCAPE_S, None):
                return keys + decode(rest, is_all=True)[0]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Child:
    """A command that the view has started. ``fd`` is readable when it says something, and at its end."""

    def __init__(self, *words: str, shows: bool = False) -> None:
        """Start ``slicer WORDS``. ``shows``: its output goes to the terminal, and only errors are kept."""
        self._what = f"slicer {words[0]}"
        self._said = b""
        self._pid = 0  # 0: it has ended
        self.fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        actions: list[tuple[object, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, write_fd, fd) for fd in ((2,) if shows else (1, 2))]
        command = (*program(), *words)
        try:
            self._pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        except OSError as error:
            self._said = f"{self._what} cannot be started: {error.strerror}".encode()
        finally:
            os.close(write_fd)

    def end(self) -> tuple[int, str] | None:
        """None while it runs. Then its exit code, and the last line that it said."""
        try:
            while said := os.read(self.fd, _MOST_SAID):
                self._said = (self._said + said)[-_MOST_SAID:]
        except BlockingIOError:
            return None
        code = self._reap()
        lines = self._said.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return code, one_line(last) or (f"{self._what} failed (exit code {code})" if code else "")

    def kill(self) -> None:
        """End it at once, if it runs. Only for a command that changes nothing."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int:
        os.close(self.fd)
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else EX_SLICER


class LiveView:
    """Draws pages, and handles keys and signals."""

    def __init__(self, reader: StatusReader, changes: ChangeWaiter, interval_s: float) -> None:
        self._reader = reader
        self._changes = changes
        self._interval_s = interval_s
        self._content: Content | None = None
        self._view = View()
        self._message = ""
        self._children: list[_Child] = []
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
        while True:
            self._draw()
            pipes = [child.fd for child in self._children]
            ready = self._changes.wait([signals.fd, *self._screen.keys.descriptors, *pipes])
            if ready.intersection(pipes):
                self._hear()
            code = self._handle(signals)
            if code is None and 0 in ready:
                code = self._type(signals)
            if code is not None:
                return code
            if not ready:
                self._look()

    def _handle(self, signals: SignalPipe) -> int | None:
        """Handle signals. Returns the exit code if one of them ends the view."""
        for signo in signals.take():
            if signo in _LEAVES:
                return EX_OK if signo == signal.SIGINT else 128 + signo
            if signo == signal.SIGTSTP:
                pause(self._screen.give_back, self._screen.take)
                self._look()  # much may have changed meanwhile
        return None

    def _type(self, signals: SignalPipe) -> int | None:
        """Handle keys. Returns the exit code if one of them ends the view."""
        keys = self._screen.typed()
        if keys is None:
            return EX_OK
        for key in keys:
            assert self._content is not None
            self._message = ""
            self._view, act = step(self._view, key, self._content, shutil.get_terminal_size().lines)
            if act is not None and act.verb == "leave":
                return EX_OK
            if act is not None and act.verb == "log":
                return self._show_log(act, signals)  # keys that were typed after it are dropped
            if act is not None:
                self._do(act)
        return None

    def _do(self, act: Act) -> None:
        """Say something, or start a command. What that says is shown when it has ended."""
        if act.verb == "say":
            self._message = act.text
            return
        self._message = f"{_DOING[act.verb]} {act.text}"
        self._children.append(_Child(act.verb, act.job))

    def _hear(self) -> None:
        """Show what ended commands said."""
        ended = [(child, end) for child in self._children if (end := child.end()) is not None]
        for child, (_, said) in ended:
            self._children.remove(child)
            self._message = said
        if ended:
            self._look()  # a pause changes no file of the ledger

    def _look(self) -> None:
        """Read the status. The first failure to read is raised; later ones are shown."""
        notes: list[str] = []
        self._changes.begin()
        try:
            status = self._reader.read(notes.append)
            servers = standings.read(os.environ, notes.append)
            more = (*beside(status, servers, rows.running(status.directory)), *people(status))
        except SlicerError as error:
            if self._content is None:
                raise
            notes.append(str(error))
            status, more = self._content.status, self._content.more
        self._changes.end()
        notes += [*[line.text for line in lock_lines(status)], *filter(None, [self._changes.problem])]
        at = time.time()
        every = f"GPUs every {format_duration(self._interval_s)}"
        slots = slot_line(CPU, status.slots[CPU], status).partition(";")[0]  # without its holders
        title = "  ".join((socket.gethostname(), time.strftime("%H:%M:%S"), slots, every))
        self._content = Content(status, more, tuple(notes), title, os.geteuid(), at)
        self._view = settled(self._view, self._content)

    def _draw(self) -> None:
        assert self._content is not None
        width, height = shutil.get_terminal_size()
        lines = page(self._view, self._content, self._message, width, height, output.glyphs())
        self._screen.draw(lines, width)

    # -- the log of a job -----------------------------------------------------------------------------------

    def _show_log(self, act: Act, signals: SignalPipe) -> int | None:
        """Follow a job's log on the terminal's own page. Returns the exit code if the view ends there."""
        self._screen.turn_back()
        _write(f"slicer logs -f {visible(act.text)}: q returns\n")
        child = _Child("logs", "-f", act.job, shows=True)
        try:
            code = self._follow(child, signals)
        finally:
            child.kill()
        if code is None:
            self._screen.keys.drop()  # an escape sequence in the log can make the terminal type an answer
            self._screen.turn_page()
            self._look()
        return code

    def _follow(self, child: _Child, signals: SignalPipe) -> int | None:
        """Wait for q, or for the command's failure. Returns the exit code if the view ends."""
        pipe = [child.fd]
        while True:
            ready = until_readable([signals.fd, *self._screen.keys.descriptors, *pipe], None, None)
            for signo in signals.take():
                if signo == signal.SIGTSTP:
                    pause(self._screen.keys.give_back, self._screen.keys.take)
                elif signo in _LEAVES:  # Ctrl-C leaves only the log
                    return None if signo == signal.SIGINT else 128 + signo
            if ready.intersection(pipe) and (end := child.end()) is not None:
                if end[0]:
                    self._message = end[1]
                    return None
                pipe = []
                _write("-- the job has ended: q returns --\n")
            if 0 in ready:
                typed = self._screen.typed()
                if typed is None:
                    return EX_OK
                if not {"q", "Q", "esc"}.isdisjoint(typed):
                    return None
