"""Two ranks on one GPU, each of whose steps waits for the other's."""

from __future__ import annotations

import json
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, STEPS = 2, 50


def rank(number: int, meeting: str, answers: mp.SimpleQueue) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=RANKS)
    torch.manual_seed(0)
    matrix = torch.randn(1024, 1024, device="cuda") / 32
    for _ in range(STEPS):
        part = (matrix @ matrix).sum()
        dist.all_reduce(part)
        matrix = matrix * 0.999
    answers.put(float(part))
    dist.destroy_process_group()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (f"{folder}/meeting", answers), RANKS)
    results = [answers.get() for _ in range(RANKS)]
    print(json.dumps({"is_right": len(set(results)) == 1, "steps": STEPS, "results": results}))
