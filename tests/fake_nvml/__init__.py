"""A ``libnvidia-ml.so.1`` without a GPU: the real pynvml runs over it (see ``fake_nvml.c``).

As a pytest plugin (``pytest_plugins = ["tests.fake_nvml"]``) it offers the fixture ``fake_nvml``. Elsewhere,
``FakeNvml(build(directory), state_file)`` does without pytest.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin, and it asserts nothing.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.built import Built

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"

TWO_GPUS = """\
gpu 0 GPU-00000000-0000-0000-0000-000000000000 81559 00000000:01:00.0 0 0 NVIDIA H100 80GB HBM3
gpu 1 GPU-11111111-1111-1111-1111-111111111111 81559 00000000:02:00.0 1 0 NVIDIA H100 80GB HBM3
"""

# For a job's shell: "use 0 4096" puts that shell on GPU 0 with 4 GiB, as a CUDA context would, as long as it
# lives. The pid is the one that NVML knows, also in a pid namespace (where /proc is the outer one's).
USE = """\
use() { read used_by rest </proc/self/stat; echo "live $1 $used_by $2 compute" >>"$FAKE_NVML_STATE"; }
"""


def build(directory: Path, *, old_driver: bool = False) -> Path:
    """Compile the library into ``directory`` (its only content that matters) and return ``directory``.

    ``old_driver`` leaves out what driver 510 and later ones brought. Raises CalledProcessError with the
    compiler's words.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += ["-fvisibility=hidden", "-D_GNU_SOURCE", *(["-DOLD_DRIVER"] if old_driver else [])]
    command += [f"-Wl,-soname,{LIBRARY}", "-o", str(directory / LIBRARY), str(SOURCE)]
    subprocess.run(command, check=True)
    return directory


class FakeNvml:
    """One machine's worth of fake GPUs: the state file, and the environment that makes NVML see it."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library = library
        self.state = state
        self.write(TWO_GPUS)

    @property
    def env(self) -> dict[str, str]:
        """The variables to add to a process's environment before it starts."""
        path = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": f"{self.library}:{path}" if path else str(self.library),
            "FAKE_NVML_STATE": str(self.state),
        }

    def write(self, text: str) -> None:
        """Replace the state, for running processes too; they never see half of it."""
        new = self.state.with_name(self.state.name + ".new")
        new.write_text(text)
        os.replace(new, self.state)

    def add(self, *lines: str) -> None:
        """Add lines to the state (``process 0 4711 1024 compute``)."""
        self.write(self.state.read_text() + "".join(f"{line}\n" for line in lines))

    def remove(self, *lines: str) -> None:
        """Take lines out of the state again."""
        kept = [line for line in self.state.read_text().splitlines() if line not in lines]
        self.write("".join(f"{line}\n" for line in kept))


@pytest.fixture(scope="session")
def fake_nvml_library(built: Built) -> Path:
    return built("nvml", build)


@pytest.fixture(scope="session")
def old_nvml_library(built: Built) -> Path:
    return built("old-nvml", lambda to: build(to, old_driver=True))


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Two idle GPUs, to begin with."""
    return FakeNvml(fake_nvml_library, tmp_path / "nvml-state")
