"""Questions to the user's running queues.

Their sockets lie beside the ledger, and beside that of each set of simulated GPUs. All are asked at once. A
queue that is stopped (Ctrl-Z) is not waited for, and one that does not answer costs its own answer alone.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from slicer.errors import StateError, UsageError
from slicer.kernel import proc
from slicer.kernel.peer import credentials
from slicer.kernel.sleep import until_readable
from slicer.queue.control.messages import (
    LONGEST,
    PREFIX,
    WHICH,
    QueuedLine,
    RunningQueue,
    decode,
    encode,
    read,
)
from slicer.state.directory import Directory, open_trusted
from slicer.state.statedir import where

_ANSWER_S = 5.0
_LOOK_S = 1.0  # for callers that only list queues
_SIMULATED = "sim-"
_WRONG = (TypeError, ValueError, KeyError)


class Asked:
    """A connection to a queue. ``queue`` describes it; None: not known yet, or it does not answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.queue: RunningQueue | None = None
        self.pid, self.uid, _ = credentials(connection)

    def ask(self, ask: str, **more: object) -> dict[str, Any]:
        """The answer. Raises StateError if there is none in time, or not of this version."""
        (found,) = _answers([self], ask, _ANSWER_S, **more)
        if not found or "error" in found:
            raise StateError("does not answer", where=f"the queue of pid {self.pid}", hint="is it stopped?")
        return found

    def send(self, ask: str, **more: object) -> bool:
        try:
            self.connection.send(encode({"ask": ask, **more}))
        except OSError:  # it has just ended, or does not read
            return False
        return True

    def receive(self) -> bytes | None:
        """A packet; None: none has arrived; b"": the queue has ended."""
        try:
            return self.connection.recv(2 * LONGEST)
        except BlockingIOError:
            return None
        except OSError:
            return b""


@contextmanager
def queues(environ: Mapping[str, str]) -> Iterator[list[Asked]]:
    """This user's running queues, including those on simulated GPUs. Raises StateError."""
    with _everywhere(environ) as found:
        _introduce(found)
        yield found


@contextmanager
def _everywhere(environ: Mapping[str, str]) -> Iterator[list[Asked]]:
    base = where({**environ, "SLICER_SIM": ""}, os.geteuid())
    with ExitStack() as opened:
        directories = []
        if os.path.lexists(base):
            directories.append(opened.enter_context(closing(open_trusted(base))))
            simulated = sorted(name for name in directories[0].names() if name.startswith(_SIMULATED))
            opening = (opened.enter_context(closing(directories[0].open_folder(name))) for name in simulated)
            directories += opening
        yield opened.enter_context(_connected(*directories))


def standings(path: str) -> tuple[RunningQueue, ...]:
    """The queues whose sockets lie in this directory. Raises StateError."""
    with closing(open_trusted(path)) as directory, _connected(directory) as found:
        _introduce(found)
        return tuple(each.queue for each in found if each.queue is not None)


def of_file(found: list[Asked], file: str, log_dir: str | None = None) -> Asked | None:
    """The queue that runs this file (with this log directory). Raises UsageError if there are several."""
    path = os.path.abspath(file)
    ours = [each for each in found if each.queue is not None and each.queue.file == path]
    if log_dir is not None:
        ours = [each for each in ours if each.queue and each.queue.log_dir == os.path.realpath(log_dir)]
    if len(ours) > 1:
        dirs = ", ".join(each.queue.log_dir for each in ours if each.queue)
        raise UsageError(f"several queues run {file}: {dirs}", hint="name one with slicer queue … --log-dir")
    return ours[0] if ours else None


def lines_meant(environ: Mapping[str, str], word: str) -> list[QueuedLine]:
    """The lines and jobs of running queues with a name, a label (jobs.txt#7) or a job's id.

    Raises StateError.
    """
    with _everywhere(environ) as found:
        return [line for answer in _answers(found, "lines", _LOOK_S, word=word) for line in lines_of(answer)]


def lines_of(answer: dict[str, Any]) -> list[QueuedLine]:
    try:
        return [read(QueuedLine, each) for each in answer.get("lines", ())]
    except _WRONG:  # another version's
        return []


def stop_line(environ: Mapping[str, str], line: QueuedLine) -> bool:
    """Cancel the line, unless it has begun; whether it was cancelled. Raises StateError."""
    with _everywhere(environ) as found:
        asked = [each for each in found if each.pid == line.pid]
        return any(answer.get("stopped") for answer in _answers(asked, "stop", _ANSWER_S, key=line.key))


@contextmanager
def _connected(*directories: Directory) -> Iterator[list[Asked]]:
    """Connections to the queues whose sockets are in these directories. Dead queues are left out."""
    found: list[Asked] = []
    paths = [
        f"{directory.handle}/{name}"
        for directory in directories
        for name in sorted(directory.names())
        if name.startswith(PREFIX)
    ]
    with ExitStack() as opened:
        for path in paths:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            opened.enter_context(connection)
            try:
                connection.connect(path)
                found.append(Asked(connection))
            except OSError:  # the queue is dead, or accepts no connections
                continue
        yield [each for each in found if each.uid == os.geteuid()]


def _introduce(found: list[Asked]) -> None:
    """Ask each queue for its description."""
    for each, answer in zip(found, _answers(found, WHICH, _LOOK_S), strict=True):
        with suppress(*_WRONG):  # it does not answer, or it is of another version
            each.queue = read(RunningQueue, answer)


def _answers(found: list[Asked], ask: str, limit_s: float, **more: object) -> list[dict[str, Any]]:
    """The answer of each queue; {} for a queue that does not answer in time."""
    are_asked = [not proc.is_stopped(each.pid) and each.send(ask, **more) for each in found]
    deadline = time.monotonic() + limit_s
    answers = []
    for each, is_asked in zip(found, are_asked, strict=True):
        left_s = max(0.0, deadline - time.monotonic())
        is_there = is_asked and until_readable([each.connection.fileno()], left_s, None)
        answers.append(decode((is_there and each.receive()) or b"") or {})
    return answers

