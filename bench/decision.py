"""How long one admission decision takes: 64 GPUs, 500 leases, 5,000 tickets. Standard library only.

By the wall, and in CPU time, which tells a slow decision from a busy machine. Every round decides each mix
once, in turn, so that a slow moment meets all alike. What a mix is made of is drawn with a fixed seed; the
decision is checked to be the same in every round.
"""

from __future__ import annotations

import time
from random import Random
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from bench.markdown import bar, figures, table
from slicer.model import Lease, Request
from slicer.placement.decision import Verdict, decide
from slicer.placement.devices import Device
from slicer.placement.order import in_order
from slicer.placement.policy import Policy
from slicer.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    Made = tuple[tuple[Request, ...], tuple[Device, ...], tuple[Lease, ...]]

GPUS, LEASES, TICKETS = 64, 500, 5000
TOTAL_MIB = 143_771  # of an H200
_LIMITS = {"cpu": 256}  # one for all, as the tickets of one decision have it
_ONE = {"cpu": 1}
NOW_S = 100_000.0
POLICY = Policy(reserve_after_s=300.0)
BAR_S = 0.020
ROUNDS = 200
UUIDS = tuple(f"GPU-{place:08x}-0000-0000-0000-000000000000" for place in range(GPUS))
_LEASE = Lease(
    job="", name="train", command="python train.py", pid=1, pid_start=1, keeper=2, boot_id="b", uid=1000,
    backend="systemd", manager="system", unit="", cgroup="", gpus=(), vram_mib=None, vram_peak_mib=(),
    slots={"cpu": 1}, priority=0, forced=0, since_s=0.0, expect_s=None,
)  # fmt: skip


