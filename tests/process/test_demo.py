"""`make run` where not everything is at hand: the demo says what to ask for, or does without."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.host import REPO
from tests.process.harness import SLICER, SRC, unprivileged
from tests.shield import variables

UID = 54321
# What tools/*.sh call, but neither sudo nor what they install.
TOOLS = ("sh", "id", "mktemp", "rm", "mkdir", "cat", "sed", "find", "head", "wc", "apt-get")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user can reach, with PATH's programs and a home that is closed to everybody."""
    with tempfile.TemporaryDirectory(prefix="slicer-demo-") as name:
        place = Path(name)
        place.chmod(0o755)
        for folder in ("bin", "venv/bin", "home", "state"):
            (place / folder).mkdir(parents=True)
        for tool in TOOLS:
            (place / "bin" / tool).symlink_to(shutil.which(tool) or "/bin/false")
        slicer = place / "venv/bin/slicer"
        slicer.write_text(f'#!/bin/sh\nexec {shlex.join(SLICER)} "$@"\n')
        slicer.chmod(0o755)
        (place / "home").chmod(0o555)
        (place / "state").chmod(0o700)
        if os.geteuid() == 0:
            os.chown(place / "state", UID, UID)
        yield place


def demo(place: Path) -> subprocess.CompletedProcess[str]:
    """As a user without sudo."""
    env = {
        "PATH": str(place / "bin"), "HOME": str(place / "home"), "LANG": "C.UTF-8", "PYTHONPATH": SRC,
        "PYTHONDONTWRITEBYTECODE": "1", "SLICER_STATE_DIR": str(place / "state"), "DEMO_MIB": "1",
        **variables(place),
    }  # fmt: skip
    setpriv = (shutil.which("setpriv"), *unprivileged(UID)[1:]) if os.geteuid() == 0 else ()
    command = [*setpriv, "/bin/sh", REPO / "tools/demo.sh", place / "venv"]
    return subprocess.run(command, env=env, cwd=REPO, capture_output=True, text=True, check=False)  # type: ignore[arg-type]


def test_without_sudo_it_says_what_to_ask_root_for(place: Path) -> None:  # W34
    done = demo(place)
    assert done.returncode == 1
    assert done.stderr == (
        "not installed: xz-utils; there is no sudo here, so ask root: apt-get install xz-utils\n"
    )


def test_without_a_writable_home_it_runs_to_its_end(place: Path) -> None:  # W34
    (place / "bin" / "xz").symlink_to(shutil.which("xz") or "/bin/cat")
    done = demo(place)
    assert done.returncode == 0, done
    assert "your history cannot be kept" in done.stdout
    assert "$ slicer history" in done.stdout
    assert "$ slicer status" in done.stdout
