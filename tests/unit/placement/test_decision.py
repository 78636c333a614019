"""Who gets what, by example: what fits, what is kept for whom, and what is said to whoever has to wait."""

from __future__ import annotations

import pytest

from slicer.model import Busy, Lease, Request
from slicer.placement.decision import (
    Book,
    Infeasible,
    decide,
    expected_remaining,
    first_to_finish,
    infeasible,
)
from slicer.placement.devices import Device, headroom, is_idle, reserved_mib
from slicer.placement.forecast import deadlocked, start_times
from slicer.placement.order import rank_of
from slicer.placement.settings import Policy
from slicer.record import as_dict, replace
from tests.unit import made_up

NOW_S = 10_000.0
YOUNG_S = NOW_S - 1  # has just arrived
OLD_S = NOW_S - 300  # has waited for as long as the policy lets others pass
POLICY = Policy(reserve_after_s=300.0)


def device(uuid: str = "a", total_mib: int = 80_000, used_mib: int = 0, **more: object) -> Device:
    fields: dict[str, object] = {"used_by": {}, "foreign_mib": 0, "foreign_pids": (), **more}
    return Device(uuid=uuid, total_mib=total_mib, used_mib=used_mib, **fields)  # type: ignore[arg-type]


def devices(uuids: str) -> tuple[Device, ...]:
    return tuple(device(uuid) for uuid in uuids)


def whole(job: str, gpus: int = 1, choice: str = "", slots: int = 0, arrived_s: float = YOUNG_S) -> Request:
    return made_up.request(job, gpus=gpus, gpu_choice=tuple(choice), cpu_slots=slots, arrived_s=arrived_s)


def share(
    job: str, vram_mib: int, gpus: int = 1, choice: str = "", margin_mib: int = 0, arrived_s: float = YOUNG_S
) -> Request:
    return made_up.request(
        job, gpus=gpus, gpu_choice=tuple(choice), vram_mib=vram_mib, margin_mib=margin_mib,
        arrived_s=arrived_s,
    )  # fmt: skip


def cpu(job: str, slots: int = 1, limit: int = 4, arrived_s: float = YOUNG_S) -> Request:
    return made_up.request(job, cpu_slots=slots, cpu_limit=limit, arrived_s=arrived_s)


def lease(job: str, gpus: str = "", **fields: object) -> Lease:
    return made_up.lease(job, gpus=tuple(gpus), **fields)


def grants(
    queue: list[Request], gpus: tuple[Device, ...] | None = (), held: tuple[Lease, ...] = ()
) -> dict[str, str | None]:
    """What each request of the queue gets; None for what is blocked."""
    verdict = decide(queue, gpus, held, POLICY, NOW_S)
    assert decide(queue, gpus, held, POLICY, NOW_S) == verdict
    found = {job: "".join(uuids) for job, uuids in verdict.grants.items()}
    return {request.job: found.get(request.job) for request in queue}


# A6, issue: requests
@pytest.mark.parametrize(
    ("queue", "held", "expected"),
    [
        ([cpu("x", 4)], (), {"x": ""}),
        ([cpu("x", 1)], (lease("h", cpu_slots=3),), {"x": ""}),
        ([cpu("x", 2)], (lease("h", cpu_slots=3),), {"x": None}),
        # in order, and what does not fit is passed by
        ([cpu("x", 3), cpu("y", 2), cpu("z", 1)], (), {"x": "", "y": None, "z": ""}),
        # what was forced holds as any other, so that more is held than there is
        ([cpu("x")], (lease("h", cpu_slots=9, forced=1),), {"x": None}),
        ([cpu("x", 0)], (lease("h", cpu_slots=9, forced=1),), {"x": ""}),
        # each by its own idea of how many slots there are
        ([cpu("x", 2, limit=3), cpu("y", 2, limit=6)], (lease("h", cpu_slots=2),), {"x": None, "y": ""}),
    ],
)
def test_cpu_slots_are_given_up_to_the_limit(
    queue: list[Request], held: tuple[Lease, ...], expected: dict[str, str | None]
) -> None:
    assert grants(queue, (), held) == expected


