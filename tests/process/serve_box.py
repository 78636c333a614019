"""A box for ``slicer serve``: its configuration, servers that behave as the real ones, and clients."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, SRC, Box

ROOT = str(Path(__file__).resolve().parents[2])
BODY = {"model": "m", "prompt": "x"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def connects(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


class Client:
    """A curl that asks something."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

        self._first = b""

    def hears(self) -> None:
        """Wait for the first byte."""
        assert self.process.stdout is not None
        self._first = self.process.stdout.read(1)

    def end(self) -> tuple[int, str]:
        """curl's exit code and what came."""
        out, _ = self.process.communicate(timeout=LONGEST_S)
        return self.process.returncode, (self._first + out).decode()


class ServeBox:
    """``slicer serve`` before fake servers, on simulated GPUs."""

    def __init__(self, box: Box, sim: str = "1x24G") -> None:
        self.box = box
        self.port = free_port()
        box.env |= {"SLICER_SIM": sim, "PYTHONPATH": f"{SRC}:{ROOT}"}
        box.env["SLICER_CONFIG"] = str(box.root / "config.toml")
        self._tables: list[str] = []
        self.proxy: subprocess.Popen[bytes] | None = None

    # -- servers -----------------------------------------------------------------------------------------

    def fake(self, name: str, *options: str, kind: str = "ollama") -> list[str]:
        """The command line of a fake server, whose events :meth:`events` knows."""
        words = ("-m", "tests.fake_server", "--kind", kind, "--log", str(self.box.root / f"{name}.events"))
        return [sys.executable, *words, *options]

    def server(self, name: str, *options: str, kind: str = "ollama", **settings: object) -> None:
        """A server that slicer starts; ``settings`` are keys of ``[serve.NAME]``."""
        port = () if kind == "ollama" else ("--port", "${PORT}")
        command = self.fake(name, *port, *options, kind=kind)
        self.configure(name, kind=kind, command=command, **settings)

    def configure(self, name: str, **settings: object) -> None:
        said = {"listen": [f"127.0.0.1:{self.port}"], "vram": "8G", "release_timeout": "5s", **settings}
        lines = (f"{key} = {json.dumps(value)}" for key, value in said.items())
        self._tables.append("\n".join((f"[serve.{name}]", *lines, "")))
        Path(self.box.env["SLICER_CONFIG"]).write_text("\n".join(self._tables))

    def running(self, name: str, *options: str) -> tuple[subprocess.Popen[bytes], int]:
        """A fake server that slicer has not started, and its port."""
        port = free_port()
        words = self.fake(name, "--port", str(port), *options)
        process = subprocess.Popen(words, env=self.box.env, cwd=self.box.root)
        self.box.adopt(process)
        until(lambda: connects(port), f"{name} listens")
        return process, port

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What has happened to a server of that name."""
        path = self.box.root / f"{name}.events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def starts(self, name: str) -> int:
        """How often the server was started with a GPU."""
        return sum(bool(each["gpus"]) for each in self.events(name, "start"))

    # -- the proxy ---------------------------------------------------------------------------------------

    def start(self, *names: str) -> subprocess.Popen[bytes]:
        """Start ``slicer serve``, and return when it listens."""
        with (self.box.root / "serve.err").open("ab") as err:
            process = subprocess.Popen(
                [*SLICER, "serve", *names], env=self.box.env, cwd=self.box.root, stdin=subprocess.DEVNULL,
                stdout=err, stderr=err,
            )  # fmt: skip
        self.box.adopt(process)
        self.proxy = process
        until(lambda: connects(self.port) or process.poll() is not None, "the proxy listens")
        assert process.poll() is None, self.said
        return process

    def end(self) -> int:
        """End it as systemd does; its exit code."""
        assert self.proxy is not None
        self.proxy.send_signal(signal.SIGTERM)
        return self.proxy.wait(LONGEST_S)

    @property
    def said(self) -> str:
        return (self.box.root / "serve.err").read_text()

    def status(self) -> dict[str, Any]:
        command = [*SLICER, "status", "--json"]
        done = subprocess.run(command, env=self.box.env, capture_output=True, check=True, timeout=LONGEST_S)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def standing(self, name: str) -> dict[str, Any]:
        return next(each for each in self.status()["servers"] if each["server"] == name)

    def reaches(self, name: str, state: str) -> dict[str, Any]:
        """How the server stands, once it is in that state."""

        def look() -> dict[str, Any] | None:
            found = self.standing(name)
            return found if found["state"] == state else None

        return until(look, f"{name} is {state}")

    def jobs(self) -> list[str]:
        """The names of all that holds something."""
        return [each["name"] for each in self.status()["jobs"]]

    def waiting(self) -> list[str]:
        """The names of all that waits."""
        return [each["name"] for each in self.status()["waiting"]]

    def used_mib(self) -> int:
        """What is in use on the first GPU."""
        found: int = self.status()["gpus"]["all"][0]["used_mib"]
        return found

    # -- clients -----------------------------------------------------------------------------------------

    def ask(self, body: object = None, path: str = "/api/generate", options: tuple[str, ...] = ()) -> Client:
        """Send a request, and go on."""
        data = () if body is None else ("-d", json.dumps(body))
        url = f"http://127.0.0.1:{self.port}{path}"
        process = subprocess.Popen(
            ["curl", "-sSN", "--noproxy", "*", *options, *data, url], env={"PATH": self.box.env["PATH"]},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.box.adopt(process)
        return Client(process)

    def answer(self, body: object = None, path: str = "/api/generate") -> tuple[int, str]:
        """The status and the text that a request is answered with."""
        code, text = self.ask(body, path, ("-w", "\n%{http_code}")).end()
        assert code == 0, (code, text, self.said)
        text, _, status = text.rpartition("\n")
        return int(status), text

    def hold(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """A job on the GPU, returned once it runs; it ends with SIGTERM."""
        script = 'echo "start $0 $$" >>"$LOG"; exec sleep 1000'
        process = self.box.start(*options, "--name", name, "--", "sh", "-c", script, name)
        until(lambda: self.box.started(name) or process.poll() is not None, f"{name} runs")
        return process

