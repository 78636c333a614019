"""A box with two simulated GPUs, in whose PATH Slurm's commands are slicer's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import LONGEST_S
from tests.process.harness import SRC, Box

_PROGRAM = """\
#!{python}
import sys
sys.path.insert(0, {src!r})
from slicer.__main__ import main
main()
"""


class SlurmCommands:
    """``box`` has the environment; ``shims`` is the folder with the commands."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.slicer = box.root / "bin" / "slicer"
        self.slicer.write_text(_PROGRAM.format(python=sys.executable, src=SRC))
        self.slicer.chmod(0o755)
        self.shims = box.home / ".local/share/slicer/slurm"
        box.env |= {"SLICER_SIM": "2x24G", "PATH": f"{self.shims}:{box.env['PATH']}"}
        box.state /= "sim-2x24G"
        self.installed = self("slicer", "install", "--user", "--slurm-commands").stdout

    def __call__(
        self, *words: str | Path, code: int = 0, stdin: str = "", cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            words, env={**self.box.env, **env}, cwd=cwd or self.box.root, input=stdin, capture_output=True,
            text=True, timeout=LONGEST_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, done
        return done

    def script(self, text: str, name: str = "job.sh") -> str:
        path = self.box.root / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        return str(path)

    def submitted(self, *words: str) -> str:
        """The number of a job that was submitted."""
        return self("sbatch", "--parsable", *words).stdout.strip()

    def states(self, number: str) -> dict[str, str]:
        """The state of each job or task of that number, as sacct says."""
        lines = self("sacct", "-n", "-P", "-o", "JobID,State", "-j", number).stdout.splitlines()
        return dict(line.split("|") for line in lines)


@pytest.fixture
def slurm(make_box: Callable[[int], Box]) -> SlurmCommands:
    os.environ.pop("XDG_DATA_HOME", None)
    return SlurmCommands(make_box(1))