# A1, E2
@pytest.mark.parametrize(
    ("queue", "gpus", "held", "expected"),
    [
        ([whole("x")], devices("ab"), (), {"x": "a"}),  # the first of the idle ones
        ([whole("x")], devices("ab"), (lease("h", "a"),), {"x": "b"}),
        ([whole("x", 2)], devices("abc"), (lease("h", "b"),), {"x": "ac"}),
        ([whole("x", 2)], devices("ab"), (lease("h", "a"),), {"x": None}),
        ([whole("x"), whole("y"), whole("z")], devices("ab"), (), {"x": "a", "y": "b", "z": None}),
        # alone: a sharer, however small, is one too many
        ([whole("x")], devices("a"), (lease("h", "a", vram_mib=10),), {"x": None}),
        ([share("x", 10), whole("y")], devices("a"), (), {"x": "a", "y": None}),
        ([whole("x"), share("y", 10)], devices("a"), (), {"x": "a", "y": None}),
        ([share("x", 10)], devices("a"), (lease("h", "a"),), {"x": None}),
        # a little foreign use is none
        ([whole("x")], (device(used_mib=200, foreign_mib=200),), (), {"x": "a"}),
        ([whole("x")], (device(used_mib=201, foreign_mib=201),), (), {"x": None}),
        ([whole("x")], (device(foreign_mib=201),), (), {"x": None}),  # it was seen to use so much
        ([whole("x")], (device(used_mib=201),), (), {"x": None}),  # nobody says by whom
        ([whole("x")], (device(used_mib=900, used_by={"h": 700}),), (), {"x": "a"}),  # h is on its way out
        # all or nothing
        ([whole("x", slots=2)], devices("a"), (lease("h", cpu_slots=3),), {"x": None}),
        ([whole("x", slots=2), whole("y")], devices("a"), (lease("h", cpu_slots=3),), {"x": None, "y": "a"}),
        ([whole("x", slots=2), cpu("y", 3)], devices("a"), (), {"x": "a", "y": None}),
        # only those that will do
        ([whole("x", choice="cb"), whole("y", choice="b")], devices("abc"), (), {"x": "b", "y": None}),
        ([whole("x", 2, choice="ca")], devices("abc"), (), {"x": "ac"}),
        ([whole("x", 2, choice="ca")], devices("abc"), (lease("h", "c"),), {"x": None}),
        ([whole("x", 1, choice="?")], devices("abc"), (), {"x": None}),
        # a lease on a GPU that is gone takes nothing from the others
        ([whole("x")], devices("b"), (lease("h", "a"),), {"x": "b"}),
        # memory shared with the CPU: only as a whole
        ([share("x", 1), whole("y")], (device(total_mib=0),), (), {"x": None, "y": "a"}),
    ],
)
def test_whole_gpus_are_given_to_one_alone(
    queue: list[Request], gpus: tuple[Device, ...], held: tuple[Lease, ...], expected: dict[str, str | None]
) -> None:
    assert grants(queue, gpus, held) == expected


TEN = lease("h", "a", vram_mib=10_000)


# E3, issue: placement
@pytest.mark.parametrize(
    ("gpu", "held", "reserved", "room"),
    [
        (device(), (), 0, 80_000),
        (device(), (TEN,), 10_000, 70_000),  # just started: it uses nothing so far
        (device(used_mib=4000, used_by={"h": 4000}), (TEN,), 10_000, 70_000),
        (device(used_mib=30_000, used_by={"h": 4000}), (TEN,), 10_000, 50_000),  # more is used than explained
        # over its declaration, a job counts with its peak and a buffer, rounded up
        (device(used_mib=10_001, used_by={"h": 10_001}), (TEN,), 11_002, 68_998),
        (device(used_mib=500, used_by={"h": 500}), (replace(TEN, vram_peak_mib=(12_000,)),), 13_200, 66_800),
        (device(used_by={"h": 15_000}), (replace(TEN, vram_peak_mib=(12_000,)),), 16_500, 63_500),
        (device(), (replace(TEN, vram_peak_mib=(10_000,)),), 10_000, 70_000),
        # the peak is that of this GPU
        (device("b"), (lease("h", "ab", vram_mib=1000, vram_peak_mib=(9000, 2000)),), 2200, 77_800),
        (device(foreign_mib=200), (), 220, 79_780),
        (device(foreign_mib=1001), (TEN,), 11_102, 68_898),
        (device("b"), (TEN,), 0, 80_000),
        (device(total_mib=9000), (TEN,), 10_000, -1000),
        (device(), (lease("h", "a"),), 80_000, None),
        (device(), (lease("h", "a", vram_peak_mib=(5,)), TEN), 80_000, None),
    ],
)
def test_headroom_is_what_is_neither_used_nor_set_aside(
    gpu: Device, held: tuple[Lease, ...], reserved: int, room: int | None
) -> None:
    assert reserved_mib(gpu, held, POLICY) == reserved
    assert headroom(gpu, held, POLICY) == room


def test_the_spike_buffer_is_a_setting() -> None:
    policy = Policy(spike_buffer=0.5)
    assert reserved_mib(device(foreign_mib=300, used_by={"h": 20_000}), (TEN,), policy) == 30_450


# E2
def test_idle_is_what_could_be_taken_whole() -> None:
    assert is_idle(device(), (lease("h", "b"),), POLICY)
    assert not is_idle(device(), (TEN,), POLICY)
    assert not is_idle(device(used_mib=500), (), POLICY)
    assert is_idle(device(used_mib=500), (), Policy(idle_threshold_mib=500))


SIZES = (device("a", 40_000), device("b", 80_000), device("c", 30_000), device("d", 40_000))


