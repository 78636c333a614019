"""A broker without systemd: its socket is the test's, so that it can be killed and started again at will."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slicer.broker.client.connection import Connection
from slicer.broker.protocol import messages, wire
from tests.broker_client import DEFAULTS
from tests.patience import Deadline, until

CLIENT = str(Path(__file__).with_name("broker_client.py"))
_SERVE = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" -m slicer.broker.server'


class Caller:
    """One process that asks (:mod:`tests.broker_client`), and what it told."""

    def __init__(self, argv: list[str], environ: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )
        self.told: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def look(self) -> list[dict[str, Any]]:
        while not self._lines.empty():
            self.told.append(json.loads(self._lines.get()))
        return self.told

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.look() if each["event"] == name]

    def has(self, name: str) -> bool:
        return bool(self.events(name))

    def await_(self, name: str, times: int = 1) -> dict[str, Any]:
        """The event, once it has come so many times."""
        found = until(lambda: self.events(name)[times - 1 : times], f"{name}; told {self.told}")
        return found[0]

    @property
    def job(self) -> str:
        return str(self.await_("asks")["job"])

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def do(self, word: str) -> None:
        """Say a word, and wait until it is done."""
        times = len(self.events("done")) + 1
        self.say(word)
        self.await_("done", times)

    def quit(self) -> None:
        self.say("quit")
        self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._reader.join(5.0)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # what was said and not read


class Crowd:
    """Many requests of this one process for one CPU slot, which come back to a broker that broke."""

    def __init__(self, box: BrokerBox, count: int) -> None:
        self._box = box
        self._asked = [
            messages.Acquire(**{**DEFAULTS, "job": os.urandom(6).hex(), "slots": {"cpu": 1}})
            for _ in range(count)
        ]
        self.jobs = [each.job for each in self._asked]
        self._open: dict[str, socket.socket] = {}
        self._heard: dict[str, bytes] = {}
        self._granted: list[str] = []
        for each in self._asked:
            self._call(each)
            self._listen(lambda job=each.job: job in self._told)  # type: ignore[misc]  # one after the other

    @property
    def _told(self) -> set[str]:
        return {job for job, heard in self._heard.items() if heard} | set(self._granted)

    def _call(self, asked: messages.Acquire) -> None:
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(self._box.socket)
        caller.sendall(wire.encode_call(asked, more=True))
        self._open[asked.job], self._heard[asked.job] = caller, b""

    def _listen(self, is_enough: Callable[[], bool]) -> None:
        deadline = Deadline(30.0)
        while not is_enough():
            assert not deadline.has_passed(), "nobody is served"
            sockets = {each.fileno(): job for job, each in self._open.items()}
            poller = select.poll()
            for fd in sockets:
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll(100):
                self._read(sockets[fd])

    def _read(self, job: str) -> None:
        try:
            data = self._open[job].recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:  # the broker broke
            self._open.pop(job).close()
            self._call(next(each for each in self._asked if each.job == job))
            return
        self._heard[job] += data
        for frame in self._heard[job].split(b"\0")[:-1]:
            if isinstance(wire.decode_reply(messages.Acquire, frame).message, messages.Granted):
                self._granted.append(job)
                self._open.pop(job).close()
                self._asked = [each for each in self._asked if each.job != job]
                return

    def release_one(self) -> None:
        """Give the oldest lease back."""
        if not self._granted:
            self._listen(lambda: bool(self._granted))
        connection = Connection(self._box.socket)
        connection.ask(messages.Release(self._granted.pop(0)), timeout_s=60.0)
        connection.close()

    def next_granted(self) -> str:
        """The job that has the slot now."""
        self._listen(lambda: bool(self._granted))
        assert len(self._granted) == 1
        return self._granted[0]

    def close(self) -> None:
        for each in self._open.values():
            each.close()


class BrokerBox:
    """The broker in a directory of the test's, with simulated GPUs."""

    def __init__(self, path: Path, sim: str = "2x24G") -> None:
        self.path = path
        self.run, self.etc, self.var = path / "run", path / "etc", path / "var"
        for folder in (self.run, self.etc, self.var):
            folder.mkdir()
        self.socket = str(self.run / "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen(1024)
        self.sim = sim
        self.server: subprocess.Popen[bytes] | None = None
        self.callers: list[Caller] = []

    @classmethod
    def running(cls, path: Path, name: str, text: str) -> Iterator[BrokerBox]:
        """One that runs by a file of the administrator's, to its end; for a fixture."""
        made = cls(path)
        (made.etc / name).write_text(text)
        made.start()
        yield made
        made.close()

    @property
    def faults(self) -> str:
        return str(self.path / "sim")

    def start(self, *points: str) -> None:
        """Start it; it is killed at the first of these points that it comes to (see :meth:`await_stop`)."""
        places = {
            "RUNTIME_DIRECTORY": self.run, "STATE_DIRECTORY": self.var, "CONFIGURATION_DIRECTORY": self.etc,
        }  # fmt: skip
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLICER_")},
            **{name: str(value) for name, value in places.items()},
            "SLICER_SIM": self.sim, "SLICER_STATE_DIR": self.faults,
        }  # fmt: skip
        if points:
            environ["SLICER_FAULTS"] = f"{self.faults}:{','.join(points)}"
        with open(self.path / "log", "ab") as log:
            self.server = subprocess.Popen(
                ["sh", "-c", _SERVE, sys.executable], env=environ, stderr=log, pass_fds=(3,),
                preexec_fn=lambda: os.dup2(self.listener.fileno(), 3), stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def stopped(self) -> bool:
        """Whether it has come to a fault's point."""
        assert self.server is not None
        with open(f"/proc/{self.server.pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(") ")[2].startswith("T")

    def crash(self) -> None:
        """End it as the kernel does when memory is short."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def call(self, **wish: Any) -> Caller:
        """A process that asks for this."""
        argv = [sys.executable, CLIENT, self.socket, json.dumps(wish)]
        root = str(Path(__file__).parent.parent)
        self.callers.append(Caller(argv, {**os.environ, "PYTHONPATH": f"{root}/src"}))
        return self.callers[-1]

    def files(self, folder: str) -> list[str]:
        """The names in a folder of the broker's."""
        try:
            return sorted(os.listdir(self.run / folder))
        except FileNotFoundError:
            return []

    def log(self) -> str:
        return (self.path / "log").read_text(encoding="utf-8")

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        if self.server is not None:
            self.crash()
        self.listener.close()
