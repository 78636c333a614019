"""How this slicer is found and called: PATH, sudo, and variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from slicer.record import record

# Variables that change what slicer does, and that somebody may have left in a shell's start-up file.
WATCHED = (
    "SLICER_SIM", "SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK", "GPU_LOCK_HELD", "SLICER_LEASE",
    "SLICER_CONFIG", "SLICER_STATE_DIR", "SLICER_FAULTS", "CPU_RUN_SLOTS", "CPU_RUN_THREADS", "GPU_LOCK_PATH",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@record
class EnvironmentFacts:
    """What the shell that calls slicer has set."""

    program: str  # this slicer's own executable; "" unknown (python -m slicer)
    on_path: tuple[str, ...]  # all executables called slicer on PATH, each file once, the first wins
    prefix: str  # of the Python that runs this slicer
    variables: tuple[tuple[str, str], ...]  # those of WATCHED that are set
    is_under_sudo: bool


def gather(environ: Mapping[str, str], argv0: str, *, searches: bool = True) -> EnvironmentFacts:
    """Starts nothing. ``searches``: looks through PATH."""
    path = environ.get("PATH", "") if searches else ""
    return EnvironmentFacts(
        program=os.path.abspath(argv0) if os.path.basename(argv0) == "slicer" else "",
        on_path=tuple(_slicers(each for each in path.split(":") if each.startswith("/"))),
        prefix=sys.prefix,
        variables=tuple((name, environ[name]) for name in WATCHED if environ.get(name)),
        is_under_sudo="SUDO_UID" in environ and os.geteuid() == 0,
    )


def _slicers(directories: Iterator[str]) -> Iterator[str]:
    """The programs called slicer, but not the same file by a second path."""
    seen = set()
    for directory in directories:
        path = f"{directory}/slicer"
        real = os.path.realpath(path)
        if real not in seen and os.path.isfile(real) and os.access(real, os.X_OK):
            seen.add(real)
            yield path
