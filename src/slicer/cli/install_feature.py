"""``slicer install --web``, ``--metrics`` and ``--slurm-commands``: what is installed and removed alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from slicer.backend import feature_units, slurm_shims
from slicer.backend.feature_units import TEXTFILES
from slicer.backend.install_units import InstallPlan, data_home, feature_plan, refuse_nixos
from slicer.cli import install_broker, install_serve
from slicer.cli.install_words import Way, carry_out
from slicer.cli.metrics import need_prometheus
from slicer.cli.serve_look import need_aiohttp
from slicer.columns import Line
from slicer.errors import SlicerError, UsageError
from slicer.kernel import on_host
from slicer.text import quote

_NEXT: dict[str, tuple[str, ...]] = {
    "web": (
        "board: http://127.0.0.1:8750/ for all users of this machine; the first request starts it",
        "for others: docs/web.md shows a reverse proxy and ssh -L",
    ),
    "metrics": (
        f"writes {TEXTFILES}/slicer.prom twice a minute",
        "another directory: systemctl edit slicer-metrics.service; see docs/metrics.md",
    ),
}


def act(feature: str, way: Way, *, is_alone: bool) -> int:
    """Install or remove a feature. ``is_alone``: no other option asks for more. Raises SlicerError."""
    if not is_alone:
        raise UsageError("cannot be combined", where=f"--{feature}", hint="call slicer install twice")
    if way.removing and not feature_units.is_there(feature):
        raise UsageError("it is not installed", where=f"--{feature}")
    if not way.removing:
        refuse_nixos(f"{feature}.enable = true")
        need_aiohttp("slicer web") if feature == "web" else need_prometheus()  # the unit runs this Python
        if feature == "web" and not feature_units.is_there("broker"):
            message = "the board shows what the broker knows, and there is none"
            hint = "slicer install --broker first; slicer web shows your own jobs"
            raise SlicerError(message, where="--web", hint=hint)
    told = () if way.removing else _NEXT[feature]
    if told and feature == "metrics" and not os.path.isdir(on_host(TEXTFILES)):
        told += (f"{TEXTFILES} does not exist yet: apt install prometheus-node-exporter",)
    return carry_out(_plan(feature, way), way, lambda: [*map(Line, told)])


def act_on_shims(way: Way, *, is_alone: bool) -> int:
    """The same for the shims by the names of Slurm's commands."""
    where = "--slurm-commands"
    if not way.is_user:
        raise UsageError("each user decides about their own PATH", where=where, hint="with --user")
    if not is_alone:
        raise UsageError("cannot be combined", where=where, hint="call slicer install twice")
    real = shutil.which("sbatch", path=slurm_shims.without(os.environ.get("PATH", os.defpath)))
    if real and not (way.removing or way.force):
        hint = "slicer queue --engine slurm uses it; --force hides it from whoever puts the shims into PATH"
        raise SlicerError(f"Slurm is here: {real}", where=where, hint=hint)
    folder = quote(slurm_shims.folder_of(data_home(os.environ)))
    told = [] if way.removing else [Line(f"next: export PATH={folder}:$PATH")]
    return carry_out(_shims(way), way, lambda: told)


def there(way: Way) -> Iterator[InstallPlan]:
    """The plans to update what of these is installed, or to remove it."""
    if not way.is_user:
        yield from (_plan(each, way) for each in filter(feature_units.is_there, feature_units.FEATURES))
    elif os.path.isdir(slurm_shims.folder_of(data_home(os.environ))):
        yield _shims(way)


def _plan(feature: str, way: Way) -> InstallPlan:
    program = feature_units.PROGRAM if way.removing else install_broker.program("slicer")
    return feature_plan(feature, program, removing=way.removing)


def _shims(way: Way) -> InstallPlan:
    program = "slicer" if way.removing else install_serve.program(way)
    return InstallPlan(slurm_shims.actions(data_home(os.environ), program), (), (), user=True)
