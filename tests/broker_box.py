"""A broker without systemd: its socket is the test's, so that it can be killed and started again at will."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.patience import until

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

    @property
    def faults(self) -> str:
        return str(self.path / "sim")

    def start(self, *points: str) -> None:
        """Start it; it is killed at the first of these points that it comes to (see :meth:`await_stop`)."""
        places = {"RUNTIME_DIRECTORY": self.run, "STATE_DIRECTORY": self.var, "CONFIGURATION_DIRECTORY": self.etc}
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
