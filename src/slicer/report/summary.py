"""A report's main facts in sentences. Pure."""

from __future__ import annotations

from slicer.model import GAVE_WAY
from slicer.quantity import format_duration, format_mib
from slicer.report.figures import gpu_seconds, quantile
from slicer.report.parts import OK, RUNNING, STOPPED, UNKNOWN, Report
from slicer.text import counted

_HOUR_S = 3600.0


def summary(report: Report) -> list[str]:
    """One sentence about each of jobs, GPUs, waiting and memory, as far as there is something to say."""
    if not report.jobs:
        return ["No job ran in this time."]
    return [_jobs(report), *_gpus(report), *_waiting(report), *_memory(report)]


def hours(seconds: float) -> str:
    value = seconds / _HOUR_S
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _jobs(report: Report) -> str:
    counts = {each.ending: each.jobs for each in report.endings}
    parts = [(counts.get(OK, 0), "ended well"), (sum(job.has_failed for job in report.jobs), "failed")]
    parts += [(counts.get(STOPPED, 0), "stopped"), (counts.get(GAVE_WAY, 0), "gave way to others")]
    parts += [(counts.get(RUNNING, 0), "still running"), (counts.get(UNKNOWN, 0), "ended in an unknown way")]
    users = counted(len({job.user for job in report.jobs}), "user")
    ended = ", ".join(f"{number:,} {what}" for number, what in parts if number)
    return f"{len(report.jobs):,} job{'s' * (len(report.jobs) != 1)} of {users}: {ended}."


def _gpus(report: Report) -> list[str]:
    time = report.over_time
    if not time.held_s:
        return []
    span_s = (report.period.ended - report.period.began) * len(report.cards)
    were = "was" if len(report.cards) == 1 else "were"
    said = f"{counted(len(report.cards), 'GPU')} {were} held {time.held_s / span_s:.0%} of the time"
    said += f" ({hours(time.held_s)} GPU-hours)"
    if time.measured_s:
        said += f"; while held, they were {time.busy_s / time.measured_s:.0%} busy"
        if time.measured_s < 0.995 * time.held_s:
            said += f", as far as that was measured ({time.measured_s / time.held_s:.0%} of those hours)"
    lost_s = sum(gpu_seconds(job, report.period) for job in report.jobs if job.has_failed)
    lost = [f"Jobs that failed held GPUs for {hours(lost_s)} hours."] if lost_s else []
    return [f"{said}.", *lost]


def _waiting(report: Report) -> list[str]:
    waited = sorted(job.waited_s for job in report.jobs if job.waited_s is not None)
    if not waited:
        return []
    if waited[-1] < 1:
        return ["No job waited for a second."]
    median, p90, longest = (format_duration(quantile(waited, part)) for part in (0.5, 0.9, 1.0))
    return [f"Half of the jobs waited {median} at most, nine of ten {p90}; the longest wait was {longest}."]


def _memory(report: Report) -> list[str]:
    saving = sum(use.saving_gib_h for use in report.memory)
    if not saving:
        return []
    most = report.memory[0]
    holds = "holds whole GPUs" if most.is_whole else f"declares {format_mib(most.declared_mib)}"
    return [
        f"{saving:,.0f} GiB-hours of GPU memory were held without need, the largest part by {most.name}: "
        f"it {holds}, and {format_mib(most.enough_mib)} would have been enough."
    ]  # fmt: skip
