"""One caller of the broker: its input, its unread replies, and the cost of each user's callers."""

from __future__ import annotations

import socket
import time
from typing import Any, Protocol

from slicer.broker.protocol import wire
from slicer.broker.server.loop import Due
from slicer.broker.server.peers import Peer
from slicer.broker.server.requests import error_frame
from slicer.errors import SlicerError
from slicer.record import record


class ConnectionOwner(Protocol):
    """Ends a connection, and writes to it."""

    def drop(self, connection: CallerConnection, *, is_told: bool = True) -> None: ...
    def queue(self, connection: CallerConnection, frame: bytes, continues: bool) -> None: ...


@record
class CallerLimits:
    """The most that a caller may cost."""

    connections: int = 4096  # of all users; root's are not counted
    connections_each: int = 1024  # of one user
    silence_s: float = 10.0
    output_each: int = 4 << 20  # bytes that a user has not read
    accepted_at_once: int = 32
    part_of_time: float = 0.5  # of one CPU, for one user's calls ...
    burst_s: float = 0.15  # ... beyond this much CPU time


BOUNDS = CallerLimits()


class Account:
    """The cost of all connections of one user."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.connections: set[CallerConnection] = set()
        self.output = 0
        self.debt_s = 0.0  # of CPU time
        self.paid_s = time.monotonic()
        self.held: list[CallerConnection | socket.socket] = []  # until their user may use CPU time again

    def pay(self, part: float) -> float:
        now_s = time.monotonic()
        self.debt_s = max(0.0, self.debt_s - (now_s - self.paid_s) * part)
        self.paid_s = now_s
        return self.debt_s


@record
class ReceivedCall:
    connection: CallerConnection
    message: Any


class CallerConnection:
    """One caller. At most one of its calls is being answered."""

    def __init__(self, owner: ConnectionOwner, sock: socket.socket, peer: Peer, account: Account) -> None:
        self.peer = peer
        self._owner = owner
        self.sock = sock
        self.account = account
        self.heard = b""  # the beginning of an incomplete message
        self.out: list[bytes] = []  # the first may be the rest of a frame; the others are not begun
        self.is_update = False  # the last frame is a reply that a newer one may replace
        self.more = False  # whether its call accepts several replies
        self.is_asking = False  # one of its calls has no final reply yet
        self.is_open = True
        self.waiter: Any = None  # the request that waits through it
        self.silence: Due | None = None

    def send(self, message: Any, continues: bool = False) -> None:
        """Answer its call.

        With ``continues`` more replies follow; a newer one may replace an unread one. Nothing is sent if the
        caller has disconnected, or if it asked for a single reply and this is not it.
        """
        if continues and not self.more:
            return
        self.answer(wire.encode_reply(message, continues), continues)

    def fail(self, error: SlicerError) -> None:
        self.answer(error_frame(error), False)

    def close(self) -> None:
        """End the connection. ``on_gone`` is not called. Safe to repeat."""
        self._owner.drop(self, is_told=False)

    # -- for Connections alone -----------------------------------------------------------------------------

    def answer(self, frame: bytes, continues: bool) -> None:
        """Answer with an encoded frame. After its last answer a call gets no other."""
        if self.is_open and self.is_asking:
            self._owner.queue(self, frame, continues)
