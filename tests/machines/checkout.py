"""This checkout, as the machines get it: a wheel to install, and for QEMU a drive with its files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.machines.host import ENVIRON, REPO, check

# In the machine: a plain install of the only wheel in /wheel, so that start-up costs what a user's costs.
INSTALL = [
    "sh",
    "-c",
    "exec /opt/slicer/bin/pip --disable-pip-version-check --no-cache-dir install --quiet "
    "--no-index --no-deps --force-reinstall --root-user-action=ignore /wheel/*.whl",
]

DRIVE_SIZE = "512M"

_NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis",
    "build", "dist", "*.egg-info", "*.so", "results",
)  # fmt: skip


@contextmanager
def wheel() -> Iterator[Path]:
    """A directory that holds this checkout's wheel, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="slicer-wheel-") as scratch:
        source, out = Path(scratch, "source"), Path(scratch, "wheel")
        # setuptools leaves build/ behind, and takes modules from it that no longer exist: build in a copy.
        copy(source)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        check([*pip, *_isolation(), "--wheel-dir", out, source])
        yield out


def make_drive(drive: Path, *, bare: bool) -> None:
    """Make an ext4 file, labelled slicer-src, of the checkout (/source) and, unless `bare`, its wheel."""
    with tempfile.TemporaryDirectory(prefix="content-", dir=drive.parent) as scratch:
        content = Path(scratch)
        copy(content / "source")
        with nullcontext(None) if bare else wheel() as built:
            if built is None:
                (content / "wheel").mkdir()
            else:
                shutil.copytree(built, content / "wheel")
        check(["mke2fs", "-q", "-t", "ext4", "-L", "slicer-src", "-d", content, drive, DRIVE_SIZE])


def copy(target: Path) -> None:
    """The checkout's files, uncommitted ones too, without what is built or cached."""
    shutil.copytree(REPO, target, ignore=_NOT_SOURCE, symlinks=True)


def _isolation() -> list[str]:
    """No build environment (seconds, and the network) where setuptools is at hand, as in our venv."""
    words = [sys.executable, "-c", "import setuptools, wheel"]
    probe = subprocess.run(words, env=ENVIRON, capture_output=True)
    return ["--no-build-isolation"] if probe.returncode == 0 else []
