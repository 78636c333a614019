"""Reads single keys from the terminal, and handles Ctrl-Z."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import tty
from collections.abc import Callable

_NAMES = {
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\b": "backspace", b"A": "up", b"B": "down",
    b"H": "home", b"F": "end", b"1~": "home", b"7~": "home", b"4~": "end", b"8~": "end", b"5~": "page up",
    b"6~": "page down",
}  # fmt: skip
# Also the answers of a terminal, which a job's log can ask for, are sequences: their text is not typed.
_SEQUENCE = re.compile(rb"\x1b(?:\[([0-?]*[ -/]*[@-~])|O([@-~])|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\))")
_CHARACTER = re.compile(  # in UTF-8, perhaps cut; or any other byte
    rb"[\xc2-\xdf][\x80-\xbf]?|[\xe0-\xef][\x80-\xbf]{0,2}|[\xf0-\xf4][\x80-\xbf]{0,3}|.", re.DOTALL
)
_BEGUN = re.compile(rb"\x1b(?:\[[0-?]{0,16}[ -/]{0,16}|O|[\]PX^_][^\x07\x1b]{0,4096}\x1b?)?")


def decode(data: bytes, *, is_all: bool) -> tuple[list[str], bytes]:
    """The keys of what a terminal sent: characters, and names such as "up"; and the rest, a key half sent.

    ``is_all``: nothing follows soon, so an escape is the key of that name. Pure.
    """
    keys = []
    while data:
        if found := _SEQUENCE.match(data):
            keys.append(_NAMES.get(found[1] or found[2] or b"", ""))
            data = data[found.end() :]
        elif data[:1] == b"\x1b":
            if not is_all and _BEGUN.fullmatch(data):
                return list(filter(None, keys)), data
            keys.append("esc")
            data = data[1:]
        elif found := _CHARACTER.match(data):
            size = 1 + sum(data[0] >= least for least in (0xC2, 0xE0, 0xF0)) if data[0] < 0xF5 else 1
            if not is_all and found.end() == len(data) < size:
                break
            text = found[0].decode(errors="ignore")
            keys.append(_NAMES.get(found[0], text if text.isprintable() else ""))
            data = data[found.end() :]
    return list(filter(None, keys)), data


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
    def read() -> bytes | None:
        """What was typed; None: the terminal is gone."""
        try:
            typed = os.read(0, 4096)
        except OSError:
            return None
        poll = select.poll()
        poll.register(0, 0)  # for a hang-up
        return None if not typed and poll.poll(0) else typed

    @staticmethod
    def drop() -> None:
        """Forget what was typed and not read yet."""
        try:
            termios.tcflush(0, termios.TCIFLUSH)
        except termios.error:
            return  # the terminal is gone: the next read says so

    def ask_to_leave(self) -> bool:
        """Whether q was typed, or the terminal is gone."""
        typed = self.read()
        return typed is None or b"q" in typed.lower()


def pause(give_back: Callable[[], None], take: Callable[[], None]) -> None:
    """Ctrl-Z: give the terminal back to the shell, stop, and take it again when continued."""
    give_back()
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    take()
