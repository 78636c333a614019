"""Processes that connect to a broker and pass the connection to the test, which speaks for them."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from slicer.broker.protocol import wire


class Host:
    """One such process. By the kernel's word it is at the other end of all its connections."""

    def __init__(self, path: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            _serve(path, ours, theirs)
        theirs.close()
        self._socket = ours
        self.sockets: list[socket.socket] = []
        self.is_alive = True

    def dial(self) -> socket.socket:
        """A new connection of the process."""
        self._socket.sendall(b"x")
        _, (fd,), _, _ = socket.recv_fds(self._socket, 1, 1)
        self._socket.recv(1)  # the process has closed its own copy: from now on we alone can hang up
        made = socket.socket(fileno=fd)
        made.setblocking(False)
        self.sockets.append(made)
        return made

    def hang_up(self, which: socket.socket) -> None:
        self.sockets.remove(which)
        which.close()

    def end(self) -> None:
        """Safe to repeat. Its connections stay open."""
        if self.is_alive:
            self.is_alive = False
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._socket.close()

    def close(self) -> None:
        self.end()
        for each in self.sockets:
            each.close()


def _serve(path: str, ours: socket.socket, theirs: socket.socket) -> None:
    """What the process does; it never returns."""
    try:
        ours.close()
        while theirs.recv(1):
            with socket.socket(socket.AF_UNIX) as made:
                made.connect(path)
                socket.send_fds(theirs, [b"x"], [made.fileno()])
            theirs.send(b"x")
    finally:
        os._exit(0)


def say(sock: socket.socket, message: Any, *, more: bool = False) -> None:
    """Send a call, and wait for nothing. A broker that has hung up hears nothing."""
    try:
        sock.send(wire.encode_call(message, more))
    except (BrokenPipeError, ConnectionResetError, BlockingIOError):
        pass
