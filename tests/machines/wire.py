"""The host's end of the QEMU machine's agent.

The protocol is described at the other end: rootfs/usr/local/lib/slicer-machine/agent.py.
"""

from __future__ import annotations

import base64
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from tests.machines.host import MachineError
from tests.machines.machine import PATH

Message = dict[str, Any]

CONNECT_DEADLINE_S = 10.0
_GONE: Message = {"gone": True}


class Call:
    """One command that the agent runs."""

    def __init__(self, messages: SimpleQueue[Message]) -> None:
        self._messages = messages

    def wait(self, timeout_s: float, sinks: Mapping[str, Callable[[bytes], object]]) -> int | None:
        """Pass on the command's output until it ends; its exit status, or None after `timeout_s`.

        Raises MachineError when the machine is gone.
        """
        deadline = monotonic() + timeout_s
        while True:
            try:
                left_s = min(deadline - monotonic(), threading.TIMEOUT_MAX)
                message = self._messages.get(timeout=max(0.0, left_s))
            except Empty:
                return None
            if message is _GONE:
                raise MachineError("the QEMU machine died")
            if "exit" in message:
                return int(message["exit"])
            sinks[message["stream"]](base64.b64decode(message["data"]))


class Wire:
    """The connection to the agent; calls may overlap and come from any thread."""

    def __init__(self, path: Path, alive: Callable[[], bool]) -> None:
        """Connect to QEMU's socket as soon as it is there; raises MachineError if QEMU dies first."""
        self._socket = connect(path, alive)
        self._numbers = itertools.count(1)
        self._calls: dict[int, SimpleQueue[Message]] = {}
        self._lock = threading.Lock()
        self._gone = False
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the agent's first line; False when it did not come in time or the machine died."""
        return self._ready.wait(timeout_s) and not self._gone

    def call(self, argv: Sequence[str], data: bytes) -> Call:
        """Have the agent start a command."""
        number = next(self._numbers)
        messages: SimpleQueue[Message] = SimpleQueue()
        stdin = base64.b64encode(data).decode()
        request = {"id": number, "argv": list(argv), "env": {"PATH": PATH}, "input": stdin}
        with self._lock:
            self._calls[number] = messages
            if self._gone:
                messages.put(_GONE)
            else:
                self._socket.sendall(json.dumps(request).encode() + b"\n")
        return Call(messages)

    def _read(self) -> None:
        rest = b""
        while chunk := self._receive():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._dispatch(json.loads(line))
        with self._lock:
            self._gone = True
            for messages in self._calls.values():
                messages.put(_GONE)
        self._ready.set()
        self._socket.close()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except OSError:
            return b""

    def _dispatch(self, message: Message) -> None:
        if "ready" in message:
            self._ready.set()
            return
        messages = self._calls.get(message["id"])
        if messages is not None:
            messages.put(message)


def connect(path: Path, alive: Callable[[], bool]) -> socket.socket:
    """A connection to a socket of QEMU's as soon as it is there; raises MachineError if QEMU dies first."""
    deadline = monotonic() + CONNECT_DEADLINE_S
    while alive() and monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.02)
        else:
            return connection
    raise MachineError("QEMU did not start")
