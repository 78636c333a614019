"""Shims by the names of Slurm's commands, which start slicer to answer them (``slicer.slurm_commands``).

They are in a folder of their own, which a user puts into PATH. slicer itself never means them: whoever calls
Slurm's commands looks for them in a PATH without them. They are no links: a packaged slicer does not always
learn by which name it was called.
"""

from __future__ import annotations

import shlex

from slicer.backend.unit_files import Action, is_ours, read

COMMANDS = ("sbatch", "squeue", "scancel", "sacct", "srun", "sinfo", "scontrol", "sacctmgr")


def actions(data_home: str, program: str) -> tuple[Action, ...]:
    """The shims to install, or to remove. ``program``: the path of slicer."""
    start = f"#!/bin/sh\nexec {shlex.quote(program)} slurm-commands"
    return tuple(
        Action("", f"{folder_of(data_home)}/{name}", f"slicer's {name}", f'{start} {name} "$@"\n'.encode())
        for name in COMMANDS
    )


def folder_of(data_home: str) -> str:
    return f"{data_home}/slicer/slurm"


def without(path: str) -> str:
    """The PATH without directories whose ``sbatch`` is slicer's. Raises OSError."""
    return ":".join(each for each in path.split(":") if not is_ours(read(f"{each}/sbatch") or b""))
