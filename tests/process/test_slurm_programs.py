"""Programs that speak Slurm, unmodified and pinned, over slicer: submitit, hydra's launcher, Snakemake.

They take an environment of their own (pip, and an index): a minute and a half to install, and as long to run.
When the run has ended it is removed, which takes half a minute on a slow disk and prints nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.built import make_once
from tests.machines.settings import ci
from tests.process.slurm_commands import SlurmCommands

pytest_plugins = ["tests.process.slurm_commands"]
pytestmark = [pytest.mark.slow, pytest.mark.with_ci]

PROGRAMS = Path(__file__).parent / "slurm_programs"
GPUS = [f"SIM-0000000{index}-0000-0000-0000-000000000000" for index in range(2)]
LONGEST_S = 600.0


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs."""

    def make(place: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True, timeout=LONGEST_S)
        pip = [place / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        done = subprocess.run(
            [*pip, "-r", PROGRAMS / "requirements.txt"], capture_output=True, text=True, timeout=LONGEST_S,
            check=False,
        )  # fmt: skip
        if done.returncode:
            if ci():
                pytest.fail(done.stderr)
            pytest.skip(f"the programs cannot be installed: {done.stderr[-200:]}")

    return make_once("slurm-programs", make) / "venv/bin"


def run(slurm: SlurmCommands, *words: str | Path) -> str:
    done = subprocess.run(
        words, env=slurm.box.env, cwd=slurm.box.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def slurm(slurm: SlurmCommands, programs: Path) -> SlurmCommands:
    del slurm.box.env["PYTHONPATH"]  # theirs must not find what slicer has
    slurm.box.env["PATH"] += f":{programs}"
    return slurm


def test_submitit(slurm: SlurmCommands, programs: Path) -> None:  # U9
    said = run(slurm, programs / "python", PROGRAMS / "with_submitit.py", slurm.box.root / "logs")
    assert [line for line in said.splitlines() if line[:1].islower()] == [
        f"submit (1, '{GPUS[0]}')",
        "array [0, 1, 2, 3, 4]",
        "error FailedJobError FAILED",
        "cancel CANCELLED",
        "requeue resumed at 7",
    ], said
    slurm.box.assert_clean()


def test_hydras_sweep_has_a_gpu_for_each_job(slurm: SlurmCommands, programs: Path) -> None:  # U9
    words = ("-m", "hydra/launcher=submitit_slurm", "+x=1,2,3", "hydra.launcher.gpus_per_node=1")
    run(slurm, programs / "python", PROGRAMS / "with_hydra.py", *words)
    assert {Path(f"{slurm.box.log}-{x}").read_text() for x in (1, 2, 3)} <= set(GPUS)
    slurm.box.assert_clean()


def test_snakemake(slurm: SlurmCommands, programs: Path) -> None:  # U9
    shutil.copy(PROGRAMS / "Snakefile", slurm.box.root)
    said = run(
        slurm, programs / "snakemake", "--executor", "slurm", "--jobs", "4",
        "--slurm-init-seconds-before-status-checks", "1",
    )  # fmt: skip
    assert "5 of 5 steps (100%) done" in said
    rows = (slurm.box.root / "joined").read_text().splitlines()
    assert [(number, gpu in GPUS) for number, gpu in map(str.split, rows)] == [(n, True) for n in "123"]
    slurm.box.assert_clean()