def leases(random: Random, whole: int, vram_mib: int) -> tuple[Lease, ...]:
    """500 leases: so many whole GPUs, the others shared by the rest with about so much for each."""
    found = []
    for number in range(LEASES):
        size = None
        gpus: tuple[str, ...] = UUIDS[number : number + 1]
        if number >= whole:
            size = random.randrange(vram_mib // 2, vram_mib * 3 // 2)
            shared = UUIDS[whole:]
            gpus = (shared[number % len(shared)],) if shared else ()
        found.append(
            replace(
                _LEASE, job=f"{number:012x}", gpus=gpus, vram_mib=size,
                vram_peak_mib=tuple((size or 1000) // 2 for _ in gpus),
                since_s=NOW_S - random.uniform(0, 9000), est_s=random.choice([None, 600.0, 7200.0]),
            )
        )  # fmt: skip
    return tuple(found)


def devices(held: tuple[Lease, ...]) -> tuple[Device, ...]:
    """The GPUs, on which every job uses half of what it declared."""
    used: dict[str, dict[str, int]] = {uuid: {} for uuid in UUIDS}
    for lease in held:
        for uuid in lease.gpus:
            used[uuid][lease.job] = lease.vram_peak_mib[0]
    return tuple(
        Device(uuid, TOTAL_MIB, sum(used[uuid].values()) + 500, used[uuid], 0 if place % 8 else 900, ())
        for place, uuid in enumerate(UUIDS)
    )


def queue(random: Random, overdue: float, make: Callable[[Random], dict[str, Any]]) -> tuple[Request, ...]:
    """5,000 requests in their order, of which that part has waited for longer than the policy allows."""
    found = []
    for number in range(TICKETS):
        waited_s = 900.0 - number / 10 if number < overdue * TICKETS else 200.0 - number / TICKETS
        wanted = {"gpus": 0, "gpu_choice": (), "vram_mib": None, "margin_mib": 512, "slots": _ONE}
        found.append(
            Request(
                job=f"{LEASES + number:012x}", priority=0, arrived_s=NOW_S - waited_s, slot_limits=_LIMITS,
                est_s=random.choice([None, 600.0, 7200.0]),
                **{**wanted, **make(random)},
            )
        )  # fmt: skip
    return tuple(found)


def _vram(random: Random) -> dict[str, Any]:
    return {"gpus": 1, "vram_mib": random.randrange(1000, 140_000)}


def _many(random: Random) -> dict[str, Any]:
    return {"gpus": random.choice([2, 4, 8, 16]), "vram_mib": random.choice([None, 20_000, 80_000, 120_000])}


def _choice(random: Random) -> dict[str, Any]:
    return {**_vram(random), "gpu_choice": tuple(random.sample(UUIDS, random.choice([1, 2, 8, 32])))}


def _whole(_: Random) -> dict[str, Any]:
    return {"gpus": 1}


def _cpu(_: Random) -> dict[str, Any]:
    return {}


def _any(random: Random) -> dict[str, Any]:
    made = random.choice([_vram, _many, _choice, _whole, _cpu])(random)
    return {**made, "slots": random.choice([{}, _ONE, {"cpu": 4}])}


def mixes() -> dict[str, Made]:
    """What is decided, by its name."""
    random = Random(3)
    held_whole = leases(random, GPUS, 2)
    shared = tuple(
        replace(lease, slots=_ONE if number % 2 else {})
        for number, lease in enumerate(leases(random, 16, 8000))
    )
    few = shared[:160]

    def made(held: tuple[Lease, ...], overdue: float, make: Callable[[Random], dict[str, Any]]) -> Made:
        return queue(random, overdue, make), devices(held), held

    return {
        "all blocked": made(held_whole, 0, _whole),
        "CPU jobs only, half overdue": made(shared, 0.5, _cpu),
        "VRAM of 5,000 sizes": made(few, 0, lambda r: {**_vram(r), "slots": {}}),
        "several GPUs each, half overdue": made(few, 0.5, lambda r: {**_many(r), "slots": {}}),
        "of everything, half overdue": made(few, 0.5, _any),
    }


def _decided(mix: Made) -> Verdict:
    wanted, gpus, held = mix
    return decide(in_order(wanted, gpus, POLICY, NOW_S), gpus, held, POLICY, NOW_S)


def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """By mix: the seconds that a decision takes (``median``, ``p99``, ``cpu_p99``), and what came of it."""
    made = mixes()
    first = {name: _decided(mix) for name, mix in made.items()}
    samples: dict[str, list[float]] = {name: [] for name in made}
    cpu: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, mix in made.items():
            begin, begin_cpu = time.perf_counter(), time.process_time()
            verdict = _decided(mix)
            cpu[name].append(time.process_time() - begin_cpu)
            samples[name].append(time.perf_counter() - begin)
            if verdict != first[name]:
                raise AssertionError(f"{name}: another answer to the same question")
    return {
        name: {
            "median": median(values),
            "p99": quantiles(values, n=100)[-1],
            "cpu_p99": quantiles(cpu[name], n=100)[-1],
            "granted": len(first[name].grants),
            "reserving": len(first[name].reserving),
        }
        for name, values in samples.items()
    }


def tables(found: dict[str, Any]) -> str:
    """The figures as Markdown."""

    def row(name: str, at: dict[str, Any]) -> list[object]:
        ms = figures(at[figure] * 1e3 for figure in ("median", "p99", "cpu_p99"))
        return [name, *ms, at["granted"], at["reserving"]]

    worst = max(at["median"] for at in found.values())
    why = f"the slowest mix takes {worst * 1e3:.1f} ms, median"
    return table(
        f"### One decision: {GPUS} GPUs, {LEASES} leases, {TICKETS:,} tickets",
        ["", "median ms", "p99 ms", "p99 CPU ms", "granted", "reserving"],
        [row(name, at) for name, at in found.items()],
        [bar(f"under {BAR_S * 1e3:.0f} ms", worst < BAR_S, why)],
    )


if __name__ == "__main__":
    print(tables(measure()))
