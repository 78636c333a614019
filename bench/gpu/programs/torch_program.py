"""Training steps: HOW (eager, compile, graphs) WARM STEPS profile|no. Prints the loss, and launches."""

from __future__ import annotations

import json
import sys
from collections import Counter

import torch
from torch import nn

LAUNCHES = ("Launch", "Memcpy", "Memset")
how, warm, steps, profile = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "profile"
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 256), nn.LayerNorm(256), nn.GELU(),
    nn.Linear(256, 10),
).cuda()  # fmt: skip
optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
images, classes = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
forward = torch.compile(model) if how == "compile" else model
loss = torch.zeros((), device="cuda")


def step() -> None:
    global loss
    optimiser.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(forward(images), classes)
    loss.backward()
    optimiser.step()


def replayed() -> None:
    graph.replay()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(warm):
        step()
torch.cuda.current_stream().wait_stream(side)
act = step
if how == "graphs":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    act = replayed
act()
torch.cuda.synchronize()
launches: Counter[str] = Counter()
if profile:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            act()
        torch.cuda.synchronize()
    for event in seen.events():
        if event.name.startswith("cu") and any(word in event.name for word in LAUNCHES):
            launches[event.name] += 1
else:
    for _ in range(steps):
        act()
torch.cuda.synchronize()
result = {"loss": float(loss.detach())}
print(json.dumps({"result": result, "launches": launches, "version": torch.__version__}))
