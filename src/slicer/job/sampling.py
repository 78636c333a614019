"""Samples a job while it runs: its cgroup, and its GPUs as last looked at.

The job's supervisor does this. If that is killed, the series is lost; the outcome is not.
"""

from __future__ import annotations

import time

from slicer.kernel import cgroup
from slicer.model import Usage
from slicer.outcome.series import Reading, Recorder, Series

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.job.gpu_watch import GpuWatch
    from slicer.model import Lease


class Sampler:
    """The samples of one job. ``watch`` measures its GPUs; None: nobody does."""

    def __init__(self, lease: Lease, watch: GpuWatch | None) -> None:
        self._directory = cgroup.path_of(lease.cgroup) if lease.cgroup else ""
        self._watch = watch
        self._recorder = Recorder(self._read(), len(lease.gpus), time.monotonic(), time.time())

    def left_s(self) -> float:
        """Seconds until the next sample is due."""
        return max(0.0, self._recorder.due_s - time.monotonic())

    def take(self) -> None:
        if not self.left_s():
            self._recorder.add(self._read(), time.monotonic())

    def series(self) -> Series | None:
        """What was sampled; None: nothing yet."""
        return self._recorder.series()

    def _read(self) -> Reading:
        watch = self._watch
        mib, busy = (watch.now_mib, watch.busy) if watch is not None else ((), ())
        if not self._directory:
            return Reading(Usage(), None, mib, busy)
        return Reading(cgroup.usage(self._directory), cgroup.memory(self._directory), mib, busy)
