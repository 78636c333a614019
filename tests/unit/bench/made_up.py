"""Runs that nobody measured."""

from __future__ import annotations

from bench.sharing.model import BatchRun, Calibration, LatencyRun, Parameters, Run, Sharing
from bench.sharing.planning import DEFAULT_MODES

PARAMETERS = Parameters(
    gpu="", duration_s=2.0, warmup_s=0.3, repeats=3, batch_jobs=1, kernel_us=500, kernel="compute", depth=32,
    period_ms=10.0, request_kernels=20, request_kernel_us=50, modes=DEFAULT_MODES, priority=10, vram_mib=1024,
)  # fmt: skip
GPU = "GPU-00000000-0000-0000-0000-000000000000"
CALIBRATION = Calibration(
    device="NVIDIA X", uuid=GPU, memory_mib=81559, compute_capability="9.0", cuda="13.0", sm_count=132,
    compute_ns=2.5, memory_ns=40_000.0, request_ms=1.0,
)  # fmt: skip

def sharing(*troubles: str, turns: int = 7) -> Sharing:
    """What an outcome says of a job under the lock."""
    return Sharing(processes=1, gated=1000, turns=turns, undrained=0, troubles=troubles)


def run(
    scenario: str, *responses_ms: float, due: int = 0, done: int | None = None, told: Sharing | None = None
) -> Run:
    """One repetition of 2 s: of the latency job where it has responses, of a batch job where it has work."""
    latency = LatencyRun(due or len(responses_ms), responses_ms, told) if responses_ms else None
    batch = () if done is None else (BatchRun(done, 2.0, told),)
    return Run(scenario, latency, batch)


def runs(scenario: str, *tails_ms: float, done: int, told: Sharing | None = None) -> list[Run]:
    """Repetitions of both jobs, one for each P99: 99 responses of 1 ms, and the tail."""
    return [run(scenario, *[1.0] * 98, tail, tail, due=100, done=done, told=told) for tail in tails_ms]
