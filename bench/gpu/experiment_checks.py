"""A latency job against a batch job: alone, unmanaged, each mode, priority. As ``bench.sharing``."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from bench.gpu.check import Failed, Finding, check, verdict
from bench.gpu.place import PROGRAMS, Place
from bench.sharing import figures, planning
from bench.sharing.figures import Row
from bench.sharing.model import Parameters
from bench.sharing.report import plain
from bench.sharing.running import Experiment
from bench.sharing.verdict import judge
from slicer.record import replace

# What a request may have to wait for beyond its own work: the others' window in flight, and a kernel that
# has begun. A multiple of what it takes alone would ask the impossible of a short request.
MOST_LONGER_MS = 1.0 + 0.5
BATCH_OF_LEFT = 0.95
PRIORITY = "priority 10"
_BAR = "with priority P99 <= alone + 1.5 ms and <= unmanaged, batch >= 95 % of what is left"


def _parameters(place: Place, modes: tuple[str, ...], repeats: int) -> Parameters:
    found = Parameters(
        gpu="", duration_s=2.0, warmup_s=0.3, repeats=repeats, batch_jobs=1, kernel_us=500, kernel="compute",
        depth=32, period_ms=10.0, request_kernels=20, request_kernel_us=50, modes=modes, priority=10,
        vram_mib=4096, backend=place.backend,
    )  # fmt: skip
    return replace(found, duration_s=0.3, warmup_s=0.1, repeats=1) if place.brief else found


def _measured(place: Place, parameters: Parameters, client: Any = None) -> Finding:
    scenarios = planning.scenarios(parameters)
    with closing(Experiment(parameters, place.slicer, place.environ, client=client)) as experiment:
        found = experiment.calibrate()
        runs = [experiment.run(each, found) for each in planning.order(scenarios, parameters.repeats)]
    rows = figures.rows(parameters, found, scenarios, runs)
    errors = [f"{row.name}: {error}" for row in rows for error in row.errors]
    best = next((row for row in rows if row.name == PRIORITY), None)
    data = {"rows": plain(rows), "verdict": judge(rows).text, "errors": errors}
    if best is None or best.latency is None or best.batch is None:
        raise Failed("; ".join(errors) or "no figures with priority")
    if best.troubles:
        return Finding("fail", f"the lock was not applied: {best.troubles}", data)
    of_alone, of_left = best.latency.of_alone or 1, best.batch.of_left or 0
    longer_ms = best.latency.p99_ms * (1 - 1 / of_alone)
    is_short = longer_ms <= MOST_LONGER_MS and (best.latency.of_unmanaged or 0) <= 1
    is_met = is_short and of_left >= BATCH_OF_LEFT and not errors
    text = f"with priority P99 {longer_ms:+.2f} ms of alone, batch {of_left:.0%} of what is left"
    return verdict(is_met, f"{text} ({_others(rows)})", **data)


def _others(rows: tuple[Row, ...]) -> str:
    return "; ".join(
        f"{row.name} {row.latency.of_alone:.2f} x, {row.batch.of_left:.0%}"
        for row in rows
        if row.name != PRIORITY and row.latency and row.batch and row.latency.of_alone and row.batch.of_left
    )


@check("modes", "short kernels against long ones: all modes", _BAR, limit_s=240)
def modes(place: Place) -> Finding:
    return _measured(place, _parameters(place, planning.DEFAULT_MODES, 3))


@check("model", "ResNet-50 of batch 1 against training (PyTorch)", _BAR, limit_s=280, needs="torchvision")
def model(place: Place) -> Finding:
    def client(kind: str, load: str) -> tuple[str, ...]:
        return (place.python, str(PROGRAMS / "torch_job.py"), kind, load)

    chosen = ("yield", "priority", "launches=10", "time=5ms")
    return _measured(place, replace(_parameters(place, chosen, 2), period_ms=30.0, vram_mib=8192), client)

