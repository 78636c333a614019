"""The status and the sums over ended jobs as metrics for Prometheus. Pure, but for the names of users.

No label names a job, so that the number of series depends on users, profiles and GPUs only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics

from slicer.kernel.users import user_name
from slicer.ledger.status import GpuState, LedgerStatus
from slicer.outcome.totals import WAITS_S, Total
from slicer.record import record
from slicer.text import visible
from slicer.version import __version__

_Sums = defaultdict[tuple[str, ...], float]  # by the values of labels
_MIB = 1 << 20
_BY = ("user", "profile")
_GPU = ("gpu",)
_GAUGES = {
    "slicer_jobs_running": ("Jobs that hold a lease.", _BY),
    "slicer_jobs_halted": ("Jobs that hold a lease and stand still.", ("state", *_BY)),
    "slicer_jobs_waiting": ("Jobs that wait for a lease.", _BY),
    "slicer_longest_wait_seconds": ("How long the first of the waiting jobs waits.", _BY),
    "slicer_gpu_leases": ("GPUs and shares of GPUs that jobs hold.", _BY),
    "slicer_job_gpu_memory_declared_bytes": ("GPU memory that jobs asked for.", _BY),
    "slicer_job_gpu_memory_used_bytes": ("GPU memory that jobs use.", _BY),
    "slicer_gpu_memory_bytes": ("Memory of the GPU.", _GPU),
    "slicer_gpu_memory_used_bytes": ("Memory that is in use, by anybody.", _GPU),
    "slicer_gpu_memory_reserved_bytes": ("Memory set aside for jobs and for processes outside slicer.", _GPU),
    "slicer_gpu_memory_foreign_bytes": ("The highest use of processes outside slicer that are there.", _GPU),
    "slicer_gpu_out_of_service": ("1 if the GPU gets no more jobs.", _GPU),
    "slicer_gpu_utilization_ratio": ("The part of the time in which something ran on the GPU.", _GPU),
    "slicer_gpu_temperature_celsius": ("The GPU's temperature.", _GPU),
    "slicer_gpu_power_watts": ("The power that the GPU draws.", _GPU),
    "slicer_slots": ("Slots that there are.", ("slot",)),
    "slicer_slots_held": ("Slots that jobs hold.", ("slot", *_BY)),
}


@record
class Families:
    """What prometheus_client writes: metrics that were collected before."""

    found: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.found


def text(status: LedgerStatus, totals: Iterable[Total], *, is_open: bool = False) -> tuple[bytes, str]:
    """The metrics as text, with its content type. ``is_open``: OpenMetrics, not Prometheus' own format."""
    format_ = openmetrics if is_open else exposition
    families = Families((*live(status), *ended(totals)))
    return format_.generate_latest(families), format_.CONTENT_TYPE_LATEST


def live(status: LedgerStatus) -> Iterator[Metric]:
    build = InfoMetricFamily("slicer_build", "The version of slicer.", labels=())
    build.add_metric((), {"version": __version__})
    gpus = InfoMetricFamily("slicer_gpu", "The GPUs.", labels=_GPU)
    for state in status.gpus:
        gpus.add_metric((str(state.gpu.index),), {"uuid": state.gpu.uuid, "name": visible(state.gpu.name)})
    yield from (build, gpus)
    found = _values(status)
    for name, (what, labels) in _GAUGES.items():
        yield _filled(GaugeMetricFamily(name, what, labels=labels), found[name])


def _values(status: LedgerStatus) -> dict[str, _Sums]:
    found = {name: _Sums(float) for name in _GAUGES}
    for lease in status.leases:
        owner = _owner(lease.uid, lease.profile)
        found["slicer_jobs_running"][owner] += 1
        if halt := status.halt(lease.job):
            found["slicer_jobs_halted"][(halt.how, *owner)] += 1
        for name, count in lease.slots.items():
            found["slicer_slots_held"][(name, *owner)] += count
        for uuid in lease.gpus:
            found["slicer_gpu_leases"][owner] += 1
            if state := status.gpu(uuid):
                declared_mib = state.gpu.memory_mib if lease.vram_mib is None else lease.vram_mib
                found["slicer_job_gpu_memory_declared_bytes"][owner] += declared_mib * _MIB
                used_mib = state.device.used_by.get(lease.job, 0) if state.device else 0
                found["slicer_job_gpu_memory_used_bytes"][owner] += used_mib * _MIB
    for ticket in status.tickets:
        owner = _owner(ticket.uid, ticket.profile)
        found["slicer_jobs_waiting"][owner] += 1
        longest = found["slicer_longest_wait_seconds"]
        longest[owner] = max(longest[owner], status.now_s - ticket.arrived_s)
    for name, slot in status.slots.items():
        if slot.total is not None:
            found["slicer_slots"][name,] = slot.total
    for state in status.gpus:
        for name, value in _of_gpu(state).items():
            if value is not None:
                found[f"slicer_gpu_{name}"][str(state.gpu.index),] = value
    return found


def _of_gpu(state: GpuState) -> dict[str, float | None]:
    device, load = state.device, state.load
    if device is None:
        return {}
    return {
        "utilization_ratio": None if load.utilisation is None else load.utilisation / 100,
        "temperature_celsius": load.temperature_c,
        "power_watts": load.power_w,
        "out_of_service": float(bool(state.out)),
        "memory_bytes": device.total_mib * _MIB or None,
        "memory_used_bytes": device.used_mib * _MIB,
        "memory_reserved_bytes": state.reserved_mib * _MIB,
        "memory_foreign_bytes": device.foreign_mib * _MIB,
    }


def ended(totals: Iterable[Total]) -> Iterator[Metric]:
    """What jobs that have ended add up to."""
    jobs, gpu_s, cpu_s = _Sums(float), _Sums(float), _Sums(float)
    waits: dict[tuple[str, ...], list[float]] = {}
    for each in totals:
        owner = _owner(each.uid, each.profile)
        jobs[(*owner, each.result)] += each.jobs
        gpu_s[owner] += each.gpu_s
        cpu_s[owner] += each.cpu_s
        counts = (*each.waits, each.jobs, each.waited_s)
        waits[owner] = [a + b for a, b in zip(waits.get(owner, [0.0] * len(counts)), counts, strict=True)]
    by_result = (*_BY, "result")
    yield _filled(CounterMetricFamily("slicer_jobs_ended", "Jobs that have ended.", labels=by_result), jobs)
    what = "GPU time that jobs held."
    yield _filled(CounterMetricFamily("slicer_job_gpu_seconds", what, labels=_BY), gpu_s)
    what = "CPU time that jobs took."
    yield _filled(CounterMetricFamily("slicer_job_cpu_seconds", what, labels=_BY), cpu_s)
    what = "How long jobs waited for a lease."
    histogram = HistogramMetricFamily("slicer_job_wait_seconds", what, labels=_BY)
    bounds = [*map(str, map(float, WAITS_S)), "+Inf"]
    for of, figures in waits.items():
        histogram.add_metric(of, list(zip(bounds, figures[:-1], strict=True)), figures[-1])
    yield histogram


_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


def _filled(family: _Family, values: _Sums) -> _Family:
    """The family with these values. Their keys are those of its labels."""
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _owner(uid: int, profile: str) -> tuple[str, str]:
    return user_name(uid), visible(profile)
