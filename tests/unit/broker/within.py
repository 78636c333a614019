"""A whole broker within the test's own process, by clocks that the test sets."""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.protocol import messages, wire
from slicer.broker.server import broker as module
from slicer.broker.server import looking, loop
from slicer.broker.server.broker import Broker, Places
from slicer.kernel import proc
from tests.broker_client import DEFAULTS
from tests.patience import LONGEST_S, Deadline


class Clocks:
    """How far each clock is ahead of the real one, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.awake_s = self.boot_s = self.wall_s = 0.0
        monkeypatch.setattr(loop, "_AWAY_S", math.inf)  # time that a test lets pass is no standstill
        awake, boot, wall = time.monotonic, proc.now_s, time.time
        for place in (loop, module, looking):
            monkeypatch.setattr(place, "now_s", lambda: awake() + self.awake_s)
        monkeypatch.setattr(proc, "now_s", lambda: boot() + self.boot_s)
        monkeypatch.setattr(time, "time", lambda: wall() + self.wall_s)

    def pass_(self, seconds: float) -> None:
        """As time goes by."""
        self.awake_s += seconds
        self.boot_s += seconds
        self.wall_s += seconds


class Caller:
    """One connection of this process."""

    def __init__(self, within: Within) -> None:
        self._within = within
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(within.path)

    def ask(self, message: Any, *, more: bool = False) -> Any:
        self.sock.sendall(wire.encode_call(message, more))
        self._kind = type(message)
        return self.hear()

    def hear(self) -> Any:
        """The next reply, or the name of an error."""
        self._within.run(lambda: self.has_heard)
        frame = b""
        while not frame.endswith(b"\0"):
            frame += self.sock.recv(1)
        try:
            return wire.decode_reply(self._kind, frame).message
        except wire.ErrorReply as error:
            return error.name

    @property
    def has_heard(self) -> bool:
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return bool(poller.poll(0))


def acquire(**wish: Any) -> messages.Acquire:
    return messages.Acquire(**{**DEFAULTS, "job": os.urandom(6).hex(), **wish})


class Within:
    """The broker, its socket and its callers."""

    def __init__(self, path: Path, clocks: Clocks) -> None:
        self.clocks = clocks
        self.places = Places(*(str(path / name) for name in ("run", "var", "etc")))
        for folder in (self.places.state, self.places.accounts, self.places.configuration):
            os.mkdir(folder)
        self.path = f"{self.places.state}/socket"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.log: list[str] = []
        self.callers: list[Caller] = []
        self.broker: Broker | None = None
        self._bell = os.eventfd(1)  # it rings for ever, so that no turn waits

    def start(self) -> None:
        self.broker = Broker(self.listener.fileno(), self.places, self.log.append)
        self.broker._loop.watch(self._bell, lambda _: None)

    def run(self, is_enough: Callable[[], object]) -> None:
        """Have it serve until then."""
        assert self.broker is not None
        deadline = Deadline(LONGEST_S)
        self.broker.run(lambda: bool(is_enough()) or deadline.has_passed())
        assert is_enough(), "it has left for want of anything to do, or does not come to that"

    def run_to_its_end(self) -> None:
        """Have it serve until nobody needs it."""
        assert self.broker is not None
        deadline = Deadline(10.0)
        self.broker.run(deadline.has_passed)
        assert not deadline.has_passed(), "it stays"
        self.stop()

    def turn(self) -> None:
        """Have it do what there is to do now."""
        assert self.broker is not None
        for _ in range(3):
            done: list[bool] = []
            self.broker._loop.after(0.0, lambda done=done: done.append(True))  # type: ignore[misc]
            self.run(lambda done=done: bool(done))  # type: ignore[misc]

    def dial(self) -> Caller:
        self.callers.append(Caller(self))
        return self.callers[-1]

    def files(self, folder: str) -> list[str]:
        return sorted(os.listdir(f"{self.places.state}/{folder}"))

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.close()
            self.broker = None

    def close(self) -> None:
        for caller in self.callers:
            caller.sock.close()
        self.stop()
        self.listener.close()
        os.close(self._bell)


@contextmanager
def within(path: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> Iterator[Within]:
    """One that runs by the administrator's ``files``, by their names without ".toml"."""
    monkeypatch.setenv("SLICER_SIM", "2x24G")
    monkeypatch.setenv("SLICER_STATE_DIR", str(path / "sim"))
    made = Within(path, Clocks(monkeypatch))
    for name, text in files.items():
        Path(made.places.configuration, f"{name}.toml").write_text(text)
    try:
        made.start()
        yield made
    finally:
        made.close()
