"""Jobs at random, with processes and threads, in all modes, some killed: what must hold whatever comes."""

from __future__ import annotations

import random
import time

import pytest

from tests.patience import until
from tests.process.share_box import GPU0, GPU1, Client, Job, ShareBox, overlaps

pytest_plugins = ["tests.process.share_fixtures"]

MODES = [
    {"SLICER_SHARE_LAUNCHES": "3"},
    {"SLICER_SHARE_TIME_MS": "4"},
    {"SLICER_SHARE_EACH": "1"},
]


def start_job(share: ShareBox, chance: random.Random) -> tuple[Job, list[Client]]:
    gpus = chance.choice([[GPU0], [GPU0], [GPU0, GPU1]])
    env = chance.choice([*MODES, *({"SLICER_SHARE_QUANTUM_MS": str(chance.randint(1, 20))} for _ in MODES)])
    env = {**env, "SLICER_SHARE_WINDOW_MS": "100"}  # nobody is overtaken, however slow the machine is
    job = share.job(priority=chance.choice([0, 0, 0, 5, -5]), gpus=gpus)
    clients = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        clients.append(share.start(job, chance.choice(["dlsym", "ptsz", "linked"]), env=env))
        clients[-1].do("init", f"context {chance.randrange(len(gpus))}")
    return job, clients


def command(chance: random.Random) -> str:
    one = f"{chance.choice([20, 200, 900])} {chance.randint(20, 60)} {chance.choice([0, 1, 5, 40])}"
    return chance.choice(
        [f"work {one}", f"threads 4 work 150 {chance.randint(5, 20)} {chance.choice([0, 3])}"]
    )


@pytest.mark.parametrize(
    "seed", [222, 213, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6))]
)
def test_in_any_mixture_one_job_has_a_GPU_and_all_get_on(share: ShareBox, seed: int) -> None:  # D1 D2
    chance = random.Random(seed)
    jobs = [start_job(share, chance) for _ in range(chance.randint(2, 4))]
    clients = [client for _, of_job in jobs for client in of_job]
    for client in clients:
        client.tell(command(chance))
    victims = chance.sample(clients, chance.choice([0, 0, 1, 2])) if len(clients) > 3 else []
    killed = {}
    for victim in victims:
        until(lambda one=victim: share.fake.busy(one.pid) or one.has_answered(), "it works")
        killed[victim.pid] = time.monotonic_ns()
        victim.kill()
    for client in clients:
        if client not in victims:
            assert client.hear().code == 0, client.said()
    assert overlaps(share.fake, *(of_job for _, of_job in jobs), killed=killed) == []
    for job, _ in jobs:
        told = job.told()
        assert told.troubles == set()
        assert told.counters["undrained"] == 0
