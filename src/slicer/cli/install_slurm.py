"""``slicer install --user --slurm-commands``: shims by the names of Slurm's commands."""

from __future__ import annotations

import os
import shutil

from slicer.backend import slurm_shims
from slicer.backend.install_units import InstallPlan, data_home
from slicer.cli import install_serve
from slicer.cli.install_words import Way, carry_out, together
from slicer.columns import Line
from slicer.errors import SlicerError, UsageError
from slicer.text import quote


def act_on_shims(place: install_serve.UnitPlace, way: Way, *, is_alone: bool) -> int:
    """Install or remove the shims. Raises SlicerError."""
    where = "--slurm-commands"
    if not place.is_user:
        raise UsageError("each user decides about their own PATH", where=where, hint="with --user")
    if not is_alone:
        raise UsageError("cannot be combined", where=where, hint="call slicer install twice")
    real = shutil.which("sbatch", path=slurm_shims.without(os.environ.get("PATH", os.defpath)))
    if real and not (way.removing or way.force):
        hint = "slicer queue --engine slurm uses it; --force hides it from whoever puts the shims into PATH"
        raise SlicerError(f"Slurm is here: {real}", where=where, hint=hint)
    folder = quote(slurm_shims.folder_of(data_home(os.environ)))
    told = [] if way.removing else [Line(f"next: export PATH={folder}:$PATH")]
    return carry_out(_plan(place, way), way, lambda: told, user=True)


def with_shims(settled: InstallPlan, place: install_serve.UnitPlace, way: Way) -> InstallPlan:
    """The plan, extended to update the shims or to remove them, if they were installed."""
    is_there = os.path.isdir(slurm_shims.folder_of(data_home(os.environ)))
    return together(settled, _plan(place, way)) if place.is_user and is_there else settled


def _plan(place: install_serve.UnitPlace, way: Way) -> InstallPlan:
    program = "slicer" if way.removing else install_serve.program(place)
    return InstallPlan(slurm_shims.actions(data_home(os.environ), program), (), (), user=True)
