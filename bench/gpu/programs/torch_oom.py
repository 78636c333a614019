"""Allocates with PyTorch until it is out of memory, frees all, and goes on."""

from __future__ import annotations

import json

import torch

CHUNK_MIB = 128
free, total = torch.cuda.mem_get_info()
taken: list[torch.Tensor] = []
error = ""
while not error and len(taken) < 4096:
    try:
        taken.append(torch.empty(CHUNK_MIB << 20, dtype=torch.uint8, device="cuda"))
    except Exception as raised:
        error = type(raised).__name__
got = len(taken) * CHUNK_MIB
taken.clear()
torch.cuda.empty_cache()
again = torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20
told = {"got_mib": got, "error": error, "total_mib": total >> 20, "free_mib": free >> 20, "again": again}
print(json.dumps(told))
