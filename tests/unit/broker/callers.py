"""A broker's sockets in a thread, and callers of all kinds."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slicer.broker.protocol import messages
from slicer.broker.server.connection import BOUNDS, CallerConnection, CallerLimits, ReceivedCall
from slicer.broker.server.connections import Connections
from tests.patience import until


class Due:
    def __init__(self, at_s: float, act: Callable[[], None]) -> None:
        self.at_s = at_s
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class MiniLoop:
    """What Connections asks of a loop, and no more."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.acts: dict[int, Callable[[int], None]] = {}
        self.due: list[Due] = []
        self.is_over = False

    def watch(self, fd: int, act: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        (self.epoll.modify if fd in self.acts else self.epoll.register)(fd, events)
        self.acts[fd] = act

    def forget(self, fd: int) -> None:
        if self.acts.pop(fd, None):
            self.epoll.unregister(fd)

    def after(self, seconds: float, act: Callable[[], None]) -> Due:
        self.due.append(Due(time.monotonic() + seconds, act))
        return self.due[-1]

    def run(self) -> None:
        while not self.is_over:
            for fd, events in self.epoll.poll(0.01):
                if act := self.acts.get(fd):
                    act(events)
            for due in [each for each in self.due if each.at_s <= time.monotonic()]:
                self.due.remove(due)
                if due.act:
                    due.act()


class Server:
    """Answers Release with Done, and Acquire with whatever ``acquire`` does. Others wait."""

    def __init__(self, path: Path, bounds: CallerLimits = BOUNDS) -> None:
        self.path = str(path)
        self.calls: list[ReceivedCall] = []
        self.gone: list[CallerConnection] = []
        self.answer: Callable[[ReceivedCall], None] = lambda call: None
        self.loop = MiniLoop()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(128)
        self.connections = Connections(
            self.listener.fileno(), self.loop, self._on_call, self.gone.append, bounds
        )
        self.thread = threading.Thread(target=self.loop.run)

    def _on_call(self, call: ReceivedCall) -> None:
        self.calls.append(call)
        if isinstance(call.message, (messages.Release, messages.Start)):
            call.connection.send(messages.Done())
        else:
            self.answer(call)

    def caller(self, data: bytes = b"") -> socket.socket:
        """Somebody who has connected and said this."""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(60)
        found.connect(self.path)
        if data:  # else the broker may have hung up already
            found.sendall(data)
        return found

    def call(self, number: int = 0) -> ReceivedCall:
        """The call of that number, once it has come."""
        until(lambda: len(self.calls) > number, "the call has come")
        return self.calls[number]

    def end(self) -> None:
        self.loop.is_over = True
        self.thread.join()
        self.connections.close()
        self.listener.close()
        self.loop.epoll.close()


@contextmanager
def server(path: Path, **bounds: Any) -> Iterator[Server]:
    """A server, until the end of the ``with``."""
    found = Server(path, CallerLimits(**bounds))
    found.thread.start()
    try:
        yield found
    finally:
        found.end()


def heard(caller: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    found = b""
    try:
        while data := caller.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    caller.close()
    return found
