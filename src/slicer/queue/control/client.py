"""Asking the user's running queues.

Their sockets lie beside the ledger, and beside that of each set of simulated GPUs. All are asked at once. A
queue that does not answer in time (Ctrl-Z stops it, for example) costs its own answer alone.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from slicer.errors import StateError
from slicer.kernel.sleep import until_readable
from slicer.queue.control.messages import (
    LONGEST,
    QueuedLine,
    RunningQueue,
    decode,
    encode,
    read_line,
    read_queue,
)
from slicer.queue.control.server import PREFIX
from slicer.state.directory import Directory, open_trusted
from slicer.state.statedir import where

_ANSWER_S = 5.0
_LOOK_S = 1.0  # for those who only look
_SIMULATED = "sim-"


class Asked:
    """A connection to a queue. ``queue`` says what it is; None: not known yet, or it does not answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.queue: RunningQueue | None = None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid, self.uid, _ = struct.unpack("3i", credentials)

    def ask(self, ask: str, **more: object) -> dict[str, Any]:
        """The answer. Raises StateError if there is none in time, or not of this version."""
        found = self.answer(time.monotonic() + _ANSWER_S) if self.send(ask, **more) else None
        if found is None or "error" in found:
            raise StateError("does not answer", where=f"the queue of pid {self.pid}", hint="is it stopped?")
        return found

    def send(self, ask: str, **more: object) -> bool:
        try:
            self.connection.send(encode({"ask": ask, **more}))
        except OSError:  # it has just ended, or it reads nothing
            return False
        return True

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """What comes by then; None: nothing."""
        if not until_readable([self.connection.fileno()], max(0.0, deadline - time.monotonic()), None):
            return None
        packet = self.receive()
        return decode(packet) if packet else None

    def receive(self) -> bytes | None:
        """A packet; None: none is there now; b"": the queue has ended."""
        try:
            return self.connection.recv(2 * LONGEST)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self.connection.close()


@contextmanager
def queues(environ: Mapping[str, str]) -> Iterator[list[Asked]]:
    """This user's running queues, those on simulated GPUs too. Raises StateError."""
    base = where({**environ, "SLICER_SIM": ""}, os.geteuid())
    found: list[Asked] = []
    try:
        if os.path.lexists(base):
            with closing(open_trusted(base)) as directory:
                found += _connected(directory)
                for name in sorted(directory.names()):
                    if name.startswith(_SIMULATED):
                        with closing(directory.open_folder(name)) as simulated:
                            found += _connected(simulated)
        _introduce(found)
        yield found
    finally:
        for each in found:
            each.close()


def standings(directory: Directory) -> list[RunningQueue]:
    """What the queues say of themselves whose sockets lie in this directory. Raises StateError."""
    found = _connected(directory)
    try:
        _introduce(found)
        return [each.queue for each in found if each.queue is not None]
    finally:
        for each in found:
            each.close()


def of_log_dir(found: Iterable[Asked], log_dir: str) -> Asked | None:
    """The queue that uses the log directory."""
    path = os.path.realpath(log_dir)
    return next((each for each in found if each.queue is not None and each.queue.log_dir == path), None)


def lines_meant(environ: Mapping[str, str], word: str) -> list[QueuedLine]:
    """The lines and jobs of running queues that a name, a label (jobs.txt#7) or a job's id means.

    Raises StateError.
    """
    with queues(environ) as found:
        answers = _answers([each for each in found if each.queue is not None], "lines", _ANSWER_S, word=word)
        return [line for answer in answers for line in _read_lines(answer)]


def stop_line(directory: Directory, word: str) -> list[str]:
    """Cancel the line that the word means. Returns what it could mean: of several none is touched."""
    found = _connected(directory)
    try:
        answers = _answers(found, "stop", _ANSWER_S, word=word, does=False)
        named = [_labels(answer) for answer in answers]
        lines = [line for each in named for line in each]
        if len(lines) != 1:
            return lines
        (meant,) = (each for each, labels in zip(found, named, strict=True) if labels)
        return _labels(_answers([meant], "stop", _ANSWER_S, word=word, does=True)[0])
    finally:
        for each in found:
            each.close()


def _connected(directory: Directory) -> list[Asked]:
    """Connections to the queues whose sockets are in it. Those of dead queues are left out."""
    found = []
    for name in sorted(name for name in directory.names() if name.startswith(PREFIX)):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect(f"{directory.handle}/{name}")
            asked = Asked(connection)
        except OSError:  # nobody listens any more, or nobody takes new callers
            connection.close()
            continue
        if asked.uid == os.geteuid():
            found.append(asked)
        else:
            asked.close()
    return found


def _introduce(found: list[Asked]) -> None:
    """Have all say what they are."""
    for each, answer in zip(found, _answers(found, "standing", _LOOK_S), strict=True):
        try:
            each.queue = read_queue(answer)
        except (TypeError, ValueError, KeyError):
            each.queue = None


def _answers(found: list[Asked], ask: str, limit_s: float, **more: object) -> list[dict[str, Any] | None]:
    """The answer of each; None from those who give none in time."""
    are_asked = [each.send(ask, **more) for each in found]
    deadline = time.monotonic() + limit_s
    return [
        each.answer(deadline) if is_asked else None for each, is_asked in zip(found, are_asked, strict=True)
    ]


def _labels(answer: dict[str, Any] | None) -> list[str]:
    return [label for label in (answer or {}).get("labels") or () if isinstance(label, str)]


def _read_lines(answer: dict[str, Any] | None) -> list[QueuedLine]:
    try:
        return [read_line(each) for each in (answer or {}).get("lines") or ()]
    except (TypeError, ValueError, KeyError):
        return []
