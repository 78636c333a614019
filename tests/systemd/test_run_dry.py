"""``slicer run --dry-run`` beside a job in a real scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


def test_a_dry_run_asks_systemd_for_nothing(slicer: Slicer) -> None:
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy", "--name", "first")
    before = systemctl.scopes()
    out = slicer.command(
        "run", "--dry-run", "-p", "heavy", "--timeout", "90", "--", "touch", "/tmp/ran"
    ).stdout
    assert "\nunit       slicer-<id>.scope in cpu.slice\n" in out
    lease = job.lease()
    assert f"\nlease      1 CPU slot: busy: a CPU slot, held by first (pid {lease.pid}, {lease.unit}, " in out
    assert "\nbackend    systemd, the system manager\n" in out
    assert systemctl.scopes() == before
    assert not Path("/tmp/ran").exists()
    gate.open()
    job.end()
