"""Slurm's commands over slicer, with systemd: what they submit is a scope with limits, in gpu.slice."""

from __future__ import annotations

import os

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

SIM = {"SLICER_SIM": "1x24G"}


def test_a_submitted_script_is_a_scope_of_gpu_slice_with_its_limits_until_scancel(
    slicer: Slicer,
) -> None:  # U9
    def slurms(*words: str) -> str:
        done = slicer.command("slurm-commands", *words, **SIM)
        assert done.code == 0, done
        return done.stdout.strip()

    wrap = "--wrap=sleep 600"
    number = slurms("sbatch", "--parsable", "--gres=gpu:1", "--mem=512M", "-t", "10", "-o", "/dev/null", wrap)
    scope = f"slicer-{int(number):012x}.scope"
    until(lambda: scope in systemctl.scopes(), "its scope runs")
    shown = systemctl.show(scope, "Slice", "MemoryMax")
    assert shown == {"Slice": "gpu.slice", "MemoryMax": str(512 << 20)}
    assert slurms("squeue", "-h", "-o", "%i %T %b") == f"{number} RUNNING gres/gpu=1"
    slurms("scancel", number)
    assert scope not in systemctl.scopes()
    ended = f"{number}|CANCELLED by {os.geteuid()}|0:15"
    assert slurms("sacct", "-nP", "-j", number, "-o", "JobID,State,ExitCode") == ended
