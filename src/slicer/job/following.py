"""A job that is followed by the process that started it: one protocol, in lines of JSON on a pair of sockets.

Its supervisor says what becomes of it. Every line has an "event":

    waiting    it has to wait for its lease: why
    acquired   it has its lease: gpus, gpu_indices, vram_mib
    ready      it waits for "go"
    runs       its command has its order
    used       its GPUs were looked at: now_mib, peak_mib, utilisation, looks
    exceeds, escaped, idle   as in :mod:`slicer.job.gpu_watch`
    notice, warning   for people: text
    error      it did not begin: name (of the class), message, where, hint

The follower says "go" once. If it has not and is gone, the job is withdrawn. Afterwards the job needs no
follower: nothing that it says blocks it. How it ended is in its record and in the history.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from typing import TYPE_CHECKING, Any

from slicer import errors
from slicer.errors import KeeperEnded, RequestCancelled, SlicerError, UsageError
from slicer.job.job import Follower
from slicer.kernel.signals import signal
from slicer.kernel.sleep import until_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slicer.job.job import Job
    from slicer.model import Lease

GO = b"g"
_F_SETSIG = 10
_LONGEST = 1 << 20  # bytes of a line


class Teller:
    """The job's end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        os.register_at_fork(after_in_child=connection.close)  # a keeper's copy would hide our end

    def signals(self, signo: int) -> None:
        """Have the kernel send ``signo`` to this process once the follower speaks, or is gone; 0: no more."""
        fd = self._socket.fileno()
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_ASYNC
        if signo:
            fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(fd, _F_SETSIG, signo)
            flags |= os.O_ASYNC
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)

    def is_alone(self) -> bool:
        """Whether the follower is gone already."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def tell(self, event: str, **fields: Any) -> None:
        """Say it, if the follower has room for it. A line is never cut."""
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        try:
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest, socket.MSG_DONTWAIT) :]
            self._rest = line[self._socket.send(line, socket.MSG_DONTWAIT) :]
        except OSError:
            return  # full, or gone

    def may_go(self, guard: int) -> bool:
        """Wait for the word; False: the follower is gone. Raises KeeperEnded once ``guard`` is readable."""
        ready = until_readable([self._socket.fileno(), *([guard] if guard >= 0 else [])], None, None)
        if guard in ready:
            raise KeeperEnded("its keeper was ended before its turn")
        try:
            return self._socket.recv(1) == GO
        except OSError:
            return False

    def fail(self, error: SlicerError) -> None:
        kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
        self.tell("error", name=kind.__name__, message=error.message, where=error.where, hint=error.hint)


class RemoteFollower(Follower):
    """The follower at the other end of the connection. If that is gone, the request is cancelled."""

    def __init__(self, teller: Teller, *, starts_late: bool = False) -> None:
        """``starts_late``: the job's scope starts with its command."""
        self._teller = teller
        self._starts_late = starts_late

    def granted(self, job: Job, lease: Lease, waited_s: float, stand_by: Callable[[], int]) -> None:
        self._teller.signals(0)
        self._teller.tell(
            "acquired", gpus=lease.gpus, gpu_indices=lease.gpu_indices, vram_mib=lease.vram_mib
        )
        guard = -1 if self._starts_late else stand_by()
        try:
            self._teller.tell("ready")
            if not self._teller.may_go(guard):
                raise RequestCancelled
        finally:
            if guard >= 0:
                os.close(guard)

    def begun(self) -> None:
        self._teller.tell("runs")


def by_descriptor(text: str) -> RemoteFollower:
    """The follower that is connected by the inherited descriptor of that number. Raises UsageError.

    If it goes before the job has its lease, we get a SIGTERM.
    """
    try:
        connection = socket.socket(fileno=int(text))
    except (ValueError, OSError) as error:
        raise UsageError("is for slicer's own use", where="--follower") from error
    connection.set_inheritable(False)
    teller = Teller(connection)
    teller.signals(signal.SIGTERM)
    return RemoteFollower(teller)


class Followed:
    """The follower's end. ``has_ended``: the job's supervisor says no more."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._data = b""
        self.has_ended = False

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def heard(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last call. Does not block."""
        while not self.has_ended:
            try:
                more = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                more = b""
            self.has_ended = not more or len(self._data) > _LONGEST
            *lines, self._data = (self._data + more).split(b"\n")
            yield from map(json.loads, lines)

    def go(self) -> None:
        """Let the command begin."""
        try:
            self._socket.send(GO)
        except OSError:
            return  # its end tells more

    def close(self) -> None:
        """Close the connection. A job that has not had its word is withdrawn. Safe to repeat."""
        self._socket.close()


def error_of(said: dict[str, Any]) -> SlicerError:
    """The error that a job has told."""
    kind = getattr(errors, said["name"], SlicerError)
    if kind is RequestCancelled:
        return RequestCancelled()
    made: SlicerError = SlicerError.__new__(kind)
    SlicerError.__init__(made, said["message"], where=said["where"], hint=said["hint"])
    return made


