"""The peers that Debian does not have, for the machine: installed into the checkout's build directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.machines.host import REPO
from tests.machines.recipe import Suite

PYPI = ("gpusched==0.4.0", "gq-local==0.3.0")
WHERE = REPO / "build" / "bench-peers"
"""Seen in the machine below /src, the checkout."""


def install(suite: Suite) -> str:
    """Install the peers unless they are there; why it failed, or ""."""
    stamp = WHERE / "stamp"
    wanted = f"{suite.python} {' '.join(PYPI)}\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
    only = ["--python-version", suite.python, "--only-binary=:all:", "--target", str(WHERE)]
    done = subprocess.run([*pip, *only, *PYPI], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    _ = Path(stamp).write_text(wanted)
    return ""
