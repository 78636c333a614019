"""A route's past for tests: what it decided, and what became of its jobs."""

from __future__ import annotations

from typing import Any

from slicer.config.routes import Destination, Probe, Route
from slicer.outcome.decisions import DecisionRow, PastDecision, RoutedJob
from slicer.record import replace

HOUR = 3600.0

_PROBE = Probe(kind="duration", command=(), timeout_s=30.0, tokens_per_word=1.3)
_DESTINATION = Destination(
    name="gpu", mode="gpu", up_to=(HOUR,), args=(), prepend=(), replace=(), profile="gpu", max_jobs=2,
    slot="whisper-gpu", vram_mib=10240, memory_bytes=None, on_busy="fail", exit_code=75,
)  # fmt: skip
_JOB = RoutedJob(
    started_at=0.0, waited_s=0.0, wall_s=10.0, reason="exited", exit_code=0, vram_peak_mib=(),
    memory_peak_bytes=None,
)  # fmt: skip


def part(name: str = "gpu", **fields: Any) -> Destination:
    """A destination; what is not said is as in any."""
    mode = fields.setdefault("mode", "cpu" if name == "cpu" else "gpu")
    if mode == "cpu":
        fields = {"up_to": (None,), "vram_mib": None, "profile": "heavy", **fields}
    return replace(_DESTINATION, name=name, slot=f"whisper-{name}", **fields)


def route(*destinations: Destination, **fields: Any) -> Route:
    """A route; to GPU and CPU unless it says other destinations."""
    made = Route(
        name="whisper", description="", probes=(_PROBE,), input=None,
        destinations=destinations or (part(), part("cpu")), on_probe_error="fail", on_gpu_oom="cpu",
        idempotent=True, memory_reserve_bytes=None, sources={"threshold": "config.toml:3"},
    )  # fmt: skip
    return replace(made, **fields)


def probes(*kinds: str) -> tuple[Probe, ...]:
    return tuple(replace(_PROBE, kind=kind) for kind in kinds)


class Past:
    """Decisions of one route, the oldest first, a minute apart."""

    def __init__(self) -> None:
        self.found: list[PastDecision] = []

    def add(self, job: RoutedJob | None, **fields: Any) -> str:
        """One decision; the id of its job."""
        number = len(self.found)
        at = fields.pop("decided_at", 60.0 * number)
        started = fields.get("result", "started") in ("started", "fallback")
        given: dict[str, Any] = {
            "route": "whisper", "decided_at": at, "kinds": ("duration",), "metrics": (600.0,),
            "bounds": (HOUR,), "destination": "gpu", "mode": "gpu", "result": "started",
            "job": f"{number:012x}" if started else "", "after": "", "waited_s": 0.0,
            "input": f"{number}.mp4", "command": ("whisper",), "reason": "",
            **fields,
        }  # fmt: skip
        row = DecisionRow(**given)
        self.found.append(PastDecision(row, job and replace(job, started_at=at + row.waited_s)))
        return row.job

    def gpu(self, metric: float, peak_mib: int = 0, exit_code: int = 0, **fields: Any) -> str:
        """A job on the GPU that ended."""
        peaks = (peak_mib,) if peak_mib else ()
        job = replace(_JOB, vram_peak_mib=peaks, exit_code=exit_code)
        return self.add(job, metrics=(metric,), **fields)

    def cpu(self, metric: float, **fields: Any) -> str:
        """A job on the CPU that ended."""
        return self.add(_JOB, metrics=(metric,), **{"destination": "cpu", "mode": "cpu", **fields})

    def out_of_memory(self, metric: float, peak_mib: int = 0) -> None:
        """A job that ran out of GPU memory, and again on the CPU."""
        job = self.gpu(metric, peak_mib, exit_code=1)
        self.cpu(metric, result="fallback", after=job, input=self.found[-1].row.input)

    def blocked(self, metric: float, mode: str = "cpu", **fields: Any) -> None:
        """A job that was not started."""
        where = {"destination": mode, "mode": mode, "result": "blocked", "reason": "cpu-busy"}
        self.add(None, metrics=(metric,), **{**where, **fields})

    def line(self, jobs: int, last: float = HOUR, base: int = 2000, slope: float = 2.0) -> None:
        """Jobs whose peak grows with the metric, evenly from a minute to ``last``."""
        for number in range(jobs):
            metric = 60.0 + (last - 60.0) * number / (jobs - 1)
            self.gpu(metric, round(base + slope * metric) - 37 * (number % 5))
