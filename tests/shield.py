"""Keeps from the tests what this host is set up with: driver, configuration, history, variables, user's bus.

:func:`raise_shield` does it for pytest and all that it starts. A box that makes its own environment adds
:func:`variables`. Nothing is kept from them in a test machine, where only the tests set something up.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from slicer.kernel import SYSROOT

# What the tests themselves are told by variables.
_FOR_TESTS = ("SLICER_TEST_", "SLICER_MACHINE_CACHE", "SLICER_DEBIAN_MIRROR", "SLICER_QEMU_ACCEL")
# What else changes what slicer does or prints, or leads to the host's systemd.
_DROPPED = (
    "SLICER_", "CPU_RUN_", "PSRUN_", "GPU_LOCK_", "CUDA_", "NVIDIA_", "LISTEN_", "NO_COLOR", "FORCE_COLOR",
    "COLUMNS", "LINES", "XDG_RUNTIME_DIR", "DBUS_", "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM",
)  # fmt: skip
_LIBRARIES = "LD_LIBRARY_PATH"
# The variable that names a directory for what all processes of a test run share (tests/built.py).
SHARED = "SLICER_TEST_SHARED"


def raise_shield() -> None:
    """Change this process's environment. What it names is removed when the process ends."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # a worker has inherited it
    place = Path(tempfile.mkdtemp(prefix="slicer-tests-"))
    place.chmod(0o755)  # tests give up root
    atexit.register(_remove, place, os.getpid())
    os.environ.setdefault(SHARED, str(place))
    if "SLICER_TEST_MACHINE" in os.environ:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("SLICER_MACHINE_CACHE", str(cache / "slicer" / "machines"))
    for name in list(os.environ):
        if name.startswith(_DROPPED) and not name.startswith(_FOR_TESTS):
            del os.environ[name]
    for name in ("CONFIG", "STATE", "DATA", "CACHE"):
        os.environ[f"XDG_{name}_HOME"] = str(place / name.lower())
    libraries = place / "no-driver"
    libraries.mkdir()
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (libraries / name).write_text("no library: it cannot be loaded\n")
    os.environ.update({_LIBRARIES: str(libraries), **variables(place)})


def variables(root: Path) -> dict[str, str]:
    """The variables of a box at ``root``: a host that nothing is installed on, not even NVIDIA's driver."""
    libraries = {_LIBRARIES: os.environ[_LIBRARIES]} if _LIBRARIES in os.environ else {}
    return {SYSROOT: str(root / "host"), **libraries}


def _remove(place: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(place, ignore_errors=True)
