"""What the queue's jobs use on their GPUs: what goes wrong there stops no queue."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from slicer.errors import StateError
from slicer.gpu.snapshot import GpuSnapshot
from slicer.job.gpu_watch import Exceeded
from slicer.placement.devices import Device
from slicer.queue.engine.local.gpu_use import QueueMonitor
from tests.unit import made_up

GPU = "GPU-a"


# E3: a full disk keeps a peak from the others, and the queue from nothing
def test_a_peak_that_cannot_be_written_down_is_the_monitors_problem() -> None:
    def full(vram_peak_mib: tuple[int, ...]) -> None:
        raise StateError("cannot be written: No space left on device")

    lease = made_up.lease("aaaaaaaaaaaa", gpus=(GPU,), vram_mib=1000)
    held: Any = SimpleNamespace(lease=lease, update=full)
    used = (Device(GPU, 80_000, 5000, {lease.job: 5000}, 0, ()),)
    observer: Any = SimpleNamespace(
        open=lambda: None, observe=lambda: GpuSnapshot((), ()), devices=lambda leases: used, utilisation=dict
    )
    ledger: Any = SimpleNamespace(locked=nullcontext, leases=lambda: (lease,))
    monitor = QueueMonitor(observer, ledger, 5.0, 200, 0.1)
    monitor.follow(held)
    assert monitor.look() == []
    assert "No space left" in str(monitor.problem)
    held.update = lambda vram_peak_mib: None
    (told,) = monitor.look()
    assert isinstance(told, Exceeded)
    assert (told.job, told.used_mib, told.declared_mib) == (lease.job, 5000, 1000)
    assert monitor.problem is None
