"""The connection of ``slicer run`` to the broker, on the hot path.

There, interrupts are blocked and act only while this code sleeps: see :mod:`slicer.kernel.sleep`.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys
import time

from slicer.broker.protocol import wire
from slicer.broker.protocol.messages import ERRORS
from slicer.errors import BrokerError, BusyError, NoGpu, SlicerError
from slicer.kernel.signals import signal
from slicer.kernel.sleep import until_readable
from slicer.record import replace
from slicer.state import BROKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HINT = "see systemctl status slicer-broker.socket slicer-broker.service"
ANSWER_S = 5.0  # how long a working broker may take for its first answer
AWAY_S = 1.0  # a sleep that lasts this much too long: this process, and perhaps the machine, stood still
_FRESH_S = 5.0  # the broker disconnects a client that sends nothing for 10 s
_CHUNK = 65536
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


class BrokerFailed(BrokerError):
    """The broker exists but does not answer properly."""

    def __init__(self, message: str, path: str, hint: str = HINT) -> None:
        super().__init__(message, where=path, hint=hint)


class NoBroker(BrokerFailed):
    """The socket does not exist although a broker decides here, or it has just disappeared."""

    def __init__(self, path: str) -> None:
        message, hint = "the broker's socket is gone", HINT
        if path == BROKER:
            from slicer.backend.broker_left import why_absent

            message, hint = why_absent() or (message, hint)
        super().__init__(message, path, hint)


class Lost(BrokerFailed):
    """The connection broke before the answer. The request may or may not have been carried out."""


class Connection:
    """Makes one call at a time. Connects when necessary, and again if that does no harm."""

    def __init__(self, path: str = BROKER, mask: frozenset[int] | None = None) -> None:
        """``mask``: the signal mask while asleep (None: unchanged)."""
        self.path = path
        self._mask = mask
        self._sock: _socket.socket | None = None
        self._heard = b""
        self._asked: type = type(None)
        self._used_s = 0.0

    def ask(self, message: Any, timeout_s: float = ANSWER_S) -> Any:
        """Send a call, and return its single reply.

        Raises NoBroker, Lost, BrokerFailed, or the error that the broker answers with.
        """
        self.send(message)
        reply = self.receive(timeout_s)
        if reply is None:
            self.close()
            raise BrokerFailed(f"the broker has not answered for {timeout_s:g} s", self.path)
        return reply.message

    # -- one step at a time --------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable if :meth:`receive` would not sleep; -1 without a connection."""
        return -1 if self._sock is None else self._sock.fileno()

    def send(self, message: Any, *, more: bool = False) -> None:
        """Send a call. Raises NoBroker and BrokerFailed."""
        frame = wire.encode_call(message, more)
        self._asked = type(message)
        self._heard = b""
        if self._sock is not None and time.monotonic() - self._used_s > _FRESH_S:
            self.close()
        if self._sock is None or not self._sent(self._sock, frame):
            # A broker that has not read it has not acted on it.
            self.close()
            self._sock = self._connected()
            if not self._sent(self._sock, frame):
                self._why_refused()
        self._used_s = time.monotonic()

    def receive(self, timeout_s: float | None) -> wire.Reply | None:
        """The next reply; None at the end of the time. Time in which this process did not run is not counted.

        Raises the error that the broker answers with, and Lost if the connection has broken.
        """
        sock = self._sock
        if sock is None:
            raise Lost("the connection to the broker has broken", self.path)
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\0" not in self._heard:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not until_readable([sock.fileno()], left_s, self._mask):
                if left_s == 0.0:
                    return None
                if end_s is not None and time.monotonic() > end_s + AWAY_S:
                    end_s = time.monotonic() + ANSWER_S  # the broker may have stood still, too
                continue
            data = self._received(sock)
            if not data or len(self._heard) > wire.MOST_REPLY_BYTES:
                self.close()
                raise Lost("the connection to the broker has broken", self.path)
            self._heard += data
        frame, _, self._heard = self._heard.partition(b"\0")
        self._used_s = time.monotonic()
        try:
            return wire.decode_reply(self._asked, frame)
        except wire.ErrorReply as error:
            raise failure_of(error) from error
        except wire.BadReply as error:
            self.close()
            raise BrokerFailed(str(error), self.path) from error

    def close(self) -> None:
        """Disconnect. A waiting request loses its place after 30 s. Safe to repeat."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    # -- the socket ----------------------------------------------------------------------------------------

    def _connected(self) -> _socket.socket:
        """Raises NoBroker and BrokerFailed."""
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            self._connect(sock)
        except (FileNotFoundError, NotADirectoryError):
            sock.close()
            raise NoBroker(self.path) from None
        except OSError as error:
            sock.close()
            raise BrokerFailed(f"the broker cannot be reached: {error.strerror}", self.path) from error
        except BaseException:
            sock.close()
            raise
        if self.path != BROKER and (uid := _uid_of(sock)) not in (0, os.geteuid()):
            sock.close()
            raise BrokerFailed(f"this socket is uid {uid}'s, and only root's is believed", self.path)
        return sock

    def _connect(self, sock: _socket.socket) -> None:
        sock.setblocking(False)
        try:
            sock.connect(self.path)
            return
        except BlockingIOError:
            pass  # too many connect: only callers that sleep in the kernel get their turn
        limit = int(ANSWER_S).to_bytes(8, sys.byteorder) + bytes(8)  # a struct timeval
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, limit)
        sock.setblocking(True)
        before = None if self._mask is None else signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            sock.connect(self.path)
        except BlockingIOError:
            raise BrokerFailed(f"the broker has not answered for {ANSWER_S:g} s", self.path) from None
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sock.setblocking(False)

    def _sent(self, sock: _socket.socket, frame: bytes) -> bool:
        """Send the whole frame, however many others connect. Returns False if the other side has closed."""
        rest, end_s, pause_s = memoryview(frame), time.monotonic() + ANSWER_S, 0.001
        while rest:
            try:
                rest = rest[sock.send(rest, _socket.MSG_NOSIGNAL) :]
            except BlockingIOError:  # no event shows when there is room
                if time.monotonic() > end_s:
                    raise BrokerFailed(f"the broker has not answered for {ANSWER_S:g} s", self.path) from None
                until_readable([], pause_s, self._mask)
                pause_s = min(2 * pause_s, 0.1)
            except OSError as error:
                if error.errno in _GONE:
                    return False
                raise BrokerFailed(f"the broker cannot be reached: {error.strerror}", self.path) from error
        return True

    def _why_refused(self) -> None:
        """A new connection was closed. Raise the broker's error, if any; if none, it was killed: Lost."""
        try:
            is_answered = self._sock is not None and bool(self._sock.recv(1, _socket.MSG_PEEK))
        except OSError:
            is_answered = False
        if not is_answered:
            self.close()
            raise Lost("the broker closed the connection", self.path)

    def _received(self, sock: _socket.socket) -> bytes:
        try:
            return sock.recv(_CHUNK)
        except BlockingIOError:
            return self._received(sock) if until_readable([sock.fileno()], None, self._mask) else b""
        except ConnectionResetError:
            return b""


