"""The ways to queue jobs for one slot that are measured side by side: slicer, and what people use instead.

Standard library and Debian's packages only; runs inside the machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SCOPE = ["systemd-run", "--scope", "-q", "-p", "CPUQuota=100%", "-p", "MemoryMax=1G"]


class ProcessEach:
    """A process per job, which waits and then runs it."""

    def __init__(self, name: str, words: Sequence[str], env: dict[str, str] | None = None) -> None:
        self.name = name
        self._words = list(words)
        self._env = env or {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._directory = Path()

    def begin(self, directory: Path) -> None:
        self._directory = directory
        self._processes = []

    def add(self, jobs: Sequence[list[str]]) -> None:
        here = str(self._directory)
        words = [word.replace("DIRECTORY", here) for word in self._words]
        env = {**os.environ, **{name: value.replace("DIRECTORY", here) for name, value in self._env.items()}}
        for job in jobs:
            self._processes.append(
                subprocess.Popen([*words, *job], env=env, start_new_session=True, **QUIET)  # type: ignore[call-overload]
            )

    def waiters(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def end(self) -> None:
        """Those that were not served are killed; a chain that was is long over."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()


class TaskSpooler:
    """tsp: a server of its own for each chain."""

    name = "task-spooler (no scope)"

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots

    def begin(self, directory: Path) -> None:
        self._env = {**os.environ, "TS_SOCKET": str(directory / "socket"), "TMPDIR": str(directory)}
        self._run("-S", str(self._slots))

    def add(self, jobs: Sequence[list[str]]) -> None:
        for job in jobs:
            self._run("-n", *job)

    def waiters(self) -> list[int]:
        return []

    def end(self) -> None:
        self._run("-K")

    def _run(self, *words: str) -> None:
        subprocess.run(["tsp", *words], env=self._env, check=True, timeout=60, **QUIET)  # type: ignore[call-overload]


# A ledger of its own for each chain, as each has its own lock file.
ONE_SLOT = {"CPU_RUN_SLOTS": "1", "SLICER_STATE_DIR": "DIRECTORY/state"}
FLOCK = ["flock", "DIRECTORY/lock", *SCOPE]
SLICER = ["slicer", "run", "-q", "--profile", "heavy"]
SEM = ["sem", "--will-cite", "--fg", "-j1", "--id", "DIRECTORY", "--"]


def flock() -> ProcessEach:
    return ProcessEach("flock L systemd-run --scope", FLOCK)


def slicer_run() -> ProcessEach:
    return ProcessEach("slicer run --profile heavy", [*SLICER, "--"], ONE_SLOT)


def slicer_exec() -> ProcessEach:
    return ProcessEach("slicer run --profile heavy --exec", [*SLICER, "--exec", "--"], ONE_SLOT)


def sem() -> ProcessEach:
    return ProcessEach("GNU sem --fg -j1 (no scope)", SEM)
