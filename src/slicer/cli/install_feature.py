"""``slicer install --web`` and ``--metrics``: the live board and the figures for Prometheus, as units."""

from __future__ import annotations

import os

from slicer.backend import feature_units
from slicer.backend.feature_units import TEXTFILES
from slicer.backend.install_units import InstallPlan, feature_plan, refuse_nixos
from slicer.cli import install_broker
from slicer.cli.install_words import Way, carry_out, together
from slicer.cli.metrics import need_prometheus
from slicer.cli.serve_look import need_aiohttp
from slicer.columns import Line
from slicer.errors import SlicerError, UsageError
from slicer.kernel import on_host

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
    return carry_out(_plan(feature, way.removing), way, lambda: [*map(Line, told)], user=False)


def with_features(settled: InstallPlan, *, removing: bool) -> InstallPlan:
    """The plan, extended to update the installed features or to remove them."""
    for feature in filter(feature_units.is_there, feature_units.FEATURES):
        settled = together(settled, _plan(feature, removing))
    return settled


def _plan(feature: str, removing: bool) -> InstallPlan:
    program = feature_units.PROGRAM if removing else install_broker.program("slicer")
    return feature_plan(feature, program, removing=removing)
