"""From what is needed to what the ledger is asked."""

from __future__ import annotations

import pytest

from slicer.gpu.observer import GpuObserver
from slicer.ledger import leasing
from slicer.ledger.leasing import Needs, Requester
from slicer.model import PRIORITY_MAX
from tests.unit import made_up

NEEDS = Needs(
    gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, slots={"cpu": 1}, slot_limits={"cpu": 2},
    priority=3, expect_s=None, limit_s=None, wait=True, max_wait_s=None, then=None, plain_lock="",
)  # fmt: skip


# D5, A3
@pytest.mark.parametrize(
    ("held", "priority"),
    [((), 3), (({},), 3), (({"cpu_slots": 1},), PRIORITY_MAX), (({}, {"gpus": ("GPU-a",)}), PRIORITY_MAX)],
)
def test_only_a_job_inside_one_that_holds_something_goes_ahead_of_all(
    held: tuple[dict[str, object], ...], priority: int
) -> None:
    """A stream of jobs inside a job that holds nothing would starve everybody else."""
    around = tuple(made_up.lease("0123456789ab", **{"cpu_slots": 0, **fields}) for fields in held)
    who = Requester("ba9876543210", "", "true", "plain", "user", "", around)
    assert leasing.prepare(who, NEEDS, GpuObserver()).ticket.priority == priority
