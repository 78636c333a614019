"""Nodes of eight GPUs without a driver: opening one says ENXIO where it is allowed, and EPERM behind a fence.

The GPUs themselves are a fake library under the real pynvml. It lies where the broker, too, can see it.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin, and it asserts nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml, build

MAJOR, CONTROL = 195, 255
NODES = {**{f"nvidia{minor}": minor for minor in range(8)}, "nvidia-modeset": 254, "nvidiactl": CONTROL}
_DRIVER = Path("/proc/driver")
_MODPROBE = Path("/proc/sys/kernel/modprobe")
EVERYTHING = f"open: {' '.join(sorted(name.removeprefix('nvidia') for name in NODES))}"
# Prints which of the nodes it may open, and which of the other devices it may not.
_LOOK = """\
import errno, os, sys
def says(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        return error.errno
nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
print("open:", *(name[6:] for name in nodes if says("/dev/" + name) != errno.EPERM))
others = "null zero full random urandom tty ptmx fuse kmsg loop-control net/tun vda".split()
closed = [name for name in others if says("/dev/" + name) == errno.EPERM]
if closed:
    print("closed:", *closed)
"""


def make_node(name: str) -> None:
    path = f"/dev/{name}"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, NODES[name]))
    os.chmod(path, 0o666)


def remove_node(name: str) -> None:
    os.unlink(f"/dev/{name}")


@pytest.fixture
def nodes() -> Iterator[None]:
    """The nodes of eight GPUs, and what else NVIDIA's driver has."""
    with _no_module_is_looked_for():
        for name in NODES:
            make_node(name)
        yield
        for name in NODES:
            remove_node(name)


@contextmanager
def _no_module_is_looked_for() -> Iterator[None]:
    """In the QEMU machine, whose kernel is its own, each open of a node would take half a second."""
    if os.environ["SLICER_TEST_MACHINE"] != "qemu":
        yield
        return
    modprobe = _MODPROBE.read_text()
    _MODPROBE.write_text("\n")
    try:
        yield
    finally:
        _MODPROBE.write_text(modprobe)


@pytest.fixture(scope="module")
def _shared() -> Iterator[Path]:
    """A directory that all users and the broker can read."""
    folder = Path(tempfile.mkdtemp(prefix="slicer-gpus-", dir="/srv"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def eight(_shared: Path) -> FakeNvml:
    """Eight GPUs whose nodes are numbered the other way round: GPU 0 is /dev/nvidia7."""
    made = FakeNvml(build(_shared / "nvml"), _shared / "state")
    rest = "0000-0000-0000-000000000000"
    lines = (
        f"gpu {index} GPU-{index:08d}-{rest} 24576 00000000:0{index + 1}:00.0 {7 - index} 0 X\n"
        for index in range(8)
    )
    made.write("".join(lines))
    return made


@pytest.fixture
def kernel_list() -> Iterator[None]:
    """The driver's own list of the GPUs of ``eight``."""
    subprocess.run(["mount", "-t", "tmpfs", "slicer-test", _DRIVER], check=True)
    for index in range(8):
        folder = _DRIVER / f"nvidia/gpus/0000:0{index + 1}:00.0"
        folder.mkdir(parents=True)
        uuid = f"GPU-{index:08d}-0000-0000-0000-000000000000"
        (folder / "information").write_text(f"GPU UUID: \t {uuid}\nDevice Minor: \t {7 - index}\n")
    yield
    subprocess.run(["umount", _DRIVER], check=True)


@pytest.fixture(scope="module")
def look(_shared: Path) -> str:
    """A command for a shell that prints what is open to it."""
    path = _shared / "look.py"
    path.write_text(_LOOK)
    return f"{sys.executable} -IS {path}"