# E2, E4
@pytest.mark.parametrize(
    ("queue", "held", "expected"),
    [
        ([share("x", 80_000)], (), {"x": "b"}),
        ([share("x", 80_000, margin_mib=1)], (), {"x": None}),
        # the tightest that fits; of equals the first
        ([share("x", 20_000)], (), {"x": "c"}),
        ([share("x", 35_000)], (), {"x": "a"}),
        ([share("x", 35_000, margin_mib=5001)], (), {"x": "b"}),
        ([share("x", 35_000, 2)], (), {"x": "ad"}),
        ([share("x", 20_000, 3)], (), {"x": "acd"}),
        ([share("x", 35_000, 3)], (), {"x": "abd"}),
        ([share("x", 35_000, 4)], (), {"x": None}),
        ([share("x", 35_000, choice="bd")], (), {"x": "d"}),
        ([share("x", 35_000, 2, choice="dcb")], (), {"x": "bd"}),
        ([share("x", 35_000, 2, choice="dc")], (), {"x": None}),
        # what was granted a moment ago counts, without its margin
        ([share("x", 20_000), share("y", 10_000)], (), {"x": "c", "y": "c"}),
        ([share("x", 20_000, margin_mib=5000), share("y", 10_000)], (), {"x": "c", "y": "c"}),
        ([share("x", 20_000), share("y", 10_001)], (), {"x": "c", "y": "a"}),
        ([share("x", 80_000), share("y", 60_000), share("z", 40_000)], (), {"x": "b", "y": None, "z": "a"}),
        ([share("x", 70_000)], (lease("h", "b", vram_mib=10_001),), {"x": None}),
        ([share("x", 70_000)], (lease("h", "b", vram_mib=10_000),), {"x": "b"}),
    ],
)
def test_sharers_get_the_tightest_gpus_with_room(
    queue: list[Request], held: tuple[Lease, ...], expected: dict[str, str | None]
) -> None:
    assert grants(queue, SIZES, held) == expected


# issue: waiting
def test_without_a_look_at_the_gpus_only_cpu_jobs_are_granted() -> None:
    assert grants([whole("x"), share("y", 1), cpu("z")], None) == {"x": None, "y": None, "z": ""}
    # the slots of one ahead that could perhaps go are not given away
    assert grants([whole("x", slots=2), cpu("y", 3)], None) == {"x": None, "y": None}
    assert grants([whole("x", slots=2), cpu("y", 2)], None) == {"x": None, "y": ""}
    assert grants([cpu("y", 3), whole("x", slots=2)], None) == {"x": None, "y": ""}


AB_HELD = (lease("h", "a", est_s=None, since_s=1.0), lease("i", "b", since_s=1.0, est_s=5.0))


