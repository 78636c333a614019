"""Outcomes for tests; apart, since many small processes import them and nothing else."""

from __future__ import annotations

from slicer.model import Git, Outcome, PastAttempt, Sharing, Usage
from slicer.record import replace

OUTCOME = Outcome(
    job="0123456789ab",
    name="train",
    command=("python3", "train.py", "--epochs=3"),
    profile="gpu",
    backend="systemd",
    manager="system",
    unit="slicer-0123456789ab.scope",
    slice="gpu.slice",
    gpus=("GPU-a", "GPU-b"),
    vram_mib=8192,
    vram_peak_mib=(9318, 0),
    cpu_slots=0,
    slots={},
    forced=1,
    uid=0,
    reason="oom-kill",
    exit_code=137,
    signal=9,
    started_at=1_700_000_000.5,
    waited_s=0.25,
    wall_s=12.5,
    usage=Usage(cpu_s=1.5, memory_peak_bytes=1 << 40, io_read_bytes=0, oom_kills=1),
    leftovers=2,
    enforced=("CPUQuota", "MemoryMax"),
    not_enforced=("IOWeight",),
    paused_s=2.5,
    ended_by="slicer stop",
    changed=("CPUQuota=50%",),
    changed_outside=("DeviceAllow=/dev/null rw, char-pts rw",),
    gpu_indices=(3, 0),
    git=Git("5a3c9f01" * 5, "main", 1, "0c1d2e3f" * 8),
    attempts=(
        PastAttempt(1, "exited", 3, None, "", 1_700_000_000.5, 1.5, ("GPU-2",)),
        PastAttempt(2, "signal", 139, 11, "gpu", 1_700_000_032.5, 0.25, ()),
    ),
    sharing=Sharing(
        wants="both",
        mode="time=5ms",
        processes=2,
        gated=5000,
        turns=7,
        held_s=9.25,
        peak_mib=(6000, 0),
        overhead_mib=(512, 0),
        got_past_cap=1,
        troubles=("mps", "other"),
    ),
)
OTHER = replace(OUTCOME, job="b" * 12)
