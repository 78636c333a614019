"""The jobs of the experiment with PyTorch: ``KIND LOAD``, which speak as bench.sharing.client does.

latency: ResNet-50, batch 1, with its input copied to the GPU and its answer back. batch: training steps of
it.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torchvision.models import resnet50


def say(**data: object) -> None:
    os.write(1, (json.dumps(data) + "\n").encode())


def told() -> dict[str, int]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)
    return json.loads(line)


class Server:
    """One request: an image there, its classes back."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = resnet50().cuda().eval()
        self.image = torch.randn(1, 3, 224, 224).pin_memory()
        for _ in range(10):
            self.serve()

    @torch.inference_mode()
    def queue(self) -> torch.Tensor:
        return self.model(self.image.cuda(non_blocking=True)).to("cpu", non_blocking=True)

    def serve(self) -> None:
        self.queue()
        torch.cuda.synchronize()


def calibrate(load: dict) -> None:
    server = Server()
    began = time.monotonic_ns()
    for _ in range(50):
        server.queue()
    torch.cuda.synchronize()
    properties = torch.cuda.get_device_properties(0)
    say(
        event="calibrated", device=properties.name, uuid=os.environ["CUDA_VISIBLE_DEVICES"],
        memory_mib=properties.total_memory >> 20,
        compute_capability=f"{properties.major}.{properties.minor}",
        cuda=str(torch.version.cuda), sm_count=properties.multi_processor_count, compute_ns=1.0,
        memory_ns=1.0, request_ms=(time.monotonic_ns() - began) / 50e6,
    )  # fmt: skip


def latency(load: dict) -> None:
    server = Server()
    say(event="ready")
    times = told()
    since, until, period = times["from_ns"], times["until_ns"], load["period_ns"]
    responses = []
    for due in range(times["start_ns"], until, period):
        begin = due
        if (left := due - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
            begin = time.monotonic_ns()
        if time.monotonic_ns() >= until:
            break
        server.serve()
        if due >= since:
            responses.append(time.monotonic_ns() - begin)
    all_due = sum(due >= since for due in range(times["start_ns"], until, period))
    say(event="result", due=all_due, responses_ns=responses)


def batch(load: dict) -> None:
    torch.manual_seed(0)
    model = resnet50().cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(32, 3, 224, 224, device="cuda")
    classes = torch.randint(0, 1000, (32,), device="cuda")

    def step() -> torch.cuda.Event:
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), classes).backward()
        optimiser.step()
        event = torch.cuda.Event()
        event.record()
        return event

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    say(event="ready")
    times = told()
    since, until = times["from_ns"], times["until_ns"]
    time.sleep(max(0, times["start_ns"] - time.monotonic_ns()) / 1e9)
    done, flying = 0, [step()]
    while time.monotonic_ns() < until:
        flying.append(step())  # one ahead
        flying.pop(0).synchronize()
        done += since <= time.monotonic_ns() < until
    torch.cuda.synchronize()
    say(event="result", done=done, seconds=(until - since) / 1e9)


if __name__ == "__main__":
    {"calibrate": calibrate, "latency": latency, "batch": batch}[sys.argv[1]](json.loads(sys.argv[2]))
