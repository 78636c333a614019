"""Reads single keys from the terminal, and handles Ctrl-Z."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from typing import Protocol


class TypedKeys:
    """Stdin's terminal, if it is one. Between :meth:`take` and :meth:`give_back` keys come at once."""

    def __init__(self) -> None:
        self.descriptors = [0] if os.isatty(0) else []
        self._before: list[object] | None = None

    def take(self) -> None:
        if self.descriptors:
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)
            settings = termios.tcgetattr(0)
            settings[6][termios.VMIN] = 0  # a read must not block: Ctrl-C discards keys that were there
            termios.tcsetattr(0, termios.TCSANOW, settings)

    def give_back(self) -> None:
        """Restore the terminal. Safe to repeat, and if the terminal is gone."""
        if self._before is not None:
            try:
                termios.tcsetattr(0, termios.TCSAFLUSH, self._before)  # type: ignore[arg-type]
            except termios.error:
                return
            self._before = None

    @staticmethod
    def ask_to_leave() -> bool:
        """Whether q was typed, or the terminal is gone."""
        try:
            typed = os.read(0, 4096)
        except OSError:
            return True
        poll = select.poll()
        poll.register(0, 0)  # for a hang-up
        return b"q" in typed.lower() or (not typed and bool(poll.poll(0)))


class Taken(Protocol):
    def take(self) -> None:
        """Take the terminal."""

    def give_back(self) -> None:
        """Restore the terminal."""


def pause(terminal: Taken) -> None:
    """Ctrl-Z: give the terminal back to the shell, stop, and take it again when continued."""
    terminal.give_back()
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    terminal.take()