# X4, E13, issue: order
@pytest.mark.parametrize(
    ("queue", "gpus", "held", "granted", "reserving"),
    [
        # young: passed by. Old: what is free is kept for it.
        ([cpu("x", 4), cpu("y")], (), (lease("h", cpu_slots=1),), ["y"], []),
        ([cpu("x", 4, arrived_s=OLD_S), cpu("y")], (), (lease("h", cpu_slots=1),), [], ["x"]),
        ([cpu("x", 4, arrived_s=OLD_S + 0.1), cpu("y")], (), (lease("h", cpu_slots=1),), ["y"], []),
        ([cpu("y"), cpu("x", 4, arrived_s=OLD_S)], (), (lease("h", cpu_slots=1),), ["y"], ["x"]),
        # what it does not need is still for all
        ([cpu("x", 3, arrived_s=OLD_S), cpu("y")], (), (lease("h", cpu_slots=2),), [], ["x"]),
        ([whole("x", arrived_s=OLD_S), cpu("y"), whole("z")], devices("ab"), AB_HELD, ["y"], ["x"]),
        ([whole("x", 2, arrived_s=OLD_S), whole("y")], devices("abc"), AB_HELD, [], ["x"]),
        ([whole("x", 2), whole("y")], devices("abc"), AB_HELD, ["y"], []),
        # an idle GPU first, then the one that is to be free soonest (b): the others may be shared
        ([whole("x", 2, arrived_s=OLD_S), share("y", 1)], devices("abc"),
         (replace(AB_HELD[0], vram_mib=1), AB_HELD[1]), ["y"], ["x"]),
        # the slots of one that waits for a GPU are kept, too
        ([whole("x", slots=3, arrived_s=OLD_S), cpu("y", 2)], devices("a"), AB_HELD, [], ["x"]),
        # and the GPU of one that waits for slots
        ([whole("x", slots=3, arrived_s=OLD_S), whole("y")], devices("a"),
         (lease("h", cpu_slots=4),), [], ["x"]),
        # one at a time: the second keeps nothing from those behind it
        ([whole("x", 2, arrived_s=OLD_S), whole("y", 3, arrived_s=OLD_S), share("z", 1)],
         devices("abc"), (replace(AB_HELD[0], vram_mib=1), AB_HELD[1]), ["z"], ["x"]),
        ([cpu("x", 4, arrived_s=OLD_S), cpu("y", 3, arrived_s=OLD_S), cpu("z", 1, limit=9)], (),
         (lease("h", cpu_slots=2),), [], ["x"]),
        # and one of those without GPUs
        ([whole("x", arrived_s=OLD_S), cpu("y", 4, arrived_s=OLD_S), cpu("z"), whole("w", arrived_s=OLD_S)],
         devices("ab"), (*AB_HELD, lease("s", cpu_slots=1)), [], ["x", "y"]),
        # the first that could ever be served
        ([whole("x", 3, arrived_s=OLD_S), whole("y", arrived_s=OLD_S)], devices("ab"), AB_HELD, [], ["y"]),
        # who waits for processes of no lease does not use up the turn, nor who waits behind such a one,
        ([whole("x", choice="c", arrived_s=OLD_S), whole("y", 2, choice="bc", arrived_s=OLD_S),
          whole("z", arrived_s=OLD_S), whole("w", arrived_s=OLD_S)],
         (*devices("ab"), device("c", used_mib=999, foreign_mib=999)), AB_HELD, [], ["x", "y", "z"]),
        # but one that waits for leases beside them does
        ([whole("x", choice="c", arrived_s=OLD_S), whole("y", arrived_s=OLD_S)],
         (*devices("ab"), device("c", used_mib=999, foreign_mib=999)), (*AB_HELD, lease("k", "c")),
         [], ["x"]),
        # where a sharer fits already or soon, what it leaves (and its margin) is for all
        ([share("x", 50_000, 2, margin_mib=1000, arrived_s=OLD_S), share("y", 29_001, choice="a"),
          share("z", 29_000, choice="a"), share("w", 1, choice="b")],
         devices("ab"), (lease("h", "b", vram_mib=40_000),), ["z", "w"], ["x"]),
        # of its choice only
        ([whole("x", 2, choice="ab", arrived_s=OLD_S), whole("y")], devices("abc"), AB_HELD, ["y"], ["x"]),
        # what cannot be served even when all is free keeps nothing from anybody
        ([whole("x", 4, arrived_s=OLD_S), whole("y")], devices("abc"), AB_HELD, ["y"], []),
        ([whole("x", 2, choice="c?", arrived_s=OLD_S), whole("y")], devices("abc"), AB_HELD, ["y"], []),
        ([share("x", 80_001, arrived_s=OLD_S), whole("y")], devices("abc"), AB_HELD, ["y"], []),
        ([cpu("x", 5, limit=4, arrived_s=OLD_S), cpu("y", limit=8)], (), (), ["y"], []),
        # nor is a GPU kept that is of no use
        ([share("x", 80_000, arrived_s=OLD_S), share("y", 70_000, arrived_s=OLD_S), whole("z")],
         SIZES[:2], (lease("h", "b"),), ["z"], ["x"]),
        # what was granted a moment ago is not what is free soonest
        ([whole("x"), whole("y", arrived_s=OLD_S), share("z", 1)], devices("ab"),
         (replace(AB_HELD[1], vram_mib=1, est_s=NOW_S + 60),), ["x"], ["y"]),
        # nor is it held up by who sees more slots than it does
        ([cpu("x", 1, limit=1, arrived_s=OLD_S), cpu("y", limit=9)], (), (lease("h", cpu_slots=1),), [],
         ["x"]),
    ],
)  # fmt: skip
def test_the_first_that_waited_too_long_is_passed_by_no_more(
    queue: list[Request], gpus: tuple[Device, ...], held: tuple[Lease, ...], granted: list[str],
    reserving: list[str],
) -> None:  # fmt: skip
    verdict = decide(queue, gpus, held, POLICY, NOW_S)
    assert (list(verdict.grants), list(verdict.reserving)) == (granted, reserving)


def kept(request: Request, gpus: tuple[Device, ...], held: tuple[Lease, ...], now_s: float = NOW_S) -> str:
    """The GPUs that are kept for a blocked request: those of which nobody behind it gets all that is free."""
    verdict = decide([request], gpus, held, POLICY, now_s)
    assert (verdict.grants, verdict.reserving) == ({}, (request.job,))
    probes = [
        share("probe", headroom(each, held, POLICY) or 1, choice=each.uuid, arrived_s=now_s) for each in gpus
    ]
    return "".join(
        probe.gpu_choice[0]
        for probe in probes
        if "probe" not in decide([request, probe], gpus, held, POLICY, now_s).grants
    )


def small(job: str, gpus: str, **fields: object) -> Lease:
    """A lease next to which there is room for a probe."""
    return lease(job, gpus, **{"vram_mib": 100, "since_s": 1.0, **fields})


# X4, issue: order. Leases since 1.0 with an estimate below LATER_S have overrun at LATER_S.
LATER_S = NOW_S + 100


