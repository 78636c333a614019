"""The GPUs of this machine as the queue sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.placement.settings import Policy
from slicer.queue.engine.local.gpus import Gpus
from slicer.queue.model import QueueOptions


@pytest.mark.parametrize(("chosen", "largest_mib"), [((), 80 << 10), (("0",), 24 << 10)])
def test_the_largest_is_known_before_the_first_look(
    chosen: tuple[str, ...], largest_mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # E9
    """A job may run out of GPU memory at once, and then declares more all the same."""
    monkeypatch.setenv("SLICER_SIM", "1x24G,1x80G")
    monkeypatch.setenv("SLICER_STATE_DIR", str(tmp_path))
    assert Gpus(Policy(), QueueOptions("jobs.txt", "logs", gpus=chosen)).largest_mib() == largest_mib
