"""The jobs of the experiment: ``calibrate``, ``latency`` and ``batch``, over the CUDA driver.

A job is started by ``slicer run`` with its load as one argument of JSON. It says on stdout, in lines of
JSON, that it is ready; it reads one line from stdin that says from when to when it works; and says what came
of it. All times are those of CLOCK_MONOTONIC, which all processes of a machine have in common. The end of
stdin ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time

from bench.gpu import ptx
from bench.gpu.cuda import Program
from slicer.errors import SlicerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BLOCKS_PER_SM = 4
_THREADS = 128
_WARM_NS = 200_000_000  # until a GPU's clock has risen
_TARGET_NS = 2_000_000  # a kernel of this length is measured well
_SIGNIFICANT_NS = 200_000
_AT_ONCE = 8  # kernels between two syncs of a measurement
_TRIES = 3
_REQUESTS = 20
_MOST_ITERATIONS = 1 << 40


def main(arguments: list[str]) -> None:
    """Do one job: ``KIND LOAD``. Ends the process."""
    code = 0
    try:
        kind, load = arguments[0], json.loads(arguments[1])
        {"calibrate": calibrate, "latency": latency, "batch": batch}[kind](load)
    except SlicerError as error:
        _say({"event": "error", "message": error.message, "where": error.where, "hint": error.hint})
        code = 1
    os._exit(code)  # whatever is still on the GPU goes with the process


def _say(data: dict[str, Any]) -> None:
    os.write(1, (json.dumps(data) + "\n").encode())


def _told() -> dict[str, int]:
    """The line of stdin. Ends the process where nobody is there to write it."""
    line = sys.stdin.readline()
    if not line:
        os._exit(1)
    told: dict[str, int] = json.loads(line)
    return told


class Gpu(Program):
    """The device, and what all jobs have on it."""

    def __init__(self, load: dict[str, Any]) -> None:
        super().__init__()
        self._blocks = self.context.sm_count() * _BLOCKS_PER_SM
        self._bytes = load["buffer_bytes"]
        self._from = self.context.allocate(self._bytes)
        self._to = self.context.allocate(self._bytes)

    def kernel(self, kind: str, iterations: int) -> Callable[[], None]:
        """The launch of a kernel of so many iterations, ``compute`` or ``memory``."""
        values: tuple[int, ...]
        if kind == "compute":
            name, values = ptx.COMPUTE, (iterations, self._to)
        else:
            name, values = ptx.MEMORY, (iterations, self._from, self._to, self._bytes // 4)
        return self.context.launch(name, self._blocks, _THREADS, self.stream, values)

    def request(self, load: dict[str, Any]) -> tuple[Callable[[], None], ...]:
        """The steps of one request: its input goes there, kernels, its result comes back."""
        size = load["copy_bytes"]
        host = self.context.host(size)
        there = self.context.again("cuMemcpyHtoDAsync_v2", self._from, host, size, self.stream)
        back = self.context.again("cuMemcpyDtoHAsync_v2", host, self._from, size, self.stream)
        return there, *[self.kernel("compute", load["iterations"])] * load["kernels"], back


# -- calibrate ----------------------------------------------------------------------------------------------


def calibrate(load: dict[str, Any]) -> None:
    """Find out what the GPU is, and how long an iteration takes on it."""
    gpu = Gpu(load)
    context = gpu.context
    warm_until = time.monotonic_ns() + _WARM_NS
    some = gpu.kernel("compute", 1000)
    while time.monotonic_ns() < warm_until:
        some()
        gpu.sync()
    compute_ns = _iteration_ns(gpu, "compute")
    memory_ns = _iteration_ns(gpu, "memory")
    steps = gpu.request({**load, "iterations": max(1, round(load["kernel_us"] * 1000 / compute_ns))})
    # What slicer calls it: a part of a GPU in MIG mode has another UUID.
    uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "") or context.uuid()
    _say({
        "event": "calibrated", "device": context.name(), "uuid": uuid.partition(",")[0],
        "memory_mib": context.memory()[1] >> 20, "compute_capability": context.compute_capability(),
        "cuda": gpu.driver.version(), "sm_count": context.sm_count(), "compute_ns": compute_ns,
        "memory_ns": memory_ns,
        "request_ms": min(_took_ns(gpu, steps, _REQUESTS) for _ in range(_TRIES)) / 1e6,
    })  # fmt: skip


def _iteration_ns(gpu: Gpu, kind: str) -> float:
    """How long one iteration takes: the difference of two kernels, so that the launch is not in it."""
    iterations = 1
    took = _kernel_ns(gpu, kind, 1)
    while took < _SIGNIFICANT_NS and iterations < _MOST_ITERATIONS:
        iterations *= 4
        took = _kernel_ns(gpu, kind, iterations)
    longer = iterations * max(2, round(_TARGET_NS / took))
    for _ in range(_TRIES):
        took_longer = _kernel_ns(gpu, kind, longer)
        if took_longer > took:
            return (took_longer - took) / (longer - iterations)
        took = _kernel_ns(gpu, kind, iterations)  # something else was in the way
    raise SlicerError("the time of a kernel does not grow with its work", hint="is the GPU in use?")


def _kernel_ns(gpu: Gpu, kind: str, iterations: int) -> float:
    """How long a kernel of so many iterations takes: the shortest of some tries, as nothing shortens it."""
    steps = (gpu.kernel(kind, iterations),)
    return min(_took_ns(gpu, steps, _AT_ONCE) for _ in range(_TRIES))


def _took_ns(gpu: Gpu, steps: tuple[Callable[[], None], ...], times: int) -> float:
    """How long the steps take, done so many times without a pause."""
    gpu.sync()
    start = time.monotonic_ns()
    for _ in range(times):
        for step in steps:
            step()
    gpu.sync()
    return (time.monotonic_ns() - start) / times


# -- latency ------------------------------------------------------------------------------------------------


def latency(load: dict[str, Any]) -> None:
    """Serve a request each period.

    A response counts from the moment that the request was due. A job that cannot keep up is late with the
    next one, too, as a server would be; requests that it did not come to are not in ``responses_ns``. Where
    it slept, and the system woke it late, it counts from its waking: that is not the GPU's doing.
    """
    gpu = Gpu(load)
    steps = gpu.request(load)
    for _ in range(load["warm"]):
        _serve(steps, gpu.sync)
    _say({"event": "ready"})
    told = _told()
    start, since, until, period = told["start_ns"], told["from_ns"], told["until_ns"], load["period_ns"]
    responses = []
    for due in range(start, until, period):
        begin = _woken_at(due)
        if time.monotonic_ns() >= until:
            break  # it fell behind
        _serve(steps, gpu.sync)
        if due >= since:
            responses.append(time.monotonic_ns() - begin)
    _say({
        "event": "result", "due": sum(due >= since for due in range(start, until, period)),
        "responses_ns": responses,
    })  # fmt: skip


def _woken_at(due: int) -> int:
    """Sleep until then; the time now, or when it was due if that is over."""
    left = due - time.monotonic_ns()
    if left <= 0:
        return due
    time.sleep(left / 1e9)
    return time.monotonic_ns()


def _serve(steps: tuple[Callable[[], None], ...], sync: Callable[[], None]) -> None:
    for step in steps:
        step()
    sync()


# -- batch --------------------------------------------------------------------------------------------------


def batch(load: dict[str, Any]) -> None:
    """Keep ``depth`` kernels in flight, and count those that are done."""
    gpu = Gpu(load)
    # Nothing is launched before the start: a job that keeps its turn would keep others from being ready.
    launch = gpu.kernel(load["kernel"], load["iterations"])
    events = [gpu.context.event() for _ in range(load["depth"])]
    record = [gpu.context.again("cuEventRecord", event, gpu.stream) for event in events]
    wait = [gpu.context.again("cuEventSynchronize", event) for event in events]
    _say({"event": "ready"})
    told = _told()
    since, until = told["from_ns"], told["until_ns"]
    time.sleep(max(0, told["start_ns"] - time.monotonic_ns()) / 1e9)
    done = launched = 0
    depth = load["depth"]
    while True:
        slot = launched % depth
        if launched >= depth:
            wait[slot]()  # the oldest
            now = time.monotonic_ns()
            if now >= until:
                break
            done += now >= since
        launch()
        record[slot]()
        launched += 1
    gpu.sync()
    _say({"event": "result", "done": done, "seconds": (until - since) / 1e9})


if __name__ == "__main__":
    main(sys.argv[1:])