@pytest.mark.parametrize(
    ("request_", "gpus", "held", "expected"),
    [
        # whole GPUs: those whose leases should end first
        (whole("x"), devices("ab"), (small("h", "a", est_s=10_900.0), small("i", "b", est_s=10_800.0)), "b"),
        (whole("x"), devices("ab"), (small("h", "a"), small("i", "b", est_s=10_800.0)), "b"),
        (whole("x"), devices("ab"), (small("h", "a"), small("i", "b")), "a"),
        (whole("x"), devices("ab"), (small("h", "ab", est_s=10_800.0), small("i", "a", est_s=10_900.0)), "b"),
        (whole("x", 2), devices("abc"), (small("h", "a"), small("i", "b", est_s=10_800.0)), "bc"),
        # one that has overrun is taken to need half as long again as it ran, an unknown one as long again
        (whole("x"), devices("ab"), (small("h", "a"), small("i", "b", est_s=80.0)), "b"),
        (whole("x"), devices("ab"), (small("h", "a", est_s=15_300.0), small("i", "b", est_s=80.0)), "b"),
        (whole("x"), devices("ab"), (small("h", "a", est_s=15_000.0), small("i", "b", est_s=80.0)), "a"),
        # one of unknown length, granted a moment ago, half an hour
        (whole("x"), devices("ab"), (small("h", "a", since_s=LATER_S - 9), small("i", "b", est_s=11_000.0)),
         "b"),
        # foreign use over the threshold comes last
        (whole("x"), (device(foreign_mib=999), device("b")), (small("i", "b"),), "b"),
        # sharers: the end after which there is room
        (share("x", 79_950), devices("ab"), (small("h", "a", est_s=10_900.0), small("i", "b")), "a"),
        (share("x", 79_850), devices("ab"),
         (small("h", "a", vram_mib=200, est_s=10_900.0), small("i", "b", est_s=10_800.0), small("j", "b")),
         "b"),
        (share("x", 79_950), devices("ab"),
         (small("h", "a", est_s=10_900.0), small("i", "b", est_s=10_800.0), small("j", "b")), "a"),
        (share("x", 79_950, 2), devices("abc"), (small("h", "ab"),), "ac"),
        # where it fits (it waits for slots), those that have what it leaves do not drive it away
        (replace(share("x", 1000), slots={"cpu": 4}, slot_limits={"cpu": 4}), devices("ab"),
         (small("h", "a", since_s=NOW_S + 50), lease("s", cpu_slots=1)), "a"),
        # a GPU that is too small is of no use, however empty
        (share("x", 75_000), (device("a", 74_999), device("b")), (small("i", "b", vram_mib=20_000),), "b"),
        # nor one that foreign processes fill
        (share("x", 75_000), (device(foreign_mib=10_000), device("b")),
         (small("i", "b", vram_mib=20_000),), "b"),
    ],
)  # fmt: skip
def test_the_most_promising_gpus_are_kept(
    request_: Request, gpus: tuple[Device, ...], held: tuple[Lease, ...], expected: str
) -> None:
    waiting = replace(request_, arrived_s=OLD_S)
    assert kept(waiting, gpus, held, LATER_S) == expected


# X4
def test_once_it_waited_three_times_as_long_a_job_that_claimed_too_little_counts_as_ending_now() -> None:
    honest, liar = small("h", "a", est_s=10_900.0), small("i", "b", since_s=NOW_S, est_s=10.0)
    assert kept(whole("x", arrived_s=LATER_S - 899), devices("ab"), (honest, liar), LATER_S) == "b"
    old = small("i", "b", since_s=1.0, est_s=10.0)  # from before its turn: it may be late for good reasons
    assert kept(whole("x", arrived_s=LATER_S - 900), devices("ab"), (honest, old), LATER_S) == "a"


UNKNOWN = (small("h", "ab", est_s=None),)


# X4
def test_nothing_is_kept_where_nobody_knows_when_a_lease_ends_for_a_day() -> None:
    policy = Policy(mean_job_s=60.0)  # overdue after 10 minutes
    young, old = whole("x", arrived_s=NOW_S - 86_399), whole("x", arrived_s=NOW_S - 86_400)
    assert decide([young], devices("ab"), UNKNOWN, policy, NOW_S).reserving == ()
    assert decide([old], devices("ab"), UNKNOWN, policy, NOW_S).reserving == ("x",)
    known = (replace(UNKNOWN[0], est_s=9000.0),)
    assert decide([young], devices("ab"), known, policy, NOW_S).reserving == ("x",)
    # an administrator's reserve_after counts whatever is known
    assert decide([young], devices("ab"), UNKNOWN, POLICY, NOW_S).reserving == ("x",)


def timed(job: str, vram_mib: int | None, est_s: float | None) -> Request:
    return replace(share(job, vram_mib or 0), vram_mib=vram_mib, est_s=est_s)


# X4: it keeps b, where it does not fit before about NOW_S + 1000, and a, where it fits
@pytest.mark.parametrize(
    ("passing", "waited_s", "expected"),
    [
        (timed("y", 60_000, 900.0), 301, True),  # it ends in time, so it may have all that is free
        (timed("y", 60_000, 1100.0), 301, False),
        (timed("y", 60_000, None), 301, False),
        (timed("y", 20_000, 1100.0), 301, True),  # the rest is for those that stay
        (timed("y", 20_000, None), 301, True),
        (timed("y", None, 900.0), 301, True),  # whole
        (timed("y", None, 1100.0), 301, False),
        (timed("y", 20_000, None), 901, True),  # where it fits, the rest is for all, however long it waits
    ],
)
def test_who_ends_before_the_reserved_start_may_use_what_is_kept(
    passing: Request, waited_s: float, expected: bool
) -> None:
    waiting = share("x", 50_000, 2, arrived_s=NOW_S - waited_s)
    held = (lease("h", "b", vram_mib=40_000, since_s=NOW_S - 10, est_s=1010.0),)
    verdict = decide([waiting, replace(passing, gpu_choice=("a",))], devices("ab"), held, POLICY, NOW_S)
    assert (verdict.grants == {"y": ("a",)}) is expected
    assert verdict.again_s is not None  # who may pass changes with time alone


