"""An all-reduce of NCCL's, captured into a CUDA graph. One rank: NCCL refuses two on a GPU."""

from __future__ import annotations

import json
import tempfile

import torch
import torch.distributed as dist

REPLAYS = 100

if not dist.is_nccl_available():
    print(json.dumps({"skip": "this PyTorch has no NCCL"}))
else:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        values = torch.zeros(1 << 20, device="cuda")
        dist.all_reduce(values)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values += 1
            dist.all_reduce(values)
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        is_right = bool((values == REPLAYS).all())
        dist.destroy_process_group()
    print(json.dumps({"is_right": is_right, "replays": REPLAYS}))
