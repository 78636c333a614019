"""This checkout, as the machines get it: a wheel to install, and for QEMU a drive with its files."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.built import make_once
from tests.machines.host import ENVIRON, REPO, check
from tests.shield import SHARED

# In the machine: a plain install of the only wheel in /wheel, so that start-up costs what a user's costs.
INSTALL = [
    "sh",
    "-c",
    "exec /opt/slicer/bin/pip --disable-pip-version-check --no-cache-dir install --quiet "
    "--no-index --no-deps --force-reinstall --root-user-action=ignore /wheel/*.whl",
]

DRIVE_MIB = 512

_NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis",
    "build", "dist", "*.egg-info", "*.so", "results",
)  # fmt: skip


def wheel() -> Path:
    """A directory that holds this checkout's wheel and nothing else, for all machines of a test run."""
    if SHARED not in os.environ:
        made = tempfile.TemporaryDirectory(prefix="slicer-wheel-")
        atexit.register(made.cleanup)
        os.environ[SHARED] = made.name
    return make_once("wheel", _build) / "wheel"


def _build(scratch: Path) -> None:
    # setuptools leaves build/ behind, and takes modules from it that no longer exist: build in a copy.
    copy(scratch / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    check([*pip, *_isolation(), "--wheel-dir", scratch / "wheel", scratch / "source"])
    shutil.rmtree(scratch / "source")


def make_drive(drive: Path, *, bare: bool) -> None:
    """Make an ext4 file, labelled slicer-src, of the checkout (/source) and, unless `bare`, its wheel."""
    with tempfile.TemporaryDirectory(prefix="content-", dir=drive.parent) as scratch:
        content = Path(scratch)
        copy(content / "source")
        if bare:
            (content / "wheel").mkdir()
        else:
            shutil.copytree(wheel(), content / "wheel")
        check(["mke2fs", "-q", "-t", "ext4", "-L", "slicer-src", "-d", content, drive, f"{DRIVE_MIB}M"])


def blank_drive(drive: Path) -> None:
    """A drive of the same size, with nothing on it."""
    with drive.open("wb") as file:
        file.truncate(DRIVE_MIB << 20)


def copy(target: Path) -> None:
    """The checkout's files, uncommitted ones too, without what is built or cached."""
    shutil.copytree(REPO, target, ignore=_NOT_SOURCE, symlinks=True)


def _isolation() -> list[str]:
    """No build environment (seconds, and the network) where setuptools is at hand, as in our venv."""
    words = [sys.executable, "-c", "import setuptools, wheel"]
    probe = subprocess.run(words, env=ENVIRON, capture_output=True)
    return ["--no-build-isolation"] if probe.returncode == 0 else []
