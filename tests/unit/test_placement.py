"""Who gets what: never more than there is, in order, and nobody starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.model import Lease, Request, Ticket
from slicer.placement import (
    Busy,
    Granted,
    Infeasible,
    Inventory,
    decide,
    expected_remaining,
    first_to_finish,
    free,
)
from slicer.record import replace

GPUS = ("GPU-a", "GPU-b", "GPU-c")


def request(gpus: int = 0, cpu_slots: int = 0, job: str = "me") -> Request:
    return Request(job, "", ("true",), gpus, cpu_slots, None)


def lease(
    job: str = "x",
    gpus: tuple[str, ...] = (),
    cpu_slots: int = 0,
    since: float = 0,
    expect: float | None = None,
) -> Lease:
    return Lease(job, job, "", 1, 1, 0, "", 0, "plain", "system", "", "", gpus, cpu_slots, since, expect)


def ticket(gpus: int = 0, cpu_slots: int = 0, job: str = "t", arrived: float = 0) -> Ticket:
    return Ticket(job, job, "", 1, 1, "", 0, 0, arrived, gpus, cpu_slots, None)


HELD_A = lease("a", ("GPU-a",))
HELD_B = lease("b", ("GPU-b",))
HELD_SLOT = lease("s", (), 1)


@pytest.mark.parametrize(
    ("wanted", "inventory", "leases", "ahead", "expected"),
    [
        # nothing asked for is always there
        (request(), Inventory((), 1), (HELD_SLOT,), (ticket(0, 1),), Granted((), 0)),
        (request(1), Inventory(GPUS, 1), (), (), Granted(("GPU-a",), 0)),
        (request(2), Inventory(GPUS, 1), (HELD_A,), (), Granted(("GPU-b", "GPU-c"), 0)),
        (request(3), Inventory(GPUS, 1), (HELD_A,), (), Busy("gpu", (HELD_A,), 0)),
        (request(1), Inventory(GPUS[:1], 1), (HELD_A, HELD_SLOT), (), Busy("gpu", (HELD_A,), 0)),
        (request(0, 1), Inventory((), 1), (HELD_SLOT,), (), Busy("cpu", (HELD_SLOT,), 0)),
        (request(0, 1), Inventory((), 2), (HELD_SLOT,), (), Granted((), 1)),
        # all or nothing
        (request(1, 1), Inventory(GPUS, 1), (HELD_SLOT,), (), Busy("cpu", (HELD_SLOT,), 0)),
        # infeasible is said at once, whatever is held
        (request(4), Inventory(GPUS, 1), (HELD_A,), (), Infeasible("gpu", 4, 3)),
        (request(1), Inventory((), 1), (), (), Infeasible("gpu", 1, 0)),
        (request(0, 3), Inventory(GPUS, 2), (HELD_SLOT,), (), Infeasible("cpu", 3, 2)),
        # a ticket ahead that fits takes its share first
        (request(1), Inventory(GPUS[:2], 1), (), (ticket(1),), Granted(("GPU-b",), 0)),
        (request(1), Inventory(GPUS[:1], 1), (), (ticket(1),), Busy("gpu", (), 1)),
        (request(0, 1), Inventory((), 1), (), (ticket(0, 1),), Busy("cpu", (), 1)),
        # a blocked big ticket keeps what is free: a small one behind it cannot starve it
        (request(1), Inventory(GPUS, 1), (HELD_A,), (ticket(3),), Busy("gpu", (HELD_A,), 1)),
        (request(0, 1), Inventory((), 3), (HELD_SLOT,), (ticket(0, 3),), Busy("cpu", (HELD_SLOT,), 1)),
        # other kinds pass it by
        (request(0, 1), Inventory(GPUS, 1), (HELD_A,), (ticket(3),), Granted((), 1)),
        (request(1), Inventory(GPUS, 1), (HELD_SLOT,), (ticket(0, 1),), Granted(("GPU-a",), 0)),
        # a ticket blocked for one kind keeps the other kind that it wants, too
        (request(1), Inventory(GPUS, 1), (HELD_SLOT,), (ticket(1, 1),), Busy("gpu", (), 1)),
        # a lease on a GPU that is no longer there takes nothing from the others
        (request(1), Inventory(GPUS[1:], 1), (HELD_A,), (), Granted(("GPU-b",), 0)),
        # fewer slots than are held (the setting was lowered)
        (request(0, 1), Inventory((), 1), (HELD_SLOT, HELD_SLOT), (), Busy("cpu", (HELD_SLOT, HELD_SLOT), 0)),
    ],
)  # fmt: skip
def test_decisions(
    wanted: Request,
    inventory: Inventory,
    leases: tuple[Lease, ...],
    ahead: tuple[Ticket, ...],
    expected: object,
) -> None:
    assert decide(wanted, inventory, leases, ahead) == expected
    assert decide(wanted, inventory, leases, ahead) == expected  # the same answer for the same question


COUNTS = st.integers(0, 4)
TICKETS = st.lists(st.builds(ticket, COUNTS, COUNTS), max_size=6).map(tuple)
INVENTORIES = st.builds(lambda gpus, slots: Inventory(GPUS[:gpus], slots), st.integers(0, 3), COUNTS)


def play(inventory: Inventory, wanted: list[tuple[int, int]], leave: list[bool]) -> list[int]:
    """Let requests queue up and be served as the ledger does it; the order in which they got their leases."""
    queue = [
        ticket(gpus, slots, str(number), number)
        for number, (gpus, slots) in enumerate(wanted)
        if not isinstance(decide(request(gpus, slots), inventory, (), ()), Infeasible)
    ]
    held: list[Lease] = []
    served: list[int] = []
    leaving = iter(leave)
    while queue:
        for position, waiting in enumerate(queue):
            asked = request(waiting.gpus, waiting.cpu_slots, waiting.job)
            found = decide(asked, inventory, tuple(held), tuple(queue[:position]))
            if isinstance(found, Granted):
                held.append(lease(waiting.job, found.gpus, found.cpu_slots))
                assert_not_over_committed(inventory, held)
                served.append(int(waiting.job))
                del queue[position]
                break
        else:
            assert held, "all is free, yet nobody is served"
            del held[0 if next(leaving, True) else -1]
    return served


def assert_not_over_committed(inventory: Inventory, held: list[Lease]) -> None:
    taken = [gpu for each in held for gpu in each.gpus]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(inventory.gpus)
    assert sum(each.cpu_slots for each in held) <= inventory.cpu_slots


# A1, A6
@given(INVENTORIES, st.lists(st.tuples(COUNTS, COUNTS), max_size=12), st.lists(st.booleans()))
def test_never_over_commits_and_serves_everybody(
    inventory: Inventory, wanted: list[tuple[int, int]], leave: list[bool]
) -> None:
    served = play(inventory, wanted, leave)
    feasible = [
        n
        for n, (gpus, slots) in enumerate(wanted)
        if gpus <= len(inventory.gpus) and slots <= inventory.cpu_slots
    ]
    assert sorted(served) == feasible


# X4
@given(INVENTORIES, st.lists(COUNTS, max_size=12), st.lists(st.booleans()), st.booleans())
def test_those_who_want_the_same_kind_are_served_in_their_order(
    inventory: Inventory, wanted: list[int], leave: list[bool], gpu: bool
) -> None:
    served = play(inventory, [(n, 0) if gpu else (0, n) for n in wanted if n], leave)
    assert served == sorted(served)


@given(INVENTORIES, TICKETS, COUNTS, COUNTS)
def test_a_grant_leaves_to_those_ahead_what_they_could_take(
    inventory: Inventory, ahead: tuple[Ticket, ...], gpus: int, slots: int
) -> None:
    found = decide(request(gpus, slots), inventory, (), ahead)
    if not isinstance(found, Granted):
        return
    mine = lease("me", found.gpus, found.cpu_slots)
    for position, waiting in enumerate(ahead):
        asked = request(waiting.gpus, waiting.cpu_slots, waiting.job)
        before = decide(asked, inventory, (), ahead[:position])
        after = decide(asked, inventory, (mine,), ahead[:position])
        assert isinstance(after, Granted) == isinstance(before, Granted)


def test_free_counts_what_no_lease_holds() -> None:
    assert free(Inventory(GPUS, 3), [HELD_A, HELD_SLOT]) == (("GPU-b", "GPU-c"), 2)
    assert free(Inventory((), 1), [HELD_SLOT, HELD_SLOT]) == ((), 0)


# B2
@pytest.mark.parametrize(("expect", "now", "left"), [(None, 5, None), (10, 12, 8), (10, 20, 0), (10, 99, 0)])
def test_the_expected_rest_is_never_negative(expect: float | None, now: float, left: float | None) -> None:
    assert expected_remaining(lease(since=10, expect=expect), now) == left


# B2
def test_the_holder_named_is_the_first_to_finish_else_the_longest() -> None:
    late, soon = lease("late", since=0, expect=100), lease("soon", since=5, expect=10)
    old, young = lease("old", since=1), lease("young", since=2)
    assert first_to_finish((late, old, soon, young), 6) == soon
    assert first_to_finish((young, old), 6) == old
    assert first_to_finish((), 6) is None
    assert first_to_finish((replace(late, expect_s=1.0), soon), 6) == replace(late, expect_s=1.0)
