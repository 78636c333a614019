"""Caps are never exceeded, nothing is given twice because of them, and no user starves. L3"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicer.broker.rules.allowance import Allowance, Holdings, over, taken
from slicer.broker.rules.order import ordered
from slicer.broker.rules.policy import NO_CAP, Caps, SitePolicy, Together
from slicer.broker.rules.shares import Past, Shares, decayed, held, shares_of
from slicer.model import Lease, Ticket
from slicer.placement.decision import decide
from slicer.placement.devices import Device
from slicer.placement.settings import Policy as Settings
from tests.examples import examples
from tests.unit import made_up

UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # several tests share a CPU
AFTER_S = 50.0
SETTINGS = Settings(reserve_after_s=AFTER_S)
USERS = (1001, 1002, 1003)
NOW_S = 1000.0

CAPS = st.builds(
    Caps,
    max_gpus=st.sampled_from([None, 0, 1, 2, NO_CAP]),
    max_vram_mib=st.sampled_from([None, 4000, 9000, 16000]),
    max_cpu_slots=st.sampled_from([None, 1, 2]),
)
TOGETHER = st.builds(
    Together,
    name=st.just("lab"),
    max_gpus=st.sampled_from([None, 0, 1, 2, 3, NO_CAP]),
    max_vram_mib=st.sampled_from([None, 4000, 9000, 16000]),
    max_cpu_slots=st.sampled_from([None, 1, 2]),
)
POLICIES = st.builds(
    SitePolicy,
    default=CAPS,
    users=st.dictionaries(st.sampled_from(USERS), CAPS, max_size=2),
    groups=st.dictionaries(st.sampled_from([100, 101]), CAPS, max_size=2),
    weights=st.dictionaries(st.sampled_from([100, 101]), st.sampled_from([0.5, 2.0])),
    user_weights=st.just({}),
    together=st.dictionaries(st.sampled_from([100, 101]), TOGETHER, max_size=2),
)
GIDS = st.fixed_dictionaries({uid: st.sampled_from([(100,), (101, 100), (102,)]) for uid in USERS})
WANTED = st.fixed_dictionaries(
    {
        "uid": st.sampled_from(USERS),
        "gpus": st.sampled_from([0, 1, 1, 1, 2, 3]),
        "gpu_choice": st.sampled_from([(), (), (), UUIDS[1:3]]),
        "vram_mib": st.sampled_from([None, None, 900, 3500, 7000]),
        "cpu_slots": st.sampled_from([0, 0, 1, 2]),
        "priority": st.sampled_from([0, 0, 0, 5]),
    }
)


def machine(*sizes_mib: int) -> tuple[Device, ...]:
    return tuple(Device(uuid, mib, 0, {}, 0, ()) for uuid, mib in zip(UUIDS, sizes_mib, strict=False))


MACHINES = st.lists(st.sampled_from([4000, 8000, 8000]), min_size=1, max_size=4).map(
    lambda sizes_mib: machine(*sizes_mib)
)


@st.composite
def queues(draw: st.DrawFn) -> list[Ticket]:
    """Requests in the order of their arrival; the first of them have waited for too long."""
    wanted = draw(st.lists(WANTED, max_size=10))
    old = draw(st.integers(0, len(wanted)))
    ago_s = [100.0 if number < old else 10.0 for number in range(len(wanted))]
    return [
        made_up.ticket(f"{number:012x}", **each, arrived_s=NOW_S - ago_s[number] + number / 1000)
        for number, each in enumerate(wanted)
    ]


def become(ticket: Ticket, gpus: tuple[str, ...], since_s: float) -> Lease:
    """The lease of a request that was granted."""
    return made_up.lease(
        ticket.job, uid=ticket.uid, gpus=gpus, vram_mib=ticket.vram_mib if gpus else None, slots=ticket.slots,
        since_s=since_s,
    )  # fmt: skip


@settings(LOADED, max_examples=examples(300))
@given(queues(), MACHINES, POLICIES, GIDS)
def test_no_cap_is_exceeded_and_what_nobody_caps_is_given_as_ever(
    queue: list[Ticket], devices: tuple[Device, ...], policy: SitePolicy, gids: dict[int, tuple[int, ...]]
) -> None:  # L3
    allowance = Allowance(policy, gids)
    leases: tuple[Lease, ...] = ()
    for _round in range(3):  # decisions upon what decisions have given
        grants = decide(queue, devices, leases, SETTINGS, NOW_S, allowance).grants
        by_job = {each.job: each for each in queue}
        leases += tuple(become(by_job[job], gpus, NOW_S) for job, gpus in grants.items())
        queue = [each for each in queue if each.job not in grants]
        held = taken(leases, devices)
        for uid in held:
            for bound in allowance.bounds(uid):
                has = allowance.held(bound.whose, held)
                assert over(bound.rules, Holdings(), has) == "", (bound, has)
    free = SitePolicy(Caps(), {}, {}, {}, {})
    assert decide(queue, devices, leases, SETTINGS, NOW_S, Allowance(free, gids)) == decide(
        queue, devices, leases, SETTINGS, NOW_S
    )


@settings(LOADED, max_examples=examples(200))
@given(queues(), MACHINES, POLICIES, GIDS)
def test_a_request_over_its_users_cap_keeps_nothing_from_other_users(
    queue: list[Ticket], devices: tuple[Device, ...], policy: SitePolicy, gids: dict[int, tuple[int, ...]]
) -> None:  # L3
    allowance = Allowance(policy, gids)
    balance = allowance.balance((), devices)
    capped = {each.uid for each in queue if balance.within(each) is None}
    barred = [each for each in queue if each.uid not in capped or balance.within(each) is not None]
    bound = {each.whose for uid in capped for each in allowance.bounds(uid)}
    others = {uid for uid in USERS if not bound.intersection(each.whose for each in allowance.bounds(uid))}
    mine = {each.job for each in queue if each.uid in others}
    with_them = decide(queue, devices, (), SETTINGS, NOW_S, allowance).grants
    without = decide(barred, devices, (), SETTINGS, NOW_S, allowance).grants
    # Those of the capped users that remain may get more without them; so only what is left to others counts.
    if not any(each.uid in capped for each in barred):
        found = {job: gpus for job, gpus in without.items() if job in mine}
        assert {job: gpus for job, gpus in with_them.items() if job in mine} == found


SHARES = st.builds(
    Shares,
    used=st.fixed_dictionaries({uid: st.sampled_from([0.0, 10.0, 1e6]) for uid in USERS}),
    weights=st.fixed_dictionaries({uid: st.sampled_from([0.5, 1.0, 4.0]) for uid in USERS}),
    active=st.just(frozenset(USERS)),
    granted_s=st.dictionaries(st.sampled_from(USERS), st.sampled_from([0.0, NOW_S - 5])),
)


@settings(LOADED, max_examples=examples(200))
@given(queues(), SHARES, st.sampled_from([20.0, 1e9]))
def test_the_order_keeps_priorities_arrivals_and_the_places_of_requests_without_gpus(
    queue: list[Ticket], shares: Shares, patience_s: float
) -> None:  # L3, X4
    found = ordered(queue, shares, patience_s, NOW_S)
    assert sorted(each.job for each in found) == sorted(each.job for each in queue)
    assert found == ordered(list(reversed(queue)), shares, patience_s, NOW_S)
    assert [each.priority for each in found] == sorted((each.priority for each in queue), reverse=True)
    by_arrival = sorted(queue, key=lambda each: (-each.priority, each.arrived_s))
    for mine, plain in zip(found, by_arrival, strict=True):
        assert bool(mine.gpus) == bool(plain.gpus)
        assert mine.gpus or mine == plain
    for uid in USERS:  # a user's own requests never pass each other
        own = [each for each in found if each.uid == uid and each.gpus]
        assert own == sorted(own, key=lambda each: (-each.priority, each.arrived_s))
    wishes = {each.job: int(each.job[-1], 16) % 3 for each in queue}
    wished = ordered(queue, shares, patience_s, NOW_S, wishes)
    assert [(each.uid, each.priority, bool(each.gpus)) for each in wished] == [
        (each.uid, each.priority, bool(each.gpus)) for each in found
    ], "nobody's place is another's by it"
    for places in {(each.uid, each.priority, bool(each.gpus)) for each in queue}:
        own = [each for each in wished if (each.uid, each.priority, bool(each.gpus)) == places]
        assert own == sorted(own, key=lambda each: (-wishes[each.job], found.index(each)))
    if patience_s == 1e9:
        ranks = [(-each.priority, shares.rank(each.uid)) for each in found if each.gpus]
        assert ranks == sorted(ranks)


SECONDS = st.floats(0, 1e6, allow_subnormal=False)


@settings(LOADED, max_examples=examples(100))
@given(st.floats(0.1, 8), SECONDS, SECONDS, SECONDS, st.floats(60, 1e7))
def test_use_adds_up_however_it_is_cut(
    rate: float, first_s: float, second_s: float, later_s: float, half_life_s: float
) -> None:  # L3
    cut_s, end_s = first_s, first_s + second_s
    now_s = end_s + later_s
    whole = held(rate, 0.0, end_s, now_s, half_life_s)
    parts = held(rate, 0.0, cut_s, now_s, half_life_s) + held(rate, cut_s, end_s, now_s, half_life_s)
    booked = decayed(held(rate, 0.0, end_s, end_s, half_life_s), later_s, half_life_s)
    assert abs(whole - parts) <= 1e-6 * max(1.0, whole)
    assert abs(whole - booked) <= 1e-6 * max(1.0, whole)
    assert whole <= rate * end_s * (1 + 1e-9)


SMALL = st.tuples(
    st.fixed_dictionaries(
        {"gpus": st.sampled_from([1, 1, 2]), "vram_mib": st.sampled_from([None, None, 900, 3500])}
    ),
    st.integers(2, 20),  # seconds that it runs
)
BIG = st.fixed_dictionaries(
    {"gpus": st.sampled_from([1, 2, 4]), "vram_mib": st.sampled_from([None, None, 7000])}
)
PATIENCE_S = 60.0


@settings(LOADED, max_examples=examples(30))
@given(
    BIG, st.lists(SMALL, min_size=1, max_size=3), st.integers(1, 5),
    st.sampled_from(["nobody", "its user", "all together"]),
)  # fmt: skip
def test_whoever_used_most_is_served_all_the_same(
    big: dict[str, Any], kinds: list[tuple[dict[str, Any], int]], own: int, capped: str
) -> None:  # L3, X4
    devices = machine(8000, 8000, 8000, 8000)
    caps = {1000: Caps(max_gpus=4)} if capped == "its user" else {}
    together = {100: Together("lab", max_gpus=max(2, big["gpus"]))} if capped == "all together" else {}
    policy = SitePolicy(
        Caps(), caps, {}, {}, {}, half_life_s=1e6, patience_s=PATIENCE_S, together=together
    )  # fmt: skip
    gids = {uid: (100,) for uid in (1000, *USERS)}
    past = {1000: Past(1e9, 0.0, 0.0)}  # it would take months until the others have used as much
    # Its own small ones behind it must not keep it waiting either, by its cap.
    waiting = [made_up.ticket("b" * 12, uid=1000, **big, arrived_s=0.0)]
    for number in range(1, own):
        waiting.append(made_up.ticket(f"c{number:011x}", uid=1000, gpus=1, arrived_s=number / 100))
    leases: list[Lease] = []
    ends_s: dict[str, float] = {}
    lasts_s: dict[str, int] = {}
    made = 0
    for second in range(int(PATIENCE_S + AFTER_S) + 200):
        now_s = float(second)
        leases = [each for each in leases if ends_s[each.job] > now_s]
        for uid in USERS:  # each has always some that wait
            lacking = 2 * len(kinds) - sum(each.uid == uid for each in waiting)
            for number in range(lacking):
                made += 1
                fields, lasts = kinds[number % len(kinds)]
                lasts_s[f"{made:012x}"] = lasts + made % 3  # so that they do not all end at once
                arrived_s = now_s + made / 1e6
                waiting.append(made_up.ticket(f"{made:012x}", uid=uid, **fields, arrived_s=arrived_s))
        held = [(each, float(len(each.gpus))) for each in leases]
        shares = shares_of(policy, gids, past, held, {each.uid for each in waiting}, now_s)
        queue = ordered(waiting, shares, policy.patience_s, now_s)
        grants = decide(queue, devices, tuple(leases), SETTINGS, now_s, Allowance(policy, gids)).grants
        if "b" * 12 in grants:
            return
        for ticket in [each for each in waiting if each.job in grants]:
            leases.append(become(ticket, grants[ticket.job], now_s))
            ends_s[ticket.job] = now_s + lasts_s.get(ticket.job, 5)
        waiting = [each for each in waiting if each.job not in grants]
    raise AssertionError("it starves")