# X4
@pytest.mark.parametrize(("waited_s", "held_s", "est_s", "expected"), [
    (899, 10, None, True), (899, 10, 900.0, True), (1000, 110, None, False), (1000, 110, 1100.0, False),
    (1000, 110, 900.0, True), (1000, 90, 900.0, False),  # what was let in since its turn is strict
])  # fmt: skip
def test_at_last_a_gpu_without_room_takes_only_those_that_end_in_time(
    waited_s: float, held_s: float, est_s: float | None, expected: bool
) -> None:
    waiting = share("x", 50_000, arrived_s=NOW_S - waited_s)
    held = (lease("h", "b", vram_mib=40_000, since_s=NOW_S - held_s, est_s=held_s + 1000.0),)
    verdict = decide([waiting, timed("y", 20_000, est_s)], devices("b"), held, POLICY, NOW_S)
    assert ("y" in verdict.grants) is expected


# E4, issue: bad input
@pytest.mark.parametrize(
    ("request_", "gpus", "expected"),
    [
        (cpu("x", 4), (), None),
        (cpu("x", 5), (), Infeasible("slot", 5, 4, slot="cpu")),
        (whole("x", 3), devices("abc"), None),
        (whole("x", 4), devices("abc"), Infeasible("gpu", 4, 3)),
        (whole("x"), (), Infeasible("gpu", 1, 0)),
        (whole("x", 9), None, None),  # nobody has looked
        (whole("x", 2, choice="ab"), devices("abc"), None),
        (whole("x", 3, choice="ab"), devices("abc"), Infeasible("gpu", 3, 2)),
        (whole("x", 2, choice="aa"), devices("abc"), Infeasible("gpu", 2, 1)),
        (whole("x", choice="az"), devices("abc"), Infeasible("gpu-choice", 1, 3, "z")),
        (share("x", 79_000, margin_mib=1000), devices("abc"), None),
        (share("x", 79_000, margin_mib=1001), devices("abc"), Infeasible("vram", 80_001, 80_000)),
        (share("x", 80_000, 1), SIZES, None),
        (share("x", 80_000, 2), SIZES, Infeasible("vram", 80_000, 40_000)),
        (share("x", 40_000, 3), SIZES, None),
        (share("x", 60_000, choice="ac"), SIZES, Infeasible("vram", 60_000, 40_000)),
        (share("x", 1), (device(total_mib=0),), Infeasible("vram", 1, 0)),
    ],
)
def test_what_an_empty_machine_cannot_serve_is_said_at_once(
    request_: Request, gpus: tuple[Device, ...] | None, expected: Infeasible | None
) -> None:
    assert infeasible(request_, gpus) == expected


H_A, I_B, S_4 = lease("h", "a"), lease("i", "b", vram_mib=79_000), lease("s", cpu_slots=4)


# B1, issue: status
@pytest.mark.parametrize(
    ("request_", "ahead", "gpus", "held", "expected"),
    [
        (whole("x", 2), [], devices("ab"), (H_A, I_B, S_4), Busy("gpu", (H_A, I_B), 0, (), "")),
        (whole("x", choice="b"), [], devices("ab"), (H_A, I_B), Busy("gpu", (I_B,), 0, (), "")),
        (share("x", 2000), [], devices("ab"), (H_A, I_B), Busy("gpu", (H_A, I_B), 0, (), "")),
        (whole("x"), [], None, (H_A, S_4), Busy("gpu", (H_A,), 0, (), "")),
        (cpu("x"), [], (), (H_A, S_4), Busy("cpu", (S_4,), 0, (), "", slot="cpu")),
        (whole("x", slots=1), [], devices("ab"), (H_A, S_4), Busy("cpu", (S_4,), 0, (), "", slot="cpu")),
        (whole("x"), [], (device(foreign_mib=999),), (), Busy("gpu", (), 0, ("a",), "")),
        # held by nobody: those ahead are given it first
        (whole("x"), [whole("y"), cpu("z")], devices("a"), (), Busy("gpu", (), 1, (), "")),
        (cpu("x"), [cpu("y", 4)], (), (), Busy("cpu", (), 1, (), "", slot="cpu")),
        # or it is kept for one of them
        (whole("x"), [whole("y", 2, arrived_s=OLD_S)], devices("ab"), (H_A,), Busy("gpu", (), 1, (), "y")),
        (cpu("x"), [cpu("y", 4, arrived_s=OLD_S)], (), (lease("s", cpu_slots=1),),
         Busy("cpu", (), 1, (), "y", slot="cpu")),
        # what is kept of another kind is in nobody's way
        (cpu("x", 4), [whole("y", 2, arrived_s=OLD_S), cpu("z")], devices("ab"), (H_A,),
         Busy("cpu", (), 1, (), "", slot="cpu")),
        (whole("x", choice="b"), [whole("y", choice="a", arrived_s=OLD_S), whole("z", choice="b")],
         devices("ab"), (H_A,), Busy("gpu", (), 2, (), "")),
    ],
)  # fmt: skip
def test_who_has_to_wait_is_told_for_what(
    request_: Request, ahead: list[Request], gpus: tuple[Device, ...] | None, held: tuple[Lease, ...],
    expected: Busy,
) -> None:  # fmt: skip
    queue = [*ahead, request_, cpu("behind"), whole("behind too")]
    assert Book(queue, gpus, held, POLICY, NOW_S).busy(request_) == expected


