"""``slicer queue FILE`` on a queue that runs already: its board, here too, until q or Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, get_args

from slicer.cli.keys import TypedKeys, pause
from slicer.cli.queue.live import Live
from slicer.cli.queue.show import can_draw
from slicer.errors import EX_OK, EX_SLICER, StateError
from slicer.kernel.signal_pipe import SignalPipe
from slicer.kernel.sleep import until_readable
from slicer.queue.control import client
from slicer.queue.control.client import Asked
from slicer.queue.control.messages import decode, read_board
from slicer.queue.model import QueueOptions
from slicer.queue.show.event_text import Level
from slicer.text import quote

_LEAVES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def attach(options: QueueOptions, environ: Mapping[str, str]) -> int | None:
    """Show the board of the queue that runs this file with this log directory, if one does.

    None: none does, or there is no terminal to show it on. Else the exit code: the queue's own if it ends.
    """
    if not can_draw(sys.stdout):
        return None
    with client.queues(environ) as found:
        asked = client.of_file(found, options.jobs_file, options.log_dir)
        return None if asked is None else _Viewer(asked, quote(options.jobs_file)).run()


class _Viewer:
    def __init__(self, asked: Asked, file: str) -> None:
        self._asked = asked
        self._file = file
        self._live = Live(sys.stdout)
        self._keys = TypedKeys()

    def _take(self) -> None:
        """Draw on the terminal from now on, and take its keys."""
        self._keys.take()
        self._live.begin()

    def run(self) -> int:
        """Raises StateError."""
        with closing(SignalPipe((*_LEAVES, signal.SIGWINCH, signal.SIGTSTP))) as signals:
            try:
                self._take()
                self._live.say(f"{self._file} is running already (pid {self._asked.pid}); q leaves its board")
                return self._follow(signals)
            finally:
                self._live.end()
                self._keys.give_back()

    def _follow(self, signals: SignalPipe) -> int:
        if not self._asked.send("watch"):
            return self._lost()
        descriptors = [self._asked.connection.fileno(), signals.fd, *self._keys.descriptors]
        while True:
            ready = until_readable(descriptors, None, None)
            code = self._hear()
            if code is not None:
                return code
            if 0 in ready and self._keys.ask_to_leave():
                return self._leave(EX_OK)
            for signo in signals.take():
                if signo in _LEAVES:
                    return self._leave(EX_OK if signo == signal.SIGINT else 128 + signo)
                if signo == signal.SIGTSTP:
                    pause(self._keys.give_back, self._take)
                self._live.redraw()

    def _hear(self) -> int | None:
        """Process the packets of the queue. Returns its exit code if it has ended."""
        board: Any = None
        while packet := self._asked.receive():
            message = decode(packet)
            if message is None:
                raise self._unknown()
            board = message.get("board", board)
            for text, level in message.get("said", ()):
                self._live.say(str(text), level if level in get_args(Level) else "info")
            if "end" in message:
                return int(message["end"])
        if board is not None:
            try:
                self._live.draw(read_board(board))
            except (TypeError, ValueError, KeyError) as error:
                raise self._unknown() from error
        return self._lost() if packet == b"" else None

    def _unknown(self) -> StateError:
        return StateError("is of another version", where=f"the queue of pid {self._asked.pid}")

    def _lost(self) -> int:
        self._live.say(f"the queue was killed or has crashed; slicer queue {self._file} resumes it", "bad")
        return EX_SLICER

    def _leave(self, code: int) -> int:
        self._live.say(f"left the board: the queue continues (pid {self._asked.pid})")
        return code
