"""Programs that hold leases of a broker within the test's own process, and ignore SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import socket

from slicer.broker.protocol import messages, wire
from slicer.model import Lease
from tests.unit.broker.within import Within, acquire


class Programs:
    """Those of a user's, under one broker. ``pids``: theirs, the first one first."""

    look_s = 1.0  # how often the broker looks at what is tested

    def __init__(self, inside: Within) -> None:
        self.inside = inside
        self.pids: list[int] = []
        self._pipes: list[tuple[int, int]] = []

    def hold(self, **wish: object) -> str:
        """Start one; the id of its lease."""
        asked = acquire(**wish)
        self._pipes.append(os.pipe())
        pid = os.fork()
        if not pid:
            _hold(self.inside.path, asked, self._pipes[-1][1])
        self.pids.append(pid)
        self.inside.run(lambda: asked.job in self.inside.files("leases"))
        return asked.job

    def pass_(self, seconds: float) -> None:
        """As time goes by, with each look."""
        for _ in range(round(seconds / self.look_s)):
            self.inside.clocks.pass_(self.look_s)
            self.inside.turn()

    def lease(self) -> Lease:
        """The only one."""
        standing: messages.Standing = self.inside.dial().ask(messages.Status())
        (found,) = standing.leases
        return found

    @property
    def is_told(self) -> bool:
        """Whether the last program got a SIGTERM."""
        return bool(select.select([self._pipes[-1][0]], [], [], 0)[0])

    def close(self) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        for pipe in self._pipes:
            os.close(pipe[0])
            os.close(pipe[1])


def _hold(path: str, asked: messages.Acquire, told: int) -> None:
    """The program; it never returns."""
    try:
        signal.signal(signal.SIGTERM, lambda *_: os.write(told, b"T") and None)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.sendall(wire.encode_call(asked, more=True))
        sock.recv(65536)
        sock.close()
        while True:
            signal.pause()
    finally:
        os._exit(1)
