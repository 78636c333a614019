"""A frozen job that must end is thawed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slicer.job import pause
from tests.unit import made_up


@pytest.mark.parametrize("is_to_freeze", [True, False])
def test_a_job_that_thaws_for_an_instant_is_frozen_all_the_same(
    monkeypatch: pytest.MonkeyPatch, is_to_freeze: bool
) -> None:  # X6
    """The kernel thaws a cgroup for an instant when a process in it ends."""
    thawed = []
    monkeypatch.setattr("slicer.kernel.cgroup.is_frozen", lambda _: False)
    monkeypatch.setattr("slicer.kernel.cgroup.is_to_freeze", lambda _: is_to_freeze)
    monkeypatch.setattr(pause, "thaw", thawed.append)
    ledger = SimpleNamespace(directory=SimpleNamespace(leases=SimpleNamespace(has=lambda _: False)))
    lease = made_up.lease("0123456789ab", cgroup="/cpu.slice/slicer-0123456789ab.scope")
    assert pause.thaw_to_end(lease, ledger) == is_to_freeze
    assert thawed == [lease] * is_to_freeze
