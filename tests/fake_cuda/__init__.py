"""A ``libcuda.so.1`` without a GPU: real programs of the CUDA driver API run over it (see ``README.md``).

As a pytest plugin (``pytest_plugins = ["tests.fake_cuda"]``) it offers the fixture ``fake_cuda``. Elsewhere,
``FakeCuda(build(directory), directory_of_its_own)`` does without pytest.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin, and it asserts nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.built import Built
from tests.fake_nvml import TWO_GPUS

HERE = Path(__file__).parent
LIBRARY = "libcuda.so.1"
NAME = "Fake GPU (no hardware)"


def build(directory: Path) -> Path:
    """Compile the library into ``directory`` and return ``directory``.

    Raises CalledProcessError with the compiler's words.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-shared", "-fPIC", "-O1", "-g"]
    command += [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fvisibility=hidden",
        "-D_GNU_SOURCE",
        "-fno-ipa-icf",
        f"-Wl,-soname,{LIBRARY}",
        "-Wl,-Bsymbolic",  # as the real one, it finds its own functions, not those of a preloaded library
    ]
    command += ["-o", str(directory / LIBRARY), *map(str, sorted(HERE.glob("*.c"))), "-lpthread"]
    subprocess.run(command, check=True)
    (directory / "libcuda.so").unlink(missing_ok=True)
    (directory / "libcuda.so").symlink_to(LIBRARY)
    return directory


class Call(NamedTuple):
    """One line of the log. Times are nanoseconds of CLOCK_MONOTONIC."""

    pid: int
    tid: int
    name: str
    began: int
    ended: int
    result: int
    gpu: int
    """The GPU's index in the state file; -1: none."""
    stream: int
    busy_from: int
    """When the GPU begins; 0: it has nothing to do, -1: a line "busy" of the same op tells later."""
    busy_to: int
    bytes: int
    op: int
    """A number of the work, in its process."""


class Busy(NamedTuple):
    """A piece of work on a GPU."""

    pid: int
    gpu: int
    start: int
    end: int


class FakeCuda:
    """One machine's worth of fake GPUs, with what its processes share, and the log of their calls."""

    def __init__(self, library: Path, directory: Path, state: Path | None = None) -> None:
        """``state``: the file of a FakeNvml, whose GPUs these then are."""
        self.library = library
        self.more_libraries: list[Path] = []
        self.log = directory / "cuda-log"
        self.shared = directory / "cuda-shared"
        self.state = state or directory / "cuda-state"
        if state is None:
            self.state.write_text(TWO_GPUS)

    @property
    def env(self) -> dict[str, str]:
        """The variables to add to a process's environment before it starts."""
        path = [*map(str, (self.library, *self.more_libraries)), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(filter(None, path)),
            "FAKE_NVML_STATE": str(self.state),
            "FAKE_CUDA_SHARED": str(self.shared),
            "FAKE_CUDA_LOG": str(self.log),
        }

    def calls(self, *names: str, pid: int | None = None) -> list[Call]:
        """What was called, in the order of the log; lines "busy" are left out."""
        return [
            call
            for call in self._lines()
            if call.name != "busy" and (not names or call.name in names) and pid in {None, call.pid}
        ]

    def busy(self, pid: int | None = None) -> list[Busy]:
        """All work on the GPUs whose end is known, by its start."""
        found = [
            Busy(call.pid, call.gpu, call.busy_from, call.busy_to)
            for call in self._lines()
            if call.busy_from > 0 and pid in {None, call.pid}
        ]
        return sorted(found, key=lambda busy: busy.start)

    def _lines(self) -> Iterator[Call]:
        if not self.log.exists():
            return
        for line in self.log.read_text().splitlines():
            words = line.split(" ")
            if len(words) == len(Call._fields):
                numbers = [int(word, 0) for word in words[3:]]
                yield Call(int(words[0]), int(words[1]), words[2], *numbers)


@pytest.fixture(scope="session")
def fake_cuda_library(built: Built) -> Path:
    return built("cuda", build)


@pytest.fixture
def fake_cuda(fake_cuda_library: Path, tmp_path: Path) -> FakeCuda:
    """Two idle GPUs, to begin with."""
    return FakeCuda(fake_cuda_library, tmp_path)
