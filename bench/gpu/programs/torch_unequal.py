"""Two ranks of NCCL's on two GPUs, one of which launches much more of its own between the collectives."""

from __future__ import annotations

import json
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS = 500


def work(rank: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    values = torch.ones(1 << 20, device="cuda")
    own = torch.zeros(1 << 10, device="cuda")
    for number in range(ROUNDS):
        for _ in range(rank * (number % 20)):
            own += 1
        dist.all_reduce(values)
        values /= 2
    torch.cuda.synchronize()
    is_right = bool((values == 1).all())
    dist.destroy_process_group()
    if not is_right:
        raise SystemExit(1)


if __name__ == "__main__":
    if not dist.is_nccl_available() or torch.cuda.device_count() < 2:
        print(json.dumps({"skip": "no NCCL, or fewer than two GPUs"}))
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, args=(folder,), nprocs=2)
        print(json.dumps({"is_right": True, "rounds": ROUNDS}))