def test_a_request_without_a_place_in_the_queue_comes_after_it() -> None:
    busy = Book([cpu("y", 4)], (), (), POLICY, NOW_S).busy(cpu("x"))
    assert busy == Busy("cpu", (), 1, (), "", slot="cpu")


# A8
def test_a_request_that_waits_no_longer_gets_the_gpus_with_most_room() -> None:
    held = (lease("h", "a", vram_mib=50_000), lease("i", "b"), lease("j", "c", vram_mib=60_000))
    book = Book([], devices("abc"), held, POLICY, NOW_S)
    assert book.roomiest(share("x", 70_000)) == ("a",)
    assert book.roomiest(share("x", 70_000, 2)) == ("a", "c")
    assert book.roomiest(share("x", 70_000, choice="cb")) == ("c",)
    assert Book([], None, held, POLICY, NOW_S).roomiest(cpu("x")) == ()


def ending(job: str, gpus: str, in_s: float, **fields: object) -> Lease:
    return lease(job, gpus, since_s=NOW_S - 100, expect_s=100 + in_s, **fields)


# B2, issue: status
@pytest.mark.parametrize(
    ("queue", "expected", "gpus", "held", "starts"),
    [
        ([whole("x")], {}, devices("ab"), (ending("h", "a", 30),), {"x": 0}),
        ([whole("x")], {}, devices("a"), (ending("h", "a", 30),), {"x": 30}),
        ([whole("x")], {}, devices("a"), (ending("h", "a", -30),), {"x": 50}),  # overdue: half its time more
        ([whole("x")], {}, devices("a"), (lease("h", "a"),), {"x": None}),
        ([whole("x"), whole("y")], {"x": 5.0}, devices("a"), (ending("h", "a", 30),), {"x": 30, "y": 35}),
        ([whole("x"), whole("y")], {"x": None}, devices("a"), (ending("h", "a", 30),), {"x": 30, "y": None}),
        # what ends sooner, though nobody knows of the other
        ([whole("x")], {}, devices("ab"), (lease("h", "a"), ending("i", "b", 7)), {"x": 7}),
        ([whole("x", 2)], {}, devices("ab"), (ending("h", "a", 9), ending("i", "b", 7)), {"x": 9}),
        # memory in use goes with the job that uses it
        ([share("x", 60_000)], {}, (device(used_mib=30_000, used_by={"h": 30_000}),),
         (ending("h", "a", 3, vram_mib=30_000),), {"x": 3}),
        ([whole("x")], {}, (device(foreign_mib=999),), (), {"x": None}),
        ([cpu("x", 3), cpu("y", 2)], {"y": 9.0}, (), (ending("h", "", 1, cpu_slots=2),), {"x": 9, "y": 0}),
    ],
)  # fmt: skip
def test_the_forecast_plays_the_queue(
    queue: list[Request], expected: dict[str, float | None], gpus: tuple[Device, ...],
    held: tuple[Lease, ...], starts: dict[str, float | None],
) -> None:  # fmt: skip
    tickets = [made_up.ticket(**as_dict(each), expect_s=expected.get(each.job)) for each in queue]
    assert start_times(Book(tickets, gpus, held, POLICY, NOW_S)) == starts


A_HELD, B_HELD = lease("ha", "a"), lease("hb", "b")


