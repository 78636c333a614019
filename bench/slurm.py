"""``slicer queue --engine slurm`` beside ``sbatch --array``: jobs that do nothing, on a Slurm of two nodes.

Runs inside the machine, as root. Slurm's own way to start a job bounds all rows.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.markdown import bar, figures, table
from tests import slurm_box
from tests.slurm_box import SlurmBox

JOBS, ARRAY, ROUNDS = 1000, 500, 2
BARE, WRAPPED, QUEUE = (
    "sbatch --array, true",
    "sbatch --array, slicer run --outcome FILE -- true",
    "slicer queue --engine slurm",
)
ADDED_BAR = 0.05
DEADLINE_S = 600.0


def measure() -> dict[str, Any]:
    """Seconds for all jobs, each way in turn; why there is no Slurm."""
    why = slurm_box.missing()
    if why:
        return {"missing": why}
    home = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    box = SlurmBox(home / "box")
    samples: dict[str, list[float]] = {BARE: [], WRAPPED: [], QUEUE: []}
    ways: dict[str, Callable[[], None]] = {
        BARE: lambda: _arrays(box, home, "true; : > {}"),
        WRAPPED: lambda: _arrays(box, home, "slicer run --quiet --gpus 0 --outcome {} -- true"),
        QUEUE: lambda: _queue(box, home),
    }
    try:
        box.start()
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                samples[name].append(time.perf_counter() - began)
    finally:
        box.stop()
    return {"samples": samples}


def _arrays(box: SlurmBox, home: Path, command: str) -> None:
    """As many arrays as the queue makes; each job leaves a file, and the last one ends the wait."""
    done = Path(tempfile.mkdtemp(dir=home))
    for first in range(0, JOBS, ARRAY):
        wrap = command.format(f"{done}/{first}-$SLURM_ARRAY_TASK_ID")
        box.run("sbatch", f"--array=0-{ARRAY - 1}", "--output=/dev/null", "--chdir=/", f"--wrap={wrap}")
    deadline = time.monotonic() + DEADLINE_S
    while sum(not name.endswith(".tmp") for name in os.listdir(done)) < JOBS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(os.listdir(done))} of {JOBS} jobs ran: {box.log()}")
        time.sleep(0.01)


def _queue(box: SlurmBox, home: Path) -> None:
    directory = Path(tempfile.mkdtemp(dir=home))
    (directory / "jobs").write_text("".join(f"[gpus=0] true {number}\n" for number in range(JOBS)))
    words = ["slicer", "queue", "jobs", "--engine", "slurm", "-q"]
    subprocess.run(words, cwd=directory, env=box.environ, check=True, timeout=DEADLINE_S)


def tables(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    title = f"### {JOBS:,} jobs that do nothing, through Slurm"
    if "missing" in found:
        return f"{title}\n\n{found['missing']}"
    samples: dict[str, list[float]] = found["samples"]
    base = median(samples[WRAPPED])

    def row(name: str, values: list[float]) -> list[str]:
        return [
            f"`{name}`",
            *figures((median(values), min(values), max(values))),
            f"{median(values) / base:.2f}",
        ]

    added = median(samples[QUEUE]) / base - 1
    words = f"the queue adds at most {ADDED_BAR:.0%} to the second row"
    rows = [row(name, values) for name, values in samples.items()]
    columns = ["", "seconds, median", "lowest", "highest", "ratio"]
    return table(title, columns, rows, [bar(words, added <= ADDED_BAR, f"{added:+.0%}")])
