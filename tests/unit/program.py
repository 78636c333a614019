"""The command line as a user has it, in a directory of its own: state, configuration, history, home.

As a pytest plugin (``pytest_plugins = ["tests.unit.program"]``) it offers the fixture ``cli``.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

import slicer
from slicer.kernel import proc
from slicer.model import Lease, Ticket
from slicer.state import statefile
from tests.patience import LONGEST_S, Deadline, until
from tests.shield import variables

SRC = str(Path(slicer.__file__).parents[1])

T = TypeVar("T")


class Cli:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.started: list[subprocess.Popen[str]] = []
        self._others = set(proc.pids())
        self.history = root / "host" / "var" / "lib" / "slicer" / "history.db"  # root's, and here a user's
        self.environ = {
            "PATH": os.environ["PATH"], "HOME": str(root), "LANG": "C.UTF-8", "TZ": "UTC",
            "SLICER_STATE_DIR": str(self.state), "XDG_STATE_HOME": str(self.history.parent.parent),
            "XDG_CONFIG_HOME": str(root / "config"), "XDG_CACHE_HOME": str(root / "cache"),
            "CPU_RUN_SLOTS": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables(root),
        }  # fmt: skip
        # Where slicer's libraries are not Python's own, PYTHONPATH has them: while a package is built.
        self.environ["PYTHONPATH"] = ":".join(filter(None, (SRC, os.getenv("PYTHONPATH"))))

    def popen(self, *arguments: str | bytes, env: Mapping[str, str] | None = None, **options: Any) -> Any:
        command = [sys.executable, "-m", "slicer", *arguments]
        return subprocess.Popen(command, env={**self.environ, **(env or {})}, cwd=self.root, **options)

    def run(
        self, *arguments: str | bytes, env: Mapping[str, str] | None = None, code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """One command from start to end; ``code`` is the exit code that it must have (None: any)."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(*arguments, env=env, **pipes, text=True, errors="surrogateescape") as process:
            out, err = process.communicate(timeout=LONGEST_S)
        done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
        assert code is None or done.returncode == code, done
        return done

    def json(self, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
        return json.loads(self.run(*arguments, "--json", env=env).stdout)

    def job(self, *options: str, command: tuple[str, ...] = ("sleep", "1000")) -> subprocess.Popen[str]:
        """A job under the plain backend, without waiting for anything; ended with the test."""
        quiet = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "text": True,
        }
        process: subprocess.Popen[str] = self.popen(
            "run", "--backend", "plain", *options, "--", *command, **quiet
        )
        self.started.append(process)
        return process

    def running(self, *options: str, command: tuple[str, ...] = ("sleep", "1000")) -> Lease:
        """The lease of a job whose keeper is at work."""
        process = self.job(*options, command=command)

        def find() -> Lease | None:
            leases = self.entries("leases", Lease)
            return next((lease for lease in leases if lease.pid == process.pid and lease.keeper), None)

        return until(find, f"a lease of pid {process.pid}")

    def waiting(self, *options: str) -> Ticket:
        """The ticket of a job that waits."""
        process = self.job(*options)

        def find() -> Ticket | None:
            return next((t for t in self.entries("tickets", Ticket) if t.pid == process.pid), None)

        return until(find, f"a ticket of pid {process.pid}")

    def entries(self, folder: str, kind: type[T]) -> list[T]:
        found = []
        for path in sorted((self.state / folder).glob("*")):
            try:
                found.append(statefile.decode(kind, path.read_bytes()))
            except (FileNotFoundError, statefile.TornFile):
                continue
        return found

    def processes(self) -> list[int]:
        """What lives of this test's jobs, however it was started: its environment tells."""
        mark = f"SLICER_STATE_DIR={self.state}".encode()
        pids = set(proc.pids())
        self._others &= pids  # the number of one that has ended may be given to one of ours
        return [pid for pid in pids - self._others if mark in proc.environment(pid).split(b"\0")]

    def left(self) -> list[int]:
        """What lives on of this test's jobs. Who was killed and left behind may take a moment to be gone."""
        deadline = Deadline(1.0)
        while (found := self.processes()) and not deadline.has_passed():
            time.sleep(0.01)
        return found

    def end(self) -> None:
        """End what still runs. Fails where something of a job is left that slicer should have ended."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            process.wait(timeout=LONGEST_S)
        left = self.left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left
        assert not self.entries("leases", Lease)
        assert not self.entries("tickets", Ticket)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.end()