# A3
@pytest.mark.parametrize(
    ("wanted", "inside", "waiting", "held", "stuck"),
    [
        # holders that do not wait for anything will end
        (whole("x"), ("ha",), [], (A_HELD, B_HELD), ()),
        # two that hold a GPU each and want that of the other
        (whole("x"), ("ha",), [(whole("y"), ("hb",))], (A_HELD, B_HELD), ("hb",)),
        # one that can never have more than it leaves to itself
        (whole("x", 2), ("ha",), [], (A_HELD, B_HELD), ("ha",)),
        (cpu("x", 3), ("hc",), [], (lease("hc", cpu_slots=2),), ("hc",)),
        # a chain: y will be served when z has ended, then hb ends, then x is served
        (whole("x"), ("ha",), [(cpu("y", 1), ("hb",))], (A_HELD, B_HELD, lease("z", cpu_slots=4)), ()),
        # through jobs of different kinds
        (cpu("x", 4), ("ha",), [(whole("y", choice="a"), ("hc",))], (A_HELD, lease("hc", cpu_slots=1)),
         ("hc",)),
        (cpu("x", 3), ("ha",), [(whole("y", choice="a"), ("hc",))], (A_HELD, lease("hc", cpu_slots=1)), ()),
        # who waits inside of nothing holds nothing
        (whole("x"), ("ha",), [(whole("y", 2), ())], (A_HELD, B_HELD), ()),
        # but what is kept for it while it waits for our outer job is lost to us
        (whole("x"), ("ha",), [(whole("y", 2, arrived_s=OLD_S), ())], (A_HELD, B_HELD), ("y",)),
        (replace(whole("x"), priority=1), ("ha",), [(whole("y", 2, arrived_s=OLD_S), ())],
         (A_HELD, B_HELD), ()),
        # deeper: the outermost holds on as well
        (whole("x"), ("ha", "hi"), [(whole("y"), ("hb",))], (A_HELD, B_HELD, lease("hi")), ("hb",)),
        # others that are stuck among themselves are no matter
        (cpu("x"), ("hc",), [(whole("y"), ("ha",)), (whole("z"), ("hb",))],
         (A_HELD, B_HELD, lease("hc", cpu_slots=1)), ()),
    ],
)  # fmt: skip
def test_whoever_would_wait_for_ever_is_told(
    wanted: Request, inside: tuple[str, ...], waiting: list[tuple[Request, tuple[str, ...]]],
    held: tuple[Lease, ...], stuck: tuple[str, ...],
) -> None:  # fmt: skip
    queue = [made_up.ticket(**as_dict(each), inside=around) for each, around in waiting]
    ticket = made_up.ticket(**as_dict(wanted), inside=inside)
    waits = sorted([*queue, ticket], key=rank_of)
    assert deadlocked(ticket, waits, Book((), devices("ab"), held, POLICY, NOW_S)) == stuck
    # foreign use may end, and what is used now does not matter
    busy = tuple(device(uuid, used_mib=79_000, foreign_mib=79_000) for uuid in "ab")
    assert deadlocked(ticket, waits, Book((), busy, held, POLICY, NOW_S)) == stuck


# B2
@pytest.mark.parametrize(("expect", "now", "left"), [(None, 5, None), (10, 12, 8), (10, 20, 0), (10, 99, 0)])
def test_the_expected_rest_is_never_negative(expect: float | None, now: float, left: float | None) -> None:
    assert expected_remaining(lease("x", since_s=10, expect_s=expect), now) == left


# B2
def test_the_holder_named_is_the_first_to_finish_else_the_longest() -> None:
    late, soon = lease("late", since_s=0, expect_s=100), lease("soon", since_s=5, expect_s=10)
    old, young = lease("old", since_s=1), lease("young", since_s=2)
    assert first_to_finish((late, old, soon, young), 6) == soon
    assert first_to_finish((young, old), 6) == old
    assert first_to_finish((), 6) is None
    assert first_to_finish((replace(late, expect_s=1.0), soon), 6) == replace(late, expect_s=1.0)


SICK = (device("a", out="it is lost"), device("b"), device("c", out="by the configuration"))


# U19: neither as a whole nor in part; nothing is kept there, and a request that only these could serve waits
def test_a_gpu_out_of_service_gets_no_job() -> None:
    assert grants([whole("x"), whole("y"), share("z", 10)], SICK) == {"x": "b", "y": None, "z": None}
    assert grants([share("z", 10)], SICK) == {"z": "b"}
    assert grants([whole("x", choice="a"), whole("y", gpus=2)], SICK) == {"x": None, "y": None}
    assert decide([whole("x", gpus=2, arrived_s=OLD_S)], SICK, (), POLICY, NOW_S).reserving == ()
    assert (is_idle(SICK[0], (), POLICY), headroom(SICK[0], (), POLICY)) == (False, None)
    assert infeasible(whole("x", gpus=3), SICK) is None
    assert start_times(Book([made_up.ticket("x", gpus=2)], SICK, (), POLICY, NOW_S)) == {"x": None}
    assert deadlocked(made_up.ticket("x", gpus=3), [], Book((), SICK, (), POLICY, NOW_S)) == ()


# U19: what runs there goes on, and holds what else it has
def test_who_waits_is_told_of_gpus_out_of_service() -> None:
    book = Book((), SICK, (lease("h", "b"),), POLICY, NOW_S)
    both = "GPU 0 is out of service (it is lost), GPU 2 is out of service (by the configuration)"
    assert (found := book.busy(whole("x"))).why == both
    assert [each.job for each in found.holders] == ["h"]
    assert book.busy(whole("x", choice="b")).why == ""
    assert book.busy(whole("x", choice="c")).why == "GPU 2 is out of service (by the configuration)"
    assert book.roomiest(whole("x", gpus=2)) == ("a", "b")
    assert book.roomiest(whole("x")) == ("b",)
