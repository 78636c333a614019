"""Jobs inside of other jobs: whose turn it is among others' requests, and that nobody waits for ever."""

from __future__ import annotations

import pytest

from slicer.broker.rules.order import in_order
from slicer.model import Lease, Ticket
from slicer.placement.decision import Book, decide
from slicer.placement.devices import Device
from slicer.placement.forecast import deadlocked
from slicer.placement.settings import Policy
from tests.unit import made_up

NOW_S = 1000.0
POLICY = Policy(reserve_after_s=50.0)
FOUR = tuple(Device(f"GPU-{name}", 8000, 0, {}, 0, ()) for name in "abcd")
OUTER, MALLORY, BOB = "0" * 12, 1001, 1002


def outer(**fields: object) -> Lease:
    return made_up.lease(OUTER, uid=MALLORY, **fields)


def inner(job: str = "1", **fields: object) -> Ticket:
    return made_up.ticket(job * 12, uid=MALLORY, inside=(OUTER,), **{"arrived_s": 900.0, **fields})


def bobs(**fields: object) -> Ticket:
    return made_up.ticket("b" * 12, uid=BOB, **{"arrived_s": 100.0, **fields})


@pytest.mark.parametrize(
    ("held", "wants", "others"),
    [
        ({"slots": {"extra": 1}}, {"slots": {"cpu": 1}}, {"slots": {"cpu": 1}}),
        ({"slots": {"extra": 1}}, {"gpus": 1}, {"gpus": 4}),
        ({"gpus": ("GPU-a",)}, {"gpus": 1}, {"gpus": 1}),
        ({"gpus": ("GPU-a",)}, {"gpus": 1}, {"gpus": 3}),
        ({"slots": {"cpu": 1}}, {"slots": {"cpu": 1}}, {"slots": {"cpu": 3}}),
    ],
)
def test_an_inner_job_goes_ahead_of_nobody_who_need_not_wait_for_it(
    held: dict[str, object], wants: dict[str, object], others: dict[str, object]
) -> None:  # L3, S18
    queue = (bobs(**others), inner(**wants), inner("2", **wants))
    assert in_order(queue, FOUR, (outer(**held),), POLICY, NOW_S) == queue


@pytest.mark.parametrize(
    ("held", "wants", "others"),
    [
        ({"gpus": ("GPU-a",)}, {"gpus": 1}, {"gpus": 4}),
        ({"slots": {"extra": 1}}, {"slots": {"cpu": 4}}, {"slots": {"cpu": 4, "extra": 4}}),
        ({"slots": {"cpu": 1}}, {"slots": {"cpu": 1}}, {"slots": {"cpu": 4}}),
    ],
)
def test_who_waits_for_an_outer_job_anyway_steps_behind_the_inner_one(
    held: dict[str, object], wants: dict[str, object], others: dict[str, object]
) -> None:  # L3, S18
    """Else its reservation would keep from the inner one what that needs, and neither would ever go."""
    late, first, mine = bobs(**others), made_up.ticket("c" * 12, uid=1003, slots={"x": 1}), inner(**wants)
    leases = (outer(**held),)
    queue = in_order((late, first, mine), FOUR, leases, POLICY, NOW_S)
    assert queue == (first, mine, late), "and nobody else moves"
    assert mine.job in decide(queue, FOUR, leases, POLICY, NOW_S).grants
    assert deadlocked(mine, queue, Book(queue, FOUR, leases, POLICY, NOW_S)) == ()


def test_two_outer_jobs_of_which_either_is_enough() -> None:  # L3, S18
    """Beside one of them it could be served, beside both it cannot."""
    second = made_up.lease("5" * 12, uid=1003, gpus=("GPU-b",))
    other = made_up.ticket("6" * 12, uid=1003, inside=(second.job,), gpus=2, arrived_s=950.0)
    three, mine = bobs(gpus=3), inner(gpus=2)
    leases = (outer(gpus=("GPU-a",)), second)
    assert in_order((three, mine, other), FOUR, leases, POLICY, NOW_S) == (mine, other, three)
