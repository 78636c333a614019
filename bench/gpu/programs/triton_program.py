"""A kernel in Triton."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl


@triton.jit
def fused(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(x + at, mask=inside)
    tl.store(out + at, a * tl.load(y + at, mask=inside) + a, mask=inside)


torch.manual_seed(0)
x, y = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 20, device="cuda")
out = torch.empty_like(x)
for _ in range(50):
    fused[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
is_right = bool(torch.allclose(out, x * y + x))
print(json.dumps({"result": {"sum": float(out.double().sum()), "is_right": is_right}}))
