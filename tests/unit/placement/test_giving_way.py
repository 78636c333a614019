"""Which jobs give way: by example, and whatever waits for whatever."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.model import PREEMPTIBLE, Lease, Ticket
from slicer.placement.capacity import is_eligible
from slicer.placement.decision import Book, decide
from slicer.placement.devices import Device, without
from slicer.placement.forecast import start_times
from slicer.placement.giving_way import asked, least_run_s
from slicer.placement.settings import Policy
from slicer.record import replace
from tests.examples import examples
from tests.unit import made_up
from tests.unit.placement.test_decision_properties import NOW_S, POLICY, situations

MIN_RUN_S = 97.0  # two of a situation's leases are too young for that


def device(uuid: str, **used_by: int) -> Device:
    return Device(uuid, 8000, sum(used_by.values()), used_by, 0, ())


def gives_way(job: str, gpus: str, since_s: float, **fields: object) -> Lease:
    more = {"min_run_s": 10.0, "priority": PREEMPTIBLE, **fields}
    return made_up.lease(job, gpus=tuple(gpus), since_s=since_s, **more)


def waits(job: str = "w", gpus: int = 1, **fields: object) -> Ticket:
    return made_up.ticket(job, name=f"name of {job}", gpus=gpus, arrived_s=NOW_S - 1, **fields)


def book(queue: list[Ticket], gpus: str, *leases: Lease, policy: Policy = POLICY) -> Book:
    return Book(queue, tuple(map(device, gpus)), leases, policy, NOW_S)


OLD, YOUNG = gives_way("old", "a", 100.0), gives_way("young", "b", 900.0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (book([waits()], "ab", OLD, YOUNG), "young"),  # it loses least
        (book([waits(gpu_choice=("a",))], "ab", OLD, YOUNG), "old"),
        (book([waits(gpus=2)], "ab", OLD, YOUNG), "old young"),
        (book([waits(gpus=2)], "abc", OLD, YOUNG), "young"),
        (book([waits()], "abc", OLD, YOUNG), ""),  # one is free
        (book([waits(gpus=3)], "ab", OLD, YOUNG), ""),  # in vain
        (book([waits(gpus=2)], "ab", OLD, made_up.lease("other", gpus=("b",))), ""),
        (book([waits(priority=PREEMPTIBLE)], "a", OLD), ""),
        (book([waits(inside=("old",))], "a", OLD), ""),  # it waits inside that job
        (book([waits()], "a", replace(OLD, since_s=NOW_S - 9)), ""),  # it has just begun
        (book([waits()], "a", replace(OLD, min_run_s=None)), ""),
        (book([waits("v"), waits()], "ab", replace(OLD, gives_way_by_s=NOW_S + 9), YOUNG), "young"),
        (book([waits()], "ab", replace(OLD, gives_way_by_s=NOW_S + 9), YOUNG), ""),  # one does already
        (book([waits()], "ab", replace(OLD, gives_way_by_s=NOW_S - 90), YOUNG), "young"),  # it cannot
        # It should begin within a minute, or not before.
        (book([waits()], "ab", made_up.lease("x", gpus=("a",), since_s=950.0, est_s=100.0), YOUNG), ""),
        (book([waits()], "ab", made_up.lease("x", gpus=("a",), since_s=950.0, est_s=200.0), YOUNG), "young"),
        # Parts of GPUs: the fewest jobs, and no more of a GPU than is wanted.
        (
            book(
                [waits(vram_mib=4000)], "a", gives_way("p", "a", 900.0, vram_mib=2000),
                gives_way("q", "a", 800.0, vram_mib=4000), gives_way("r", "a", 700.0, vram_mib=2000),
            ),
            "q",
        ),
        # What is not of GPUs: a slot.
        (
            book([waits(gpus=0, cpu_slots=1, cpu_limit=1)], "", gives_way("s", "", 100.0, slots={"cpu": 1})),
            "s",
        ),
        (book([waits()], "a", OLD, policy=replace(POLICY, stall="the machine stalls")), ""),
    ],
)  # fmt: skip
def test_the_fewest_give_way_that_lose_least(found: Book, expected: str) -> None:  # U8
    assert " ".join(sorted(asked(found))) == expected


def test_who_would_not_notice_is_not_asked() -> None:  # U8
    assert set(asked(book([waits()], "ab", OLD, YOUNG), {"young"})) == {"old"}


def test_two_that_wait_are_served_one_after_the_other() -> None:  # U8
    first = asked(book([waits("v"), waits("w")], "ab", OLD, YOUNG))
    assert {job: ticket.job for job, ticket in first.items()} == {"young": "v"}
    marked = replace(YOUNG, gives_way_by_s=NOW_S + 5.0)
    then = asked(book([waits("v"), waits("w")], "ab", OLD, marked))
    assert {job: ticket.job for job, ticket in then.items()} == {"old": "w"}
    assert not asked(book([waits("v")], "ab", OLD, marked))  # the other has left, and no second one is asked


def test_who_gave_way_does_not_begin_before_all_have_that_make_room_with_it() -> None:  # U8, P2
    again = waits("old", priority=PREEMPTIBLE)
    wide = waits(gpus=2)
    assert not book([wide, again], "ab", YOUNG).verdict.grants  # whether or not that one gives way already
    assert list(book([wide, again], "ab").verdict.grants) == ["w"]
    other = made_up.lease("other", gpus=("b",))
    assert list(book([wide, again], "ab", other).verdict.grants) == ["old"]  # for that it would wait in vain
    assert list(book([waits(), again], "abc", YOUNG).verdict.grants) == ["w", "old"]


def test_a_crowded_machine_is_asked_for_no_more_than_it_takes() -> None:  # U8
    crowd = [gives_way(f"{gpu}{n}", gpu, 100.0 + n, vram_mib=1000) for gpu in "abcdefgh" for n in range(8)]
    found = asked(book([waits(gpus=2)], "abcdefgh", *crowd))
    assert len(found) == 16
    assert len({job[0] for job in found}) == 2


# U8: Slurm's PreemptExemptTime, which grows here
def test_a_job_that_gave_way_often_runs_longer_before() -> None:
    assert [least_run_s(600.0, times) for times in (0, 4, 5, 9, 10)] == [600.0, 600.0, 1200.0, 1200.0, 2400.0]
    assert least_run_s(600.0, 10**6) < 1e12


@st.composite
def books(draw: st.DrawFn) -> Book:
    """A situation in which some jobs give way, and some do so already."""
    queue, gpus, held = draw(situations())
    leases = []
    for lease in held:
        by_s = draw(st.sampled_from([None, None, None, NOW_S + 5.0]))
        words = {"min_run_s": MIN_RUN_S, "priority": PREEMPTIBLE, "gives_way_by_s": by_s}
        leases.append(replace(lease, **words) if draw(st.booleans()) or by_s else lease)
    jobs = [lease.job for lease in leases]
    tickets = [
        made_up.ticket(
            each.job, gpus=each.gpus, gpu_choice=each.gpu_choice, vram_mib=each.vram_mib,
            margin_mib=each.margin_mib, slots=each.slots, slot_limits=each.slot_limits,
            arrived_s=each.arrived_s, priority=draw(st.sampled_from([0, 0, 0, PREEMPTIBLE])),
            inside=(draw(st.sampled_from(jobs)),) if jobs and draw(st.integers(0, 5)) == 0 else (),
        )
        for each in queue
    ]  # fmt: skip
    return Book(tickets, gpus, tuple(leases), POLICY, NOW_S)


def in_its_way(lease: Lease, ticket: Ticket) -> bool:
    """Whether it holds what the ticket wants. (The end of others might help in roundabout ways.)"""
    takes = ticket.gpus > 0 and any(is_eligible(ticket, uuid) for uuid in lease.gpus)
    return takes or not ticket.slots.keys().isdisjoint(lease.slots)


def gets_it(found: Book, ticket: Ticket, gone: set[str]) -> bool:
    left = tuple(lease for lease in found.leases if lease.job not in gone)
    gpus = tuple(without(each, gone) for each in found.devices or ())
    return ticket.job in decide(found.queue, gpus, left, found.policy, found.now_s).grants


@settings(deadline=None, max_examples=examples(300))
@given(books())
def test_none_gives_way_in_vain_too_early_or_beside_those_that_are_enough(found: Book) -> None:  # U8
    chosen = asked(found)
    going = {lease.job for lease in found.leases if lease.gives_way_by_s is not None}
    if not chosen:
        return
    (ticket,) = {each.job: each for each in chosen.values()}.values()
    assert not gets_it(found, ticket, going)
    assert gets_it(found, ticket, going | chosen.keys())
    for count in range(len(chosen)):  # a smaller choice would not do
        for fewer in combinations(sorted(chosen), count):
            assert not gets_it(found, ticket, going | {*fewer})
    for lease in (each for each in found.leases if each.job in chosen):
        assert lease.min_run_s is not None
        assert NOW_S - lease.since_s >= lease.min_run_s
        assert lease.priority < ticket.priority
        assert lease.job not in {*going, *ticket.inside}
        assert in_its_way(lease, ticket)
    begins_s = start_times(_after(found, going))[ticket.job]
    assert begins_s is None or begins_s > 60


def _after(found: Book, gone: set[str]) -> Book:
    left = tuple(lease for lease in found.leases if lease.job not in gone)
    gpus = tuple(without(each, gone) for each in found.devices or ())
    return Book(found.queue, gpus, left, found.policy, found.now_s)


@settings(deadline=None, max_examples=examples(300))
@given(books())
def test_the_first_that_can_be_helped_is_helped_by_the_smallest_choice(found: Book) -> None:  # U8
    chosen = asked(found)
    going = {lease.job for lease in found.leases if lease.gives_way_by_s is not None}
    able = [
        each for each in found.leases
        if each.job not in going and each.min_run_s and NOW_S - each.since_s >= each.min_run_s
    ]  # fmt: skip
    begin = start_times(_after(found, going))
    for ticket in found.queue:
        mine = [each.job for each in able if each.priority < ticket.priority and in_its_way(each, ticket)]
        mine = [job for job in mine if job not in ticket.inside]
        soon = begin[ticket.job]
        if not mine or gets_it(found, ticket, going) or (soon is not None and soon <= 60):
            continue
        sizes = [
            count for count in range(1, len(mine) + 1) for some in combinations(mine, count)
            if gets_it(found, ticket, going | {*some})
        ]  # fmt: skip
        if sizes and gets_it(found, ticket, going | {*mine}):
            assert {each.job for each in chosen.values()} == {ticket.job}
            assert len(chosen) == min(sizes)
            return
    assert not chosen
