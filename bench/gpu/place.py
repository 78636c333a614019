"""Where checks run: the GPU, the library, a state directory of their own, and jobs that are started in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.check import Failed

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
CLIENT = str(Path(__file__).with_name("client.py"))
PROGRAMS = Path(__file__).with_name("programs")
LIBRARY = SRC / "slicer" / "share" / "libslicer-share.so"
FAKE = "Fake GPU"
_END_S = 10.0


@dataclass
class Done:
    """A job that has ended. ``sharing`` is that of its outcome; {}: it had none."""

    code: int
    out: str
    err: str
    wall_s: float
    outcome: dict[str, Any] = field(default_factory=dict)

    @property
    def sharing(self) -> dict[str, Any]:
        found = self.outcome.get("sharing")
        return found if isinstance(found, dict) else {}

    def answers(self) -> list[dict[str, Any]]:
        """The lines of JSON on its stdout."""
        found = []
        for line in self.out.splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found

    def answer(self) -> dict[str, Any]:
        """The last of these lines, of a job that ended well. Raises Failed."""
        answers = self.answers()
        if self.code or not answers:
            raise Failed(f"exit {self.code}: {tail(self.err) or tail(self.out) or 'it said nothing'}")
        return answers[-1]


def tail(text: str, most: int = 300) -> str:
    """The last line that says something."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][-most:] if lines else ""


class Running:
    """A job that runs."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], outcome: Path | None) -> None:
        self._outcome = outcome
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace",
        )  # fmt: skip

    def line(self) -> dict[str, Any]:
        """Its next line of JSON. Raises Failed at its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        done = self.end(_END_S)
        raise Failed(f"exit {done.code}: {tail(done.err) or 'it said nothing'}")

    def end(self, timeout_s: float) -> Done:
        """Wait for its end. Raises Failed, and ends it, if it takes too long."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise Failed(f"it did not end in {timeout_s:.0f} s") from error
        wall_s = time.monotonic() - self._began
        outcome = {}
        if self._outcome is not None and self._outcome.exists():
            outcome = json.loads(self._outcome.read_text())
        return Done(self.process.returncode, out, err, wall_s, outcome)

    def kill(self) -> None:
        """End it: slicer ends what is in its job."""
        for signo, wait_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
            if self.process.poll() is None:
                self.process.send_signal(signo)
                try:
                    self.process.communicate(timeout=wait_s)
                except subprocess.TimeoutExpired:
                    continue


class Place:
    """What all checks of one call have in common."""

    def __init__(self, out: Path, python: str, backend: str, *, brief: bool) -> None:
        """``python``: the one that has the frameworks. ``brief``: shorter measurements, for a try."""
        self.out = out
        self.python = python
        self.backend = backend
        self.brief = brief
        self._jobs = 0
        path = [str(SRC), str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.environ = {
            **os.environ,
            "PYTHONPATH": ":".join(filter(None, path)),
            "SLICER_STATE_DIR": str(out / "state"),
            "XDG_STATE_HOME": str(out / "history"),
        }
        self.slicer = [sys.executable, "-P", "-m", "slicer"]

    def start(
        self, command: Sequence[str], *, share: str = "lock", mode: str = "", vram_mib: int = 2048,
        priority: int = 0, env: Mapping[str, str] | None = None, gpu: str = "",
    ) -> Running:  # fmt: skip
        """Start a program, unmodified, as a job that shares a GPU."""
        self._jobs += 1
        folder = self.out / "outcomes"
        folder.mkdir(exist_ok=True)
        outcome = folder / f"{os.getpid()}-{self._jobs}.json"
        environ = {**self.environ, **(env or {})}
        options = ["-q", "--vram", f"{vram_mib}M", "--share", share, "--outcome", str(outcome)]
        options += ["--gpu", gpu] if gpu else ["--gpus", "1"]
        options += ["--share-mode", mode] if mode else []
        options += ["--priority", str(priority)] if priority else []
        options += ["--backend", self.backend] if self.backend != "auto" else []
        return Running([*self.slicer, "run", *options, "--", *command], environ, outcome)

    def run(self, command: Sequence[str], *, timeout_s: float = 60, **options: Any) -> Done:
        """The same, to its end."""
        return self.start(command, **options).end(timeout_s)

    def client(self, *arguments: object) -> list[str]:
        """The command of a program over the driver's API (client.py)."""
        return [sys.executable, "-P", CLIENT, *map(str, arguments)]

    def program(self, name: str, *arguments: object) -> list[str]:
        """The command of a program over a framework (programs/)."""
        return [self.python, str(PROGRAMS / name), *map(str, arguments)]

    def facts(self) -> dict[str, Any]:
        """What the driver says of the GPU, as a program without slicer sees it. Raises Failed."""
        done = subprocess.run(
            self.client("facts"), env=self.environ, capture_output=True, text=True, timeout=60, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr, 0).answer()

    def why_not_slicer(self) -> str:
        """Why slicer run starts no job that shares a GPU here; "": it does."""
        try:
            done = self.run(["true"], share="both", vram_mib=500, timeout_s=30)
        except Failed as error:
            return str(error)
        return "" if done.code == 0 else tail(done.err) or f"exit {done.code}"
