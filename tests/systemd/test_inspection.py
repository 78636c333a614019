"""What systemd's own tools show of slicer's jobs."""

from __future__ import annotations

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

SIM = {"SLICER_SIM": "4x24G", "COLUMNS": "200", "SYSTEMD_COLORS": "0"}


def test_eight_jobs_are_told_apart_by_what_systemctl_shows(slicer: Slicer) -> None:  # K6
    gate = slicer.gate()
    whole = [slicer.hold(gate, "-p", "gpu", "--name", f"train-{n}", env=SIM) for n in range(2)]
    shared = [slicer.hold(gate, "--vram", "7G", "--name", f"infer-{n}", env=SIM) for n in range(6)]
    listed = systemctl.output("systemctl", "list-units", "--full", "--plain", "--no-legend", "slicer-*.scope")
    units = {line.split(None, 4)[0]: line.split(None, 4)[4] for line in listed.splitlines()}
    told = [f"train-{n} (1 GPU, profile gpu)" for n in range(2)]
    told += [f"infer-{n} (7G on 1 GPU, profile gpu)" for n in range(6)]
    assert sorted(units.values()) == sorted(told)
    # In the tree each scope has the keeper, which says the same, and the job's own processes.
    for tree in (
        systemctl.output("systemctl", "status", "--no-pager", "--full", "gpu.slice"),
        systemctl.output("systemd-cgls", "--no-pager", "--full", "--unit", "gpu.slice"),
    ):
        for unit, description in units.items():
            below = tree.partition(unit)[2].partition("slicer-")[0]
            assert f"slicer: {description}" in below, tree
            assert str(gate) in below, tree
        assert tree.count("slicer run") == 0, tree  # no process repeats what another says
    for unit in units:
        assert "man:slicer(1)" in systemctl.show(unit, "Documentation")["Documentation"]
    gate.open()
    for job in (*whole, *shared):
        assert job.end().code == 0
