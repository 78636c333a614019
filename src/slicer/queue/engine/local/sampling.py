"""Samples the queue's jobs. Their series go into the history a moment after they end, several at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from slicer.broker.client.calls import tell_sampled
from slicer.errors import SlicerError
from slicer.job.sampling import Sampler, can_sample
from slicer.kernel.sleep import seconds_until, soonest
from slicer.ledger.held_lease import HeldLease
from slicer.outcome import samples
from slicer.outcome.history import default_path
from slicer.outcome.series import Series
from slicer.queue.engine.local.gpu_use import QueueMonitor

_WRITE_S = 1.0  # after the first end
_MOST = 1000  # series in memory, while the history is locked
_BUSY_TIMEOUT_S = 0.1


class QueueSampler:
    """The samplers of all running jobs. A history that cannot be written is reported once."""

    def __init__(self, monitor: QueueMonitor, broker: str, warn: Callable[[str], None]) -> None:
        self._monitor = monitor
        self._warn = warn
        self._samplers: dict[str, Sampler] = {}
        self._ended: dict[str, Series] = {}
        self._write_at = 0.0  # monotonic
        self._broker = broker
        self._has_warned = False

    def follow(self, held: HeldLease) -> None:
        job = held.lease.job
        if can_sample(held.lease):
            self._samplers[job] = Sampler(held.lease, lambda: self._monitor.use_of(job))

    def left_s(self) -> float | None:
        """Seconds until :meth:`take` has something to do."""
        writes_s = seconds_until(self._write_at) if self._ended else None
        return soonest(writes_s, *(sampler.left_s() for sampler in self._samplers.values()))

    def take(self) -> None:
        for sampler in self._samplers.values():
            sampler.take()
        if self._ended and time.monotonic() >= self._write_at:
            self.write()

    def has_ended(self, job: str) -> None:
        """The job's command has ended. Safe to repeat."""
        sampler = self._samplers.pop(job, None)
        series = sampler.series() if sampler is not None else None
        if series is None:
            return
        if not self._ended:
            self._write_at = time.monotonic() + _WRITE_S
        if len(self._ended) < _MOST:
            self._ended[job] = series

    def write(self) -> None:
        """Write the series of ended jobs; if the history is locked, later."""
        if not self._ended:
            return
        try:
            samples.keep(default_path(), self._ended, busy_timeout_s=_BUSY_TIMEOUT_S)
            ended, self._ended = self._ended, {}
            for job, series in ended.items() if self._broker else ():
                tell_sampled(self._broker, job, series)
            self._has_warned = False
        except SlicerError as error:
            self._write_at = time.monotonic() + _WRITE_S
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"samples of jobs cannot be kept now: {error}")
