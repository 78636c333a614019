"""CuPy: arrays, a matrix product, a raw kernel."""

from __future__ import annotations

import json

import cupy

scale = cupy.RawKernel(
    'extern "C" __global__ void scale(float *x, float by, int n)'
    "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= by; }",
    "scale",
)
x = cupy.arange(1 << 20, dtype=cupy.float32) / (1 << 20)
for _ in range(50):
    scale((1 << 12,), (256,), (x, cupy.float32(1.01), x.size))
matrix = x.reshape(1024, 1024)
product = matrix @ matrix.T
print(json.dumps({"result": {"sum": float(product.astype(cupy.float64).sum()), "max": float(x.max())}}))
