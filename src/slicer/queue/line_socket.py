"""How ``slicer stop`` reaches lines of a queue that have not begun: a socket beside the ledger.

Only the queue knows these lines. Its socket lies in its user's state directory, which is closed to others. A
question is a datagram: JSON with a ``word``, and whether to ``stop`` what it means. The answer names the
lines.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Collection

from slicer.state.directory import Directory, failed

_PREFIX = "queue-"
_LONGEST = 4096  # bytes of a question
_MOST_NAMED = 20  # lines in an answer
_AT_ONCE = 64  # questions that are taken in one go
_ANSWER_S = 5.0
_NOBODY = (errno.ECONNREFUSED, errno.ENOENT)


class LineSocket:
    """The queue's end. ``stop`` gets a word and whether to cancel the lines that it means, and names them."""

    def __init__(self, directory: Directory, stop: Callable[[str, bool], list[str]]) -> None:
        """Raises StateError."""
        self._stop = stop
        self._directory = directory
        self._answers: list[tuple[bytes, bytes]] = []  # and to whom
        self._name = f"{_PREFIX}{os.urandom(6).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            for name in _names(directory):
                _sweep(directory, name)
            self._socket.bind(f"{directory.handle}/{self._name}")
        except OSError as error:
            self._socket.close()
            raise failed(f"{directory.path}/{self._name}", error, what="cannot be created") from error

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def take(self, ready: Collection[int]) -> None:
        """Do what was asked. The answers wait for :meth:`answer`."""
        for _ in range(_AT_ONCE if self.fd in ready else 0):
            try:
                data, sender = self._socket.recvfrom(_LONGEST)
            except BlockingIOError:
                return
            question = _decoded(data)
            if sender and isinstance(question, dict) and isinstance(question.get("word"), str):
                found = self._stop(question["word"], question.get("stop") is True)
                self._answers.append((json.dumps(found[:_MOST_NAMED]).encode(), sender))

    def answer(self) -> None:
        """Send the answers: what was done is on the disk."""
        for data, sender in self._answers:
            try:
                self._socket.sendto(data, sender)
            except OSError:
                continue  # nobody waits for it any more
        self._answers.clear()

    def close(self) -> None:
        """Close and remove it. Raises OSError."""
        self._socket.close()
        self._directory.remove(self._name)


def stop_line(directory: Directory, word: str) -> list[str]:
    """Cancel the line that the word means. Returns what it could mean: of several none is touched."""
    asked = {name: _ask(directory, name, word, stop=False) for name in _names(directory)}
    found = {name: lines for name, lines in asked.items() if lines}
    lines = [line for each in found.values() for line in each]
    if len(lines) != 1:
        return lines
    return _ask(directory, next(iter(found)), word, stop=True)


def _names(directory: Directory) -> list[str]:
    return [name for name in directory.names() if name.startswith(_PREFIX)]


def _ask(directory: Directory, name: str, word: str, *, stop: bool) -> list[str]:
    """The lines that a queue answers with; [] from one that is dead, or stopped by Ctrl-Z."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.settimeout(_ANSWER_S)
        asking.bind("")  # the kernel chooses an address for the answer
        try:
            asking.connect(f"{directory.handle}/{name}")
            asking.send(json.dumps({"word": word, "stop": stop}).encode())
            answer = _decoded(asking.recv(1 << 16))
        except OSError:
            return []
    return [line for line in answer if isinstance(line, str)] if isinstance(answer, list) else []


def _sweep(directory: Directory, name: str) -> None:
    """Remove the socket of a queue that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(f"{directory.handle}/{name}")
        except OSError as error:
            if error.errno in _NOBODY:
                directory.remove(name)


def _decoded(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
