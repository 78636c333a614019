"""Who goes first, by example: priority, who is overdue, then waiting time, length and size."""

from __future__ import annotations

import pytest

from slicer.model import Request
from slicer.placement.devices import Device
from slicer.placement.order import in_order, overdue_after_s
from slicer.placement.settings import Policy
from tests.unit import made_up

NOW_S = 1_000_000.0
EIGHT = tuple(Device(uuid, 80_000, 0, {}, 0, ()) for uuid in "abcdefgh")
H = 3600.0


def wants(
    job: str, gpus: int = 1, vram_mib: int | None = 8000, waited_s: float = 60.0, est_s: float | None = None,
    priority: int = 0,
) -> Request:  # fmt: skip
    return made_up.request(
        job, gpus=gpus, vram_mib=vram_mib if gpus else None, arrived_s=NOW_S - waited_s, est_s=est_s,
        priority=priority,
    )  # fmt: skip


def order(*queue: Request, policy: Policy | None = None) -> str:
    return "".join(each.job for each in in_order(queue, EIGHT, policy or Policy(), NOW_S))


# X4
@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ((wants("a", waited_s=60), wants("b", waited_s=90)), "ba"),  # of equals the first to arrive
        ((wants("a", waited_s=90), wants("b", est_s=600.0)), "ba"),  # short before long
        ((wants("a", waited_s=90), wants("b", est_s=6000.0)), "ab"),  # unknown: half an hour
        ((wants("a", waited_s=90), wants("b", vram_mib=16_000)), "ba"),  # large before small
        ((wants("a", waited_s=90), wants("b", gpus=2)), "ba"),
        ((wants("a", vram_mib=79_000, waited_s=90), wants("b", vram_mib=None)), "ab"),  # whole: all of one
        ((wants("a", waited_s=3 * H, est_s=6000.0), wants("b", est_s=600.0)), "ab"),  # who waits rises
        ((wants("a", est_s=6000.0, priority=1), wants("b", gpus=8, est_s=1.0)), "ab"),
        # the overdue ones first, by arrival: after 4 h for half of the GPUs, after 24 h for one
        ((wants("a", gpus=4, waited_s=5 * H, est_s=9e5), wants("b", est_s=1.0, waited_s=10 * H)), "ab"),
        ((wants("a", gpus=4, waited_s=3 * H, est_s=9e5), wants("b", est_s=1.0, waited_s=10 * H)), "ba"),
        ((wants("a", gpus=8, waited_s=5 * H), wants("b", waited_s=25 * H, est_s=9e5)), "ba"),
        # without GPUs: the place by arrival
        ((wants("a", gpus=0, waited_s=90), wants("b", est_s=1.0)), "ab"),
        ((wants("a", waited_s=90), wants("b", gpus=0, waited_s=80), wants("c", est_s=1.0)), "cba"),
    ],
)
def test_the_order(queue: tuple[Request, ...], expected: str) -> None:
    assert order(*queue) == expected
    assert order(*queue[::-1]) == expected


# X4
def test_by_arrival_if_the_configuration_says_so() -> None:
    queue = wants("a", waited_s=90), wants("b", est_s=1.0, gpus=8)
    assert order(*queue) == "ba"
    assert order(*queue, policy=Policy(by_arrival=True)) == "ab"


# X4
@pytest.mark.parametrize(
    ("gpus", "policy", "expected"),
    [
        (8, Policy(), 4 * H),
        (4, Policy(), 4 * H),
        (2, Policy(), 16 * H),
        (1, Policy(), 24 * H),
        (4, Policy(mean_job_s=1800.0), 5 * H),  # ten mean lengths
        (4, Policy(mean_job_s=1.0), 300.0),
        (4, Policy(mean_job_s=9e9), 12 * H),
        (2, Policy(mean_job_s=1800.0), 20 * H),
        (0, Policy(mean_job_s=1800.0), 300.0),
        (1, Policy(mean_job_s=1800.0, reserve_after_s=7.0), 7.0),  # configured: for all alike
        (0, Policy(reserve_after_s=7.0), 7.0),
    ],
)
def test_wide_requests_are_overdue_sooner(gpus: int, policy: Policy, expected: float) -> None:
    assert overdue_after_s(wants("a", gpus=gpus), 8, policy) == expected
