"""No request starves, whatever the others claim and do: each starts within the bound of the docstring."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from slicer.model import Lease, Request
from slicer.placement.decision import decide
from slicer.placement.devices import Device
from slicer.placement.order import in_order
from slicer.placement.settings import Policy
from tests.unit import made_up

GPUS = "abcd"
TOTAL_MIB = 1000
LONGEST_S = 400
_LATEST_S = 10_000  # of any start: otherwise it starves
STEP_S = 10  # of the clock, at which everybody decides

FALLING = -1  # a claim that is lower each time: whoever is let in ends before all others, as it says
SIZES = st.none() | st.integers(1, TOTAL_MIB)
# How long a job really runs, and what is believed of it: nothing, the truth, or any lie.
LENGTHS = st.integers(1, LONGEST_S // STEP_S).flatmap(
    lambda steps: st.tuples(
        st.just(steps * STEP_S),
        st.none() | st.just(steps * STEP_S) | st.integers(0, 10**6) | st.just(FALLING),
    )
)
OTHERS = st.lists(st.tuples(st.integers(1, 3), SIZES, LENGTHS), min_size=1, max_size=8)


def made(job: str, gpus: int, vram_mib: int | None, est_s: float | None, arrived_s: float) -> Request:
    return made_up.request(job, gpus=gpus, vram_mib=vram_mib, est_s=est_s, arrived_s=arrived_s)


def as_lease(request: Request, gpus: tuple[str, ...], now_s: float) -> Lease:
    return made_up.lease(
        request.job, gpus=gpus, vram_mib=request.vram_mib, since_s=now_s, est_s=request.est_s
    )


Other = tuple[int, int | None, tuple[int, int | None]]


def claimed(est_s: int | None, now_s: int) -> float | None:
    return float(10**6 - 2 * now_s) if est_s == FALLING else None if est_s is None else float(est_s)


def started(policy: Policy, wanted: Request, others: list[Other], held_s: int = 0) -> float:
    """When the request starts in an endless stream of the others: each comes again as soon as it started.

    ``held_s``: how long others have been there before it comes. None of them is overdue then.
    """
    leases: dict[str, tuple[Lease, float]] = {}  # and their real ends
    lengths: dict[str, int] = {}
    waiting: list[Request] = []
    turn, now_s = 0, -held_s
    while now_s <= _LATEST_S:
        if now_s == 0:
            waiting = [wanted]
        leases = {job: each for job, each in leases.items() if each[1] > now_s}
        for number, (gpus, vram_mib, (real_s, est_s)) in enumerate(others):
            kind = f"{number:04x}"
            if not any(each.job.endswith(kind) for each in waiting):
                turn += 1
                job = f"{turn:08x}{kind}"
                lengths[job] = real_s
                waiting.append(made(job, gpus, vram_mib, claimed(est_s, now_s), now_s))
        held = tuple(lease for lease, _ in leases.values())
        devices = tuple(
            Device(uuid, TOTAL_MIB, sum(lease.vram_mib or TOTAL_MIB for lease in held if uuid in lease.gpus),
                   {lease.job: lease.vram_mib or TOTAL_MIB for lease in held if uuid in lease.gpus}, 0, ())
            for uuid in GPUS
        )  # fmt: skip
        grants = decide(in_order(waiting, devices, policy, now_s), devices, held, policy, now_s).grants
        if wanted.job in grants:
            return now_s
        for request in [each for each in waiting if each.job in grants]:
            waiting.remove(request)
            lease = as_lease(request, grants[request.job], now_s)
            leases[request.job] = lease, now_s + lengths[request.job]
        now_s += STEP_S
    return now_s


# X4, E13
@example(300.0, 3, 497, None, [(1, 126, (180, None)), (2, None, (10, None))], 0)  # let in beside the need
@example(60.0, 4, None, 100, [(n, None, (400 - 70 * n, FALLING)) for n in (1, 2, 3)], STEP_S)
@given(
    st.sampled_from([0.0, 60.0, 300.0]), st.integers(1, 4), SIZES, st.none() | st.integers(1, 10**5), OTHERS,
    st.sampled_from([0, STEP_S, LONGEST_S]),
)  # fmt: skip
def test_every_request_starts_within_the_bound(
    after_s: float, gpus: int, vram_mib: int | None, est_s: int | None, others: list[Other], held_s: int
) -> None:
    policy = Policy(reserve_after_s=after_s)
    first_s = -1.0  # before all who come at the same time
    wanted = made("f" * 12, gpus, vram_mib, None if est_s is None else float(est_s), first_s)
    assert started(policy, wanted, others, held_s) <= 3 * after_s + 2 * LONGEST_S + STEP_S