def _uid_of(sock: _socket.socket) -> int:
    from slicer.kernel.peer import credentials  # the machine's own broker is known by its place

    return credentials(sock)[1]


class TooOld(BrokerError):
    """An older broker, which does not know the call."""


_UNKNOWN_CALL = "org.varlink.service.MethodNotFound"
_NO_GPU_REASONS = (
    "no-pynvml", "no-library", "no-driver", "driver-mismatch", "no-devices", "permission", "fenced",
)  # fmt: skip


def failure_of(reply: wire.ErrorReply) -> SlicerError:
    """The exception for an error of the broker.

    An error that this slicer does not know means that the broker does not work with it.
    """
    if reply.name == "Busy" and reply.busy is not None:
        return BusyError(replace(reply.busy, why=reply.busy.why or reply.hint))  # the policy's part in it
    if reply.name == "NoGpu":
        reason = reply.reason if reply.reason in _NO_GPU_REASONS else "no-driver"
        return NoGpu(reason, reply.message, hint=reply.hint)  # type: ignore[arg-type]
    kind = ERRORS.get(reply.name, TooOld if reply.name == _UNKNOWN_CALL else BrokerError)
    if not issubclass(kind, BrokerError):
        return kind(reply.message, where=reply.where, hint=reply.hint)
    message = f"the broker says: {reply.message or reply.name}"
    return kind(message, where=reply.where, hint=reply.hint or HINT)
