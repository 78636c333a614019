"""The ways to queue jobs for one slot that are measured side by side: slicer, and what people use instead.

Standard library only; runs inside the machine. What is not from Debian lies in ``PEERS`` (see ``peers.py``).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PEERS = Path("/src/build/bench-peers")
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
                _kill_group(process.pid)
        for process in self._processes:
            process.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


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


class Gq:
    """gq-local: its daemon, over a fake NVML."""

    name = "gq-local 0.3.0 (no scope; daemon)"

    def __init__(self, gpus: int = 1) -> None:
        self._gpus = gpus

    def begin(self, directory: Path) -> None:
        self._env = {
            **os.environ,
            **fake_gpus(self._gpus),
            "GQ_ALLOW_ROOT": "1",  # its consent to root, in a machine that lives for minutes
            "PYTHONPATH": str(PEERS),
            "GQ_DATA_DIR": str(directory),
            "GQ_RUNTIME_DIR": str(directory / "run"),
        }
        self._run("daemon", "start")

    def add(self, jobs: Sequence[list[str]]) -> None:
        for job in jobs:
            self._run("run", "-g", "1", *job)

    def waiters(self) -> list[int]:
        return []

    def end(self) -> None:
        self._run("daemon", "stop")

    def _run(self, *words: str) -> None:
        subprocess.run(
            [sys.executable, str(PEERS / "bin/gq"), *words],
            env=self._env, cwd="/tmp", check=True, timeout=60, **QUIET,  # type: ignore[call-overload]
        )  # fmt: skip


class Gpusched:
    """gpusched over its own simulated GPU; it reads its file of jobs anew each time it polls."""

    name = "gpusched 0.4.0 --poll 0.1 (no scope)"

    def begin(self, directory: Path) -> None:
        self._file = directory / "jobs"
        self._file.touch()
        words = ["--sim", "1", "--poll", "0.1", "--watch", "--log-dir"]
        words += [str(directory / "logs"), str(self._file)]
        self._process = subprocess.Popen(
            [sys.executable, str(PEERS / "bin/gpusched"), *words],
            env={**os.environ, "PYTHONPATH": str(PEERS)}, cwd=directory, start_new_session=True, **QUIET,  # type: ignore[call-overload]
        )  # fmt: skip

    def add(self, jobs: Sequence[list[str]]) -> None:
        with self._file.open("a") as file:
            file.writelines(f"{shlex.join(job)}\n" for job in jobs)
        time.sleep(0.5)  # several polls, so that it has seen them

    def waiters(self) -> list[int]:
        return []

    def end(self) -> None:
        _kill_group(self._process.pid)
        self._process.wait()


def fake_gpus(number: int) -> dict[str, str]:
    """The environment in which NVML sees so many idle GPUs."""
    directory = Path("/tmp/bench/nvml")
    library, state = directory / "libnvidia-ml.so.1", directory / f"state{number}"
    if not library.exists():
        directory.mkdir(parents=True, exist_ok=True)
        source = "/src/tests/fake_nvml/fake_nvml.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", library, source], check=True)
    state.write_text("".join(map(_fake_gpu, range(number))))
    return {"LD_LIBRARY_PATH": str(directory), "FAKE_NVML_STATE": str(state)}


def _fake_gpu(place: int) -> str:
    uuid = f"GPU-{place:08x}-0000-0000-0000-000000000000"
    return f"gpu {place} {uuid} 81559 00000000:{place + 1:02x}:00.0 0 0 NVIDIA H100 80GB HBM3\n"


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
